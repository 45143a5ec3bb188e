"""Reading a folder of photos with a table of metadata, as the Hugging Face hub has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..core.words import counted
from .images import ABSENT, UNKNOWN, Finding, Level
from .listing import Listing
from .table import SPLITS, read_table

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def metadata_files(root: Path) -> list[Path]:
    """The tables of a folder and of the folders train, test, ... in it."""
    folders = [root, *sorted(folder for folder in root.iterdir() if folder.name.lower() in SPLITS)]
    return [folder / name for folder in folders for name in METADATA if (folder / name).is_file()]


def read_metadata(
    root: Path, tables: Sequence[Path], photos: Sequence[Path], separator: str, test_fraction: float
) -> Listing:
    """Read tables whose column `file_name` is relative to each table's own folder.

    Arguments:
        root: the folder. An image below its folder train, test, ... belongs to that part.
        tables: see `metadata_files`.
        photos: all image files of the folder, to find those that no table names.
        separator, test_fraction: see `read_table`.

    Raises:
        UserError: there is no table, or something in one is wrong.
    """
    if not tables:
        raise UserError(f"{root} has no {', '.join(METADATA)}, nor has a folder named train or test in it")
    found = [read_table(table, path="file_name", separator=separator, test_fraction=test_fraction) for table in tables]
    whole = _joined(root, found) if len(found) > 1 else found[0]
    pairs = zip(whole.parts, whole.paths, strict=True)
    parts = tuple(said or _part_of(root, path) for said, path in pairs)
    listed = set(map(os.path.abspath, whole.paths))
    left = [photo for photo in photos if os.path.abspath(photo) not in listed]
    if left:
        count = counted(len(left), "image is", "images are")
        finding = Finding(Level.LOOK, f"{count} in {root} but not in its metadata and left out, first {left[0]}")
        whole = replace(whole, findings=(*whole.findings, finding))
    return replace(whole, parts=parts)


def _part_of(root: Path, path: str) -> str:
    top, *below = os.path.relpath(path, root).split(os.sep)
    return SPLITS.get(top.lower(), "") if below else ""


def _joined(root: Path, listings: Sequence[Listing]) -> Listing:
    """The rows of several tables as one."""
    classes = tuple(sorted(set().union(*(one.classes for one in listings))))
    blocks = []
    for one in listings:
        # What a list does not name is absent; a column that a table lacks says nothing.
        block = np.full((len(one.paths), len(classes)), ABSENT if one.lists else UNKNOWN, dtype=np.int8)
        block[:, [classes.index(name) for name in one.classes]] = one.labels
        blocks.append(block)
    return Listing(
        str(root),
        tuple(path for one in listings for path in one.paths),
        np.concatenate(blocks),
        classes,
        tuple(part for one in listings for part in one.parts),
        np.concatenate([one.arrivals for one in listings]),
        tuple(f"{os.path.relpath(one.source, root)}, {place}" for one in listings for place in one.places),
        listings[0].test_fraction,
        tuple(finding for one in listings for finding in one.findings),
        lists=all(one.lists for one in listings),
    )
