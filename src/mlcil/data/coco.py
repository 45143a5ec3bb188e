"""Reading MS-COCO, or any data set whose annotations have COCO's layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError, unknown_name
from ..core.files import read_json
from .images import PRESENT, DataSet, LabelledImages

YEARS = ("2014", "2017")


def read_coco(
    root: Path,
    train: str | None = None,
    test: str | None = None,
    images: Path | None = None,
    year: str | None = None,
) -> DataSet:
    """Read image-level labels from COCO's instance annotations.

    Every label is known: present where an image has an instance that is not a crowd, else absent.

    Arguments:
        root: the folder that holds `annotations/instances_{train,val}{2014,2017}.json`.
        train, test: other annotation files: absolute, or relative to `root` or `root/annotations`.
        images: the folder of the images. `<folder>/train2014` is taken for `instances_train2014.json`
            where it exists, else the folder itself. Default: `root`.
        year: see `sources.SOURCES`.

    Returns:
        Both parts with labels int8 (N, K), rows sorted by file name, classes sorted by name.

    Raises:
        UserError: a folder or file is missing, or a file is not a COCO annotation file.
    """
    for folder in (root, images or root):
        if not os.path.isdir(folder):
            raise UserError(f"COCO folder {folder} does not exist or is not a folder")
    if year is not None and year not in YEARS:
        raise unknown_name("COCO year", year, YEARS)
    train_file = _annotation_file(root, train, "train", year)
    test_file = _annotation_file(root, test, "val", year)
    train_part = _read_part(train_file, images or root, "train")
    test_part = _read_part(test_file, images or root, "test")
    if train_part.classes != test_part.classes:
        odd = sorted(set(train_part.classes) ^ set(test_part.classes))
        raise UserError(f"{train_file} and {test_file} must have the same categories, only one has: {', '.join(odd)}")
    return DataSet(train_part, test_part)


def _annotation_file(root: Path, given: str | None, part: str, year: str | None) -> Path:
    if given is not None:
        # An absolute path replaces what stands before it.
        candidates = [root / given, root / "annotations" / given]
    else:
        years = YEARS if year is None else (year,)
        candidates = [root / "annotations" / f"instances_{part}{one}.json" for one in years]
    for candidate in candidates:
        if os.path.isfile(candidate):
            return candidate
    tried = " or ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    raise UserError(f"no COCO annotation file {tried}; give train= and test= to name others")


def _read_part(file: Path, base: Path, split: str) -> LabelledImages:
    content = read_json(file, _without_geometry)
    try:
        names = {int(entry["id"]): str(entry["name"]) for entry in content["categories"]}
        files = {int(entry["id"]): str(entry["file_name"]) for entry in content["images"]}
        instances = [
            (int(entry["image_id"]), int(entry["category_id"]))
            for entry in content["annotations"]
            if not entry.get("iscrowd", 0)
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{file} is not a COCO annotation file: bad or missing entry {error}") from None
    if not files or not names:
        raise UserError(f"{file} has no {'categories' if files else 'images'}, expected at least one")
    image_ids = sorted(files, key=lambda number: (files[number], number))
    category_ids = sorted(names, key=lambda number: names[number])
    labels = np.zeros((len(image_ids), len(category_ids)), dtype=np.int8)
    row_of = {number: row for row, number in enumerate(image_ids)}
    column_of = {number: column for column, number in enumerate(category_ids)}
    for image, category in instances:
        if image not in row_of or category not in column_of:
            wrong = f"category_id {category}" if image in row_of else f"image_id {image}"
            raise UserError(f"{file}: an annotation names {wrong}, which the file does not define")
        labels[row_of[image], column_of[category]] = PRESENT
    folder = _image_folder(base, file, files[image_ids[0]])
    paths = tuple(str(folder / files[number]) for number in image_ids)
    return LabelledImages(paths, labels, tuple(names[number] for number in category_ids), split)


def _without_geometry(entry: dict[str, Any]) -> dict[str, Any]:
    # Outlines are nine tenths of COCO's JSON. Dropped while parsing, they never pile up in memory.
    entry.pop("segmentation", None)
    entry.pop("bbox", None)
    return entry


def _image_folder(base: Path, file: Path, first: str) -> Path:
    own = base / file.stem.removeprefix("instances_")
    if os.path.isdir(own):
        return own
    # One look is enough to tell a folder of images from a folder that is not there.
    if not os.path.isfile(base / first):
        raise UserError(f"no image folder for {file.name}: {own} does not exist and {base} has no {first}")
    return base
