"""Reading a table of images: one row per image, in CSV or Parquet."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name
from .images import ABSENT, PRESENT, UNKNOWN, DataSet, LabelledImages

PATH_COLUMNS = ("path", "file", "filename", "image")
LABEL_COLUMNS = ("labels", "tags")
SPLIT_COLUMNS = ("split", "set")
SPLITS = {"train": "train", "trainval": "train"} | dict.fromkeys(("test", "val", "valid", "validation"), "test")
# Programs write a column with gaps as floats, hence "1.0".
VALUES = (
    dict.fromkeys(("1", "1.0", "true"), PRESENT)
    | dict.fromkeys(("0", "0.0", "false"), ABSENT)
    | dict.fromkeys(("", "-1", "-1.0"), UNKNOWN)
)


@dataclass(frozen=True)
class _Table:
    """The cells of a table as text; `numbers` are the row numbers that a person would see."""

    file: Path
    columns: list[str]
    rows: list[list[str]]
    numbers: list[int]

    def column(self, name: str) -> list[str]:
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def find(self, given: str | None, names: Sequence[str], what: str) -> str | None:
        """The column the user named, else the first one with a usual name, else None."""
        if given is not None:
            if given not in self.columns:
                raise unknown_name(f"{what} column in {self.file}:", given, self.columns)
            return given
        lower = {column.lower(): column for column in reversed(self.columns)}
        return next((lower[name] for name in names if name in lower), None)

    def error(self, row: int, message: str) -> UserError:
        return UserError(f"{self.file}, row {self.numbers[row]}: {message}")


def read_table(
    file: Path,
    images: Path | None = None,
    path: str | None = None,
    labels: str | None = None,
    split: str | None = None,
    test_fraction: float = 0.2,
) -> DataSet:
    """Read images and labels from a CSV or Parquet file.

    Arguments:
        file: the table; a row per image.
        images, path, test_fraction: see `sources.SOURCES`.
        labels: a column of labels separated by `;`. Without one, every remaining column is a class with the values
            1, 0 or nothing (unknown).
        split: a column that says train or test. Without one, a hash of each path decides, so that an image stays in
            its part when rows are added.

    Returns:
        Both parts with labels int8 (N, K), rows in the table's order, classes sorted by name.

    Raises:
        UserError: the file is missing or something in it is wrong; the message names the row.
    """
    table = _load(file)
    path_column = table.find(path, PATH_COLUMNS, "path")
    if path_column is None:
        raise UserError(f"{file} has no path column; expected one of {', '.join(PATH_COLUMNS)}, or give path=COLUMN")
    split_column, label_column = table.find(split, SPLIT_COLUMNS, "split"), table.find(labels, LABEL_COLUMNS, "label")
    names = [cell.strip() for cell in table.column(path_column)]
    paths = _resolve(table, names, images or file.parent)
    is_test = _is_test(table, names, split_column, test_fraction)
    if label_column is not None:
        classes, matrix = _from_lists(table.column(label_column))
    else:
        classes, matrix = _from_columns(table, {path_column, split_column})
    if not (matrix == PRESENT).any():
        raise UserError(f"{file} has no labels: no image has any class")
    whole = LabelledImages(paths, matrix, classes, "train")
    return DataSet(_part(whole, ~is_test, "train", file), _part(whole, is_test, "test", file))


def _load(file: Path) -> _Table:
    readers = {".csv": _load_csv, ".parquet": _load_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"cannot read {file}: a table must end in {' or '.join(readers)}")
    if not file.is_file():
        raise UserError(f"table {file} does not exist or is not a file")
    table = reader(file)
    for place, name in enumerate(table.columns):
        if not name:
            raise UserError(f"{file}: column {place + 1} has no name; name it or leave it out")
        if name in table.columns[:place]:
            raise UserError(f"{file} has two columns named {name!r}; column names must differ")
    if not table.rows:
        raise UserError(f"{file} is empty: expected a header and at least one row")
    return table


def _load_csv(file: Path) -> _Table:
    rows: list[list[str]] = []
    numbers: list[int] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            columns = [name.strip() for name in next(reader, [])]
            for row in reader:
                if not row:
                    continue
                if len(row) != len(columns):
                    raise UserError(f"{file}, row {reader.line_num}: got {len(row)} cells, expected {len(columns)}")
                rows.append(row)
                numbers.append(reader.line_num)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not a CSV file in UTF-8: {error}") from None
    return _Table(file, columns, rows, numbers)


def _load_parquet(file: Path) -> _Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {file} needs pyarrow: pip install 'mlcil[parquet]'") from None
    try:
        content = parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(f"{file} is not a Parquet file: {reason}") from None
    cells = [[_text(value) for value in column.to_pylist()] for column in content.columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return _Table(file, list(content.column_names), rows, list(range(1, len(rows) + 1)))


def _text(value: object) -> str:
    """A Parquet cell as CSV would have it; NaN is a gap, a list is joined by `;`."""
    if value is None or value != value:
        return ""
    if isinstance(value, list):
        return ";".join(str(item) for item in value if item is not None)
    return str(value)


def _resolve(table: _Table, names: list[str], folder: Path) -> tuple[str, ...]:
    first_row: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise table.error(row, "the image path is empty")
        whole = str(folder / name)
        if whole in first_row:
            raise table.error(row, f"{name!r} already stands in row {table.numbers[first_row[whole]]}")
        first_row[whole] = row
    return tuple(first_row)


def _is_test(table: _Table, names: list[str], column: str | None, fraction: float) -> NDArray[np.bool_]:
    """Which rows are test images, bool (N,)."""
    if column is None:
        if not 0 < fraction < 1:
            raise UserError(f"got {fraction} for test_fraction, expected a number between 0 and 1")
        return np.array([_share(name) < fraction for name in names])
    cells = [cell.strip().lower() for cell in table.column(column)]
    for row, cell in enumerate(cells):
        if cell not in SPLITS:
            raise table.error(row, f"got {cell!r} in column {column!r}, expected one of {', '.join(SPLITS)}")
    return np.array([SPLITS[cell] == "test" for cell in cells])


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone, on every machine."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _from_lists(cells: list[str]) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    tags = [{tag for part in cell.split(";") if (tag := part.strip())} for cell in cells]
    classes = tuple(sorted(set().union(*tags)))
    position = {name: column for column, name in enumerate(classes)}
    matrix = np.zeros((len(cells), len(classes)), dtype=np.int8)
    for row, names in enumerate(tags):
        matrix[row, [position[name] for name in names]] = PRESENT
    return classes, matrix


def _from_columns(table: _Table, others: set[str | None]) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    classes = tuple(sorted(name for name in table.columns if name not in others))
    matrix = np.empty((len(table.rows), len(classes)), dtype=np.int8)
    for column, name in enumerate(classes):
        for row, cell in enumerate(table.column(name)):
            value = VALUES.get(cell.strip().lower())
            if value is None:
                raise table.error(
                    row,
                    f"got {cell!r} in column {name!r}, expected 1, 0, true, false, -1 or nothing",
                )
            matrix[row, column] = value
    return classes, matrix


def _part(whole: LabelledImages, chosen: NDArray[np.bool_], split: str, file: Path) -> LabelledImages:
    if not chosen.any():
        raise UserError(f"{file} has no {split} images; use a split column with both, or another test_fraction")
    return replace(whole.subset(np.flatnonzero(chosen)), split=split)
