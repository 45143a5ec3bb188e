"""Reading MS-COCO, or any data set whose annotations have COCO's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name
from .images import PRESENT, DataSet, LabelledImages

YEARS = ("2014", "2017")
PARTS = ("images", "annotations", "categories")


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
        train: another training annotation file: absolute, or relative to `root` or `root/annotations`.
        test: another test annotation file, likewise.
        images: the folder of the images. `<folder>/train2014` is taken for `instances_train2014.json`
            where it exists, else the folder itself. Default: `root`.
        year: "2014" or "2017". Default: the one that is there, 2014 if both are.

    Returns:
        Both parts with labels int8 (N, K), rows sorted by file name, classes sorted by name.

    Raises:
        UserError: a folder or file is missing, or a file is not a COCO annotation file.
    """
    for folder in (root, images or root):
        if not folder.is_dir():
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
        if candidate.is_file():
            return candidate
    tried = " or ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    raise UserError(f"no COCO annotation file {tried}; give train= and test= to name others")


def _read_part(file: Path, base: Path, split: str) -> LabelledImages:
    content = _load(file)
    try:
        names = {int(entry["id"]): str(entry["name"]) for entry in content["categories"]}
        files = {int(entry["id"]): str(entry["file_name"]) for entry in content["images"]}
        pairs = [
            (entry["image_id"], entry["category_id"]) for entry in content["annotations"] if not entry.get("iscrowd", 0)
        ]
        instances = np.array(pairs, dtype=np.int64).reshape(-1, 2)  # (instances, [image, category])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is not a COCO annotation file: bad or missing entry {error}") from None
    if not files or not names:
        raise UserError(f"{file} has no {'categories' if files else 'images'}, expected at least one")
    image_ids = sorted(files, key=lambda number: (files[number], number))
    category_ids = sorted(names, key=lambda number: names[number])
    labels = np.zeros((len(image_ids), len(category_ids)), dtype=np.int8)
    rows = _positions(image_ids, instances[:, 0], f"{file}: an annotation names image_id")
    columns = _positions(category_ids, instances[:, 1], f"{file}: an annotation names category_id")
    labels[rows, columns] = PRESENT
    folder = _image_folder(base, file, files[image_ids[0]])
    paths = tuple(str(folder / files[number]) for number in image_ids)
    return LabelledImages(paths, labels, tuple(names[number] for number in category_ids), split)


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open(encoding="utf-8") as stream:
            content = json.load(stream, object_hook=_without_geometry)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    missing = [part for part in PARTS if not isinstance(content, dict) or part not in content]
    if missing:
        raise UserError(
            f"{file} is not a COCO annotation file: it lacks {', '.join(missing)}; needed: {', '.join(PARTS)}"
        )
    return dict(content)


def _without_geometry(entry: dict[str, Any]) -> dict[str, Any]:
    # Outlines are nine tenths of COCO's JSON. Dropped while parsing, they never pile up in memory.
    entry.pop("segmentation", None)
    entry.pop("bbox", None)
    return entry


def _positions(known: list[int], wanted: NDArray[np.int64], what: str) -> NDArray[np.int64]:
    """Where each wanted number stands in `known`, (M,)."""
    numbers = np.array(known, dtype=np.int64)
    order = np.argsort(numbers)
    place = np.searchsorted(numbers, wanted, sorter=order).clip(max=len(known) - 1)
    positions: NDArray[np.int64] = order[place]
    wrong = numbers[positions] != wanted
    if wrong.any():
        raise UserError(f"{what} {wanted[wrong][0]}, which the file does not define")
    return positions


def _image_folder(base: Path, file: Path, first: str) -> Path:
    own = base / file.stem.removeprefix("instances_")
    if own.is_dir():
        return own
    # One look is enough to tell a folder of images from a folder that is not there.
    if not (base / first).is_file():
        raise UserError(f"no image folder for {file.name}: {own} does not exist and {base} has no {first}")
    return base
