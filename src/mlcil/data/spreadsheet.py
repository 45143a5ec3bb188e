"""Cells of tables as people have them: CSV in any dialect, Excel, Parquet and JSON Lines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.escaping import unguarded
from .images import Finding, Level
from .text_files import read_text

Cell = str | list[str]
SEPARATORS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)  # Excel's own, above the header
_OTHERS = (".xls", ".ods", ".numbers")  # known, but not read


@dataclass(frozen=True)
class Sheet:
    """The cells of a table.

    Attributes:
        file: where they come from.
        columns: the values of each column by its name, as the file has them.
        numbers: for each row the number that a person sees beside it.
        findings: what was noticed while it was read.
    """

    file: Path
    columns: dict[str, Sequence[Any]]
    numbers: list[int]
    findings: tuple[Finding, ...] = ()

    def cells(self, name: str) -> list[Cell]:
        """A column as text without blanks around it; a list stays a list."""
        return [
            [self._item(row, name, item) for item in value if self._item(row, name, item)]
            if isinstance(value, list)
            else self._item(row, name, value)
            for row, value in enumerate(self.columns[name])
        ]

    def texts(self, name: str) -> list[str]:
        """A column as text, which must not have lists."""
        return [self._item(row, name, value) for row, value in enumerate(self.columns[name])]

    def codes(self, name: str, allowed: Mapping[str, int], expected: str) -> list[int]:
        """A column whose cells, in lower case, stand for numbers; each distinct one is looked at once."""
        values = self.columns[name]
        code: dict[Any, int] = {}
        with contextlib.suppress(TypeError):  # a list cannot be looked up, which the loop below reports
            for value in set(values):
                if (text := _text(value).lower()) in allowed:
                    code[value] = allowed[text]
        try:
            return list(map(code.__getitem__, values))
        except (KeyError, TypeError):
            texts = self.texts(name)
        row = next(row for row, text in enumerate(texts) if text.lower() not in allowed)
        raise self.error(row, f"got {texts[row]!r} in column {name!r}, {expected}")

    def _item(self, row: int, name: str, value: Any) -> str:
        try:
            return _text(value)
        except TypeError:
            what = "a list" if isinstance(value, list) else "a structure"
            raise self.error(row, f"got {what} in column {name!r}, expected text or a number") from None

    def error(self, row: int, message: str) -> UserError:
        """A mistake in a row."""
        return UserError(f"{self.file}, row {self.numbers[row]}: {message}")


def read_sheet(file: Path, known: Collection[str]) -> Sheet:
    """Read a table; its first row, or in Parquet and JSON Lines its fields, name the columns.

    Arguments:
        file: the table; how its name ends says what it is.
        known: column names in lower case; a separator of cells that gives one of them is the right one.

    Raises:
        UserError: the file is missing or damaged, has no rows, or columns without or with the same name.
    """
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        hint = "save it as .xlsx or .csv" if file.suffix.lower() in _OTHERS else f"it must end in {_or(READERS)}"
        raise UserError(f"cannot read {file} as a table: {hint}")
    if not os.path.isfile(file):  # unlike a Path's own, no error for a name that is too long
        raise UserError(f"table {file} does not exist or is not a file")
    sheet = reader(file, known)
    if not sheet.numbers:
        raise UserError(f"{file} is empty: expected a header and at least one row")
    return sheet


def is_table(path: Path) -> bool:
    """Whether a file's name ends as a spreadsheet's does."""
    return path.suffix.lower() in (*READERS, *_OTHERS)


def _read_csv(file: Path, known: Collection[str]) -> Sheet:
    text, findings = read_text(file)
    above = _SEPARATOR_LINE.match(text)
    stream = io.StringIO(text[above.end() :] if above else text, newline="")
    separator = above[1] if above else _separator(stream, known)
    stream.seek(0)
    reader = csv.reader(stream, delimiter=separator, skipinitialspace=True, strict=True)
    records: list[list[str]] = []
    try:
        records.extend(([unguarded(cell) for cell in row] for row in reader) if "'" in text else reader)
    except csv.Error as error:
        place = f"{file}, row {len(records) + 1}"
        raise UserError(f"{place}: a quote is not closed, or text follows a closing quote ({error})") from None
    hint = (
        f"; cells are separated by {separator!r} here, so a cell that contains it, such as a label list, needs quotes"
    )
    return _make_sheet(file, records, hint, findings)


def _separator(stream: io.StringIO, known: Collection[str]) -> str:
    """What separates the cells of the header: what gives a known column, else what gives most columns."""

    def worth(separator: str) -> tuple[bool, int]:
        stream.seek(0)
        reader = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        try:
            header = next((row for row in reader if _is_filled(row)), [])
        except csv.Error:
            return False, 0
        return any(name.strip().lower() in known for name in header), len(header)

    return max(SEPARATORS, key=worth)


def _read_excel(file: Path, known: Collection[str]) -> Sheet:
    try:
        import openpyxl
    except ImportError:
        raise UserError(f"reading {file} needs openpyxl: pip install 'mlcil[excel]'") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # about styles and the like
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            records, read = [], book.worksheets[0].title
            for sheet in book.worksheets:
                sheet.reset_dimensions()  # some programs write wrong ones
                records, read = [list(row) for row in sheet.iter_rows(values_only=True)], sheet.title
                if any(map(_is_filled, records)):
                    break
            count = len(book.worksheets)
            book.close()
    except Exception as error:  # a damaged workbook raises almost anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} is not an Excel workbook, or needs a password: {what}") from None
    note = f"{file} has {count} sheets; only {read!r}, the first that is not empty, was read"
    findings = (Finding(Level.NOTE, note),) if count > 1 else ()
    return _make_sheet(file, records, "", findings, is_ragged=True)


def _make_sheet(
    file: Path, records: list[list[Any]], hint: str, findings: tuple[Finding, ...], is_ragged: bool = False
) -> Sheet:
    """A sheet of records, the first of which that is not empty is the header.

    Arguments:
        is_ragged: whether a record may be shorter than the header because its last cells are empty.
    """
    filled = [(number, record) for number, record in enumerate(records, start=1) if _is_filled(record)]
    if not filled:
        return Sheet(file, {}, [])
    header = _trimmed([_text(name) for name in filled[0][1]])
    rows: list[list[Any]] = []
    for number, record in filled[1:]:
        row = record if len(record) == len(header) else _trimmed(record, least=len(header))
        row = row + [None] * (len(header) - len(row)) if is_ragged else row
        if len(row) != len(header):
            raise UserError(f"{file}, row {number}: got {len(row)} cells, expected {len(header)}{hint}")
        rows.append(row)
    columns = dict[str, Sequence[Any]]()
    for place, (name, values) in enumerate(zip(header, zip(*rows, strict=True), strict=False), 1):
        if name:
            if name in columns:
                raise UserError(f"{file} has two columns named {name!r}; column names must differ")
            columns[name] = values
        elif _is_filled(values):
            raise UserError(f"{file}: column {place} has no name; name it or leave it out")
    return Sheet(file, columns, [number for number, _ in filled[1:]], findings)


def _is_filled(values: Iterable[Any]) -> bool:
    return any(value is not None and (not isinstance(value, str) or value.strip()) for value in values)


def _trimmed(record: list[Any], least: int = 0) -> list[Any]:
    """A record without its empty end, but no shorter than `least`."""
    stop = len(record)
    while stop > least and not _is_filled(record[stop - 1 : stop]):
        stop -= 1
    return record[:stop]


def _read_parquet(file: Path, known: Collection[str]) -> Sheet:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {file} needs pyarrow: pip install 'mlcil[parquet]'") from None
    try:
        content = parquet.read_table(file)
        names = list(content.column_names)
        columns = {name: column.to_pylist() for name, column in zip(names, content.columns, strict=True)}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise UserError(f"{file} is not a Parquet file: {reason}") from None
    if len(columns) < len(names):
        raise UserError(f"{file} has two columns of the same name; column names must differ")
    return Sheet(file, columns, list(range(1, content.num_rows + 1)))


def _read_json_lines(file: Path, known: Collection[str]) -> Sheet:
    text, findings = read_text(file)
    entries: list[dict[str, Any]] = []
    numbers = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers too long to read
            raise UserError(f"{file}, row {number}: not JSON: {error}") from None
        if not isinstance(entry, dict):
            raise UserError(f'{file}, row {number}: expected an object such as {{"path": "a.jpg", "labels": ["cat"]}}')
        entries.append(entry)
        numbers.append(number)
    names = dict.fromkeys(name for entry in entries for name in entry)
    return Sheet(file, {name: [entry.get(name) for entry in entries] for name in names}, numbers, findings)


def _text(value: Any) -> str:
    """One value as a person would type it; NaN is a gap, 1.0 is 1."""
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:
        return ""
    if isinstance(value, dict | list | bytes):
        raise TypeError
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _or(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}"


READERS: dict[str, Callable[[Path, Collection[str]], Sheet]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _read_csv),
    ".xlsx": _read_excel,
    ".parquet": _read_parquet,
    ".jsonl": _read_json_lines,
}
