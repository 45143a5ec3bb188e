"""Reading PASCAL VOC's classification labels, from its image lists."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core.errors import UserError, unknown_name
from .images import ABSENT, PRESENT, UNKNOWN, DataSet, LabelledImages
from .text_files import read_text

DIFFICULT = {"absent": ABSENT, "unknown": UNKNOWN}


def read_voc(root: Path, year: str = "2007", difficult: str = "absent") -> DataSet:
    """Read image-level labels; `trainval` is the training part and `test` the test part.

    Arguments:
        root: the folder that holds `VOCdevkit`, or `VOCdevkit`, or `VOCdevkit/VOC2007`.
        year, difficult: see `sources.SOURCES`.

    Returns:
        Both parts with labels int8 (N, K), rows sorted by image id, classes sorted by name.

    Raises:
        UserError: a folder or list is missing or malformed.
    """
    if difficult not in DIFFICULT:
        raise unknown_name("value for VOC's option difficult", difficult, DIFFICULT)
    folder = _find(root, year)
    suffix = "_trainval.txt"
    listed = sorted(path.name.removesuffix(suffix) for path in _lists(folder).glob(f"*{suffix}"))
    if not listed:
        raise UserError(f"{_lists(folder)} has no class lists such as dog{suffix}")
    train = _read_part(folder, "trainval", listed, DIFFICULT[difficult])
    return DataSet(replace(train, split="train"), _read_part(folder, "test", listed, DIFFICULT[difficult]))


def _find(root: Path, year: str) -> Path:
    if not os.path.isdir(root):
        raise UserError(f"VOC folder {root} does not exist or is not a folder")
    name = f"VOC{year}"
    for folder in (root, root / name, root / "VOCdevkit" / name):
        if os.path.isdir(_lists(folder)):
            return folder
    raise UserError(f"no ImageSets/Main in {root}, {root / name} or {root / 'VOCdevkit' / name}")


def _lists(folder: Path) -> Path:
    return folder / "ImageSets" / "Main"


def _read_part(folder: Path, split: str, classes: list[str], difficult: int) -> LabelledImages:
    files = [_lists(folder) / f"{name}_{split}.txt" for name in classes]
    columns = [_read_list(file, difficult) for file in files]
    for file, column in zip(files, columns, strict=True):
        if column.keys() != columns[0].keys():
            raise UserError(f"{file} and {files[0]} must list the same images, they do not")
    ids = sorted(columns[0])
    paths = tuple(str(folder / "JPEGImages" / f"{name}.jpg") for name in ids)
    labels = np.array([[column[name] for column in columns] for name in ids], dtype=np.int8)
    return LabelledImages(paths, labels, tuple(classes), split)


def _read_list(file: Path, difficult: int) -> dict[str, int]:
    """The label of one class for every image id of a list such as `dog_test.txt`."""
    values = {"1": PRESENT, "0": difficult, "-1": ABSENT}
    labels: dict[str, int] = {}
    if not os.path.isfile(file):
        raise UserError(f"{file} does not exist")
    for number, line in enumerate(read_text(file)[0].splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in values:
            raise UserError(f"{file}, line {number}: got {line!r}, expected an image id and 1, 0 or -1")
        labels[words[0]] = values[words[1]]
    if not labels:
        raise UserError(f"{file} lists no image")
    return labels
