"""Tables as a page shows them: cells with their text and what to sort by, and what a reader may filter by."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .cells import Cell, Table, cell_text, sort_key
from .collect import Collection
from .tables import label


@dataclass(frozen=True)
class PageHeading:
    """The head of a column; `method` is set where the whole column belongs to one."""

    text: str
    is_text: bool
    method: str = ""


@dataclass(frozen=True)
class PageRow:
    """The cells of a row as pairs of text and sort key."""

    cells: list[tuple[str, str]]
    method: str
    setting: str


@dataclass(frozen=True)
class PageTable:
    """A table ready for the template."""

    key: str
    title: str
    note: str
    headings: list[PageHeading]
    rows: list[PageRow]


def page_table(table: Table, collection: Collection) -> PageTable:
    """The table with the method in its first column, and without a setting that is the same in all rows."""
    kept = [column for column, heading in enumerate(table.headings) if heading != "setting" or _has_many(table, column)]
    kept.sort(key=lambda column: table.headings[column] != "method")
    method_of = {label(group): group.method for group in collection.groups}
    headings = [
        PageHeading(table.headings[column], column in table.is_text, method_of.get(table.headings[column], ""))
        for column in kept
    ]
    # A column that is called like a method, but does not belong to one, stands in tables of one row per method.
    if any(row.method for row in table.rows):
        headings = [replace(heading, method="") for heading in headings]
    rows = [PageRow([_cell(row.cells[column]) for column in kept], row.method, row.setting) for row in table.rows]
    return PageTable(table.key, table.title, table.note, headings, rows)


def _has_many(table: Table, column: int) -> bool:
    return len({str(row.cells[column]) for row in table.rows}) > 1


def _cell(cell: Cell) -> tuple[str, str]:
    key = sort_key(cell)
    return cell_text(cell), repr(key) if isinstance(key, float) else key
