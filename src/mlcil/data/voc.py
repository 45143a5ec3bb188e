"""Reading PASCAL VOC's classification labels, from its image lists or from its XML annotations."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name
from .images import ABSENT, PRESENT, UNKNOWN, DataSet, LabelledImages

# The 20 classes of VOC 2007 to 2012, used where no class list names others.
# fmt: off
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)
# fmt: on
DIFFICULT = {"absent": ABSENT, "unknown": UNKNOWN}
# VOC's lists write 0 for "only as difficult" and -1 for "absent".
VALUES = {"1": PRESENT, "0": None, "-1": ABSENT}


def read_voc(root: Path, year: str = "2007", difficult: str = "absent") -> DataSet:
    """Read image-level labels; `trainval` is the training part and `test` the test part.

    Arguments:
        root: the folder that holds `VOCdevkit`, or `VOCdevkit`, or `VOCdevkit/VOC2007`.
        year: which `VOC<year>` folder to take.
        difficult: what a class seen only in instances marked difficult counts as: "absent" or "unknown".

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
    classes = tuple(listed) or CLASSES
    train = _read_part(folder, "trainval", classes, DIFFICULT[difficult])
    test = _read_part(folder, "test", classes, DIFFICULT[difficult])
    return DataSet(
        LabelledImages(*train, classes=classes, split="train"),
        LabelledImages(*test, classes=classes, split="test"),
    )


def _find(root: Path, year: str) -> Path:
    if not root.is_dir():
        raise UserError(f"VOC folder {root} does not exist or is not a folder")
    name = f"VOC{year}"
    for folder in (root, root / name, root / "VOCdevkit" / name):
        if _lists(folder).is_dir():
            return folder
    raise UserError(f"no ImageSets/Main in {root}, {root / name} or {root / 'VOCdevkit' / name}")


def _lists(folder: Path) -> Path:
    return folder / "ImageSets" / "Main"


def _read_part(
    folder: Path, split: str, classes: tuple[str, ...], difficult: int
) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    files = [_lists(folder) / f"{name}_{split}.txt" for name in classes]
    if all(file.is_file() for file in files):
        columns = [_read_list(file, difficult) for file in files]
        ids = sorted(columns[0])
        for file, column in zip(files, columns, strict=True):
            if column.keys() != columns[0].keys():
                raise UserError(f"{file} and {files[0]} must list the same images, they do not")
        rows = [[column[name] for column in columns] for name in ids]
    else:
        ids = _read_ids(_lists(folder) / f"{split}.txt")
        rows = [_read_xml(folder / "Annotations" / f"{name}.xml", classes, difficult) for name in ids]
    paths = tuple(str(folder / "JPEGImages" / f"{name}.jpg") for name in ids)
    return paths, np.array(rows, dtype=np.int8).reshape(len(ids), len(classes))


def _read_list(file: Path, difficult: int) -> dict[str, int]:
    """The label of one class for every image id of a list such as `dog_test.txt`."""
    labels: dict[str, int] = {}
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in VALUES:
            raise UserError(f"{file}, line {number}: got {line!r}, expected an image id and 1, 0 or -1")
        value = VALUES[words[1]]
        labels[words[0]] = difficult if value is None else value
    if not labels:
        raise UserError(f"{file} lists no image")
    return labels


def _read_ids(file: Path) -> list[str]:
    if not file.is_file():
        raise UserError(f"{file} does not exist; expected it, or lists such as dog_{file.name} beside it")
    ids = sorted({line.split()[0] for line in file.read_text().splitlines() if line.strip()})
    if not ids:
        raise UserError(f"{file} lists no image")
    return ids


def _read_xml(file: Path, classes: tuple[str, ...], difficult: int) -> list[int]:
    """The labels of one image, (K,)."""
    try:
        objects = ElementTree.parse(file).getroot().findall("object")
    except FileNotFoundError:
        raise UserError(f"annotation {file} does not exist, and there are no class lists instead") from None
    except ElementTree.ParseError as error:
        raise UserError(f"{file} is not valid XML: {error}") from None
    labels = dict.fromkeys(classes, ABSENT)
    for instance in objects:
        name = instance.findtext("name", "").strip()
        if name not in labels:
            raise unknown_name(f"class in {file}:", name, classes)
        is_difficult = instance.findtext("difficult", "0").strip() == "1"
        # One ordinary instance outweighs any number of difficult ones.
        if not is_difficult:
            labels[name] = PRESENT
        elif labels[name] != PRESENT:
            labels[name] = difficult
    return list(labels.values())
