"""Reading a table of images: one row per image, in any of the formats of `spreadsheet`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name
from ..core.remote import is_url
from .denials import is_denial
from .images import ABSENT, PRESENT, UNKNOWN, Finding
from .label_names import SEPARATORS, find_joined, find_look_alikes, find_values
from .listing import Listing
from .spreadsheet import Cell, Sheet, read_sheet

PATH_COLUMNS = ("path", "file", "filename", "image", "file_name", "image_path", "photo")
LABEL_COLUMNS = ("labels", "tags", "label", "tag", "keywords")
SPLIT_COLUMNS = ("split", "set")
SESSION_COLUMNS = ("session",)
SPLITS = {"train": "train", "trainval": "train"} | dict.fromkeys(("test", "val", "valid", "validation"), "test")
PARTS = ("train", "test")
# Programs write a column with gaps as floats, hence "1.0".
VALUES = (
    dict.fromkeys(("1", "1.0", "true", "yes", "x"), PRESENT)
    | dict.fromkeys(("0", "0.0", "false", "no"), ABSENT)
    | dict.fromkeys(("", "-1", "-1.0"), UNKNOWN)
)

Labels = tuple[tuple[str, ...], NDArray[np.int8], tuple[Finding, ...]]  # K classes, (N, K), and what is odd about them


def read_table(
    file: Path,
    images: Path | str | None = None,
    path: str | None = None,
    labels: str | None = None,
    split: str | None = None,
    session: str | None = None,
    separator: str = "semicolon",
    test_fraction: float = 0.2,
) -> Listing:
    """Read images and labels from a spreadsheet with a row per image; all options are explained in `sources.SOURCES`.

    In a column of label lists, an empty cell means that the image shows none of the classes. Without such a column,
    every remaining column is a class with the values 1, 0 or nothing (unknown).

    Returns:
        Labels int8 (N, K), rows in the table's order, classes sorted by name.

    Raises:
        UserError: the file is missing or something in it is wrong; the message names the row.
    """
    sign = separator_sign(separator)
    sheet = read_sheet(file, PATH_COLUMNS if path is None else (path.lower(),))
    path_column = _path_column(sheet, path)
    label_column = _find(sheet, labels, LABEL_COLUMNS, "label")
    split_column = _find(sheet, split, SPLIT_COLUMNS, "split")
    session_column = _find(sheet, session, SESSION_COLUMNS, "session")
    paths = _paths(sheet, path_column, images or file.parent)
    parts, arrivals = _parts(sheet, split_column), _arrivals(sheet, session_column)
    if label_column is not None:
        classes, matrix, findings = _from_cells(sheet.cells(label_column), sign)
    else:
        classes, matrix, findings = _from_columns(sheet, {path_column, split_column, session_column})
    if not (matrix == PRESENT).any():
        raise UserError(f"{file} has no labels: no image has any class")
    places, findings = tuple(f"row {number}" for number in sheet.numbers), sheet.findings + findings
    is_list = label_column is not None
    return Listing(str(file), paths, matrix, classes, parts, arrivals, places, test_fraction, findings, is_list)


def _path_column(sheet: Sheet, given: str | None) -> str:
    found = _find(sheet, given, PATH_COLUMNS, "path")
    if found is None:
        raise UserError(
            f"{sheet.file} has no path column among {', '.join(sheet.columns)}; expected one of "
            f"{', '.join(PATH_COLUMNS)}, or give path=COLUMN"
        )
    return found


def separator_sign(separator: str) -> str:
    """The character that `separator=` means.

    Raises:
        UserError: it is neither a character nor the name of one.
    """
    sign = SEPARATORS.get(separator.lower(), separator)
    if len(sign) != 1 or sign.isalnum():
        raise UserError(f"got {separator!r} for separator, expected a character or one of {', '.join(SEPARATORS)}")
    return sign


def from_lists(tags: Sequence[set[str]]) -> Labels:
    """The classes, sorted, and labels int8 (N, K) of a set of names per image: what is not named is absent."""
    classes = tuple(sorted(set().union(*tags)))
    position = {name: column for column, name in enumerate(classes)}
    matrix = np.full((len(tags), len(classes)), ABSENT, dtype=np.int8)
    rows = np.repeat(np.arange(len(tags)), [len(names) for names in tags])
    matrix[rows, [position[name] for names in tags for name in names]] = PRESENT
    counts = {name: count for name, count in _counts(classes, matrix).items() if not is_denial(name)}
    return classes, matrix, tuple(find_look_alikes(counts))


def _counts(classes: Sequence[str], labels: NDArray[np.int8]) -> dict[str, int]:
    return dict(zip(classes, (labels == PRESENT).sum(axis=0).tolist(), strict=True))


def _find(sheet: Sheet, given: str | None, names: Sequence[str], what: str) -> str | None:
    """The column the user named, else the first one with a usual name, else None."""
    if given is not None:
        if given not in sheet.columns:
            raise unknown_name(f"{what} column in {sheet.file}:", given, sheet.columns)
        return given
    lower = {column.lower(): column for column in reversed(sheet.columns)}
    return next((lower[name] for name in names if name in lower), None)


def _paths(sheet: Sheet, column: str, folder: Path | str) -> tuple[str, ...]:
    names = sheet.texts(column)
    for row, name in enumerate(names):
        if not name:
            raise sheet.error(row, "the image path is empty")
        if "\0" in name:  # no file can have such a name
            raise sheet.error(row, f"got {name!r} as image path, which has a zero byte")
    base = "" if folder == Path() else str(folder)
    return tuple(name if is_url(name) else os.path.join(base, _local(base, name)) for name in names)


def _local(folder: str, name: str) -> str:
    """A path on this machine; a table from Windows may have backslashes between folders."""
    is_foreign = "\\" in name and os.sep == "/" and not os.path.exists(os.path.join(folder, name))
    return name.replace("\\", "/") if is_foreign else name


def _parts(sheet: Sheet, column: str | None) -> tuple[str, ...]:
    if column is None:
        return ("",) * len(sheet.numbers)
    codes = {name: PARTS.index(part) for name, part in SPLITS.items()}
    return tuple(PARTS[code] for code in sheet.codes(column, codes, f"expected one of {', '.join(SPLITS)}"))


def _arrivals(sheet: Sheet, column: str | None) -> NDArray[np.int16]:
    """The session of each row, int16 (N,), 0 where the cell is empty."""
    numbers = np.zeros(len(sheet.numbers), dtype=np.int16)
    for row, cell in enumerate(sheet.texts(column) if column is not None else ()):
        if cell:
            if not re.fullmatch(r"0*[1-9]\d{0,3}(\.0*)?", cell, re.ASCII):
                raise sheet.error(
                    row, f"got {cell!r} in column {column!r}, expected a session from 1 to 9999 or nothing"
                )
            numbers[row] = int(float(cell))
    return numbers


def _from_cells(cells: list[Cell], separator: str) -> Labels:
    classes, matrix, findings = from_lists([_names(cell, separator) for cell in cells])
    if any(isinstance(cell, str) for cell in cells):  # items of a list may contain anything
        counts = _counts(classes, matrix)
        findings += (*find_joined(counts, separator), *find_values(counts))
    return classes, matrix, findings


def _names(cell: Cell, separator: str) -> set[str]:
    if isinstance(cell, list):
        return set(cell)
    pieces = cell.split() if separator == " " else cell.split(separator)
    return {name for piece in pieces if (name := piece.strip())}


def _from_columns(sheet: Sheet, others: set[str | None]) -> Labels:
    classes = tuple(sorted(name for name in sheet.columns if name not in others))
    matrix = np.empty((len(sheet.numbers), len(classes)), dtype=np.int8)
    expected = (
        "expected 1, 0, true, false, yes, no, x, -1 or nothing; no column is named labels, so every other column is "
        "taken as a class; take out columns that are none, or name the one with lists of labels by labels=COLUMN"
    )
    for column, name in enumerate(classes):
        matrix[:, column] = sheet.codes(name, VALUES, expected)
    return classes, matrix, tuple(find_look_alikes(_counts(classes, matrix)))
