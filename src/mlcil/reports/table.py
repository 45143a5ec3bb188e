"""The one kind of table: cells that are values, and how they are written in a terminal, in files and on the page.

The text of a cell, its place in a sorted column and its columns in a CSV file all come from its value.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table as TerminalTable
from rich.text import Text

from ..core.escaping import csv_line, markdown

K = TypeVar("K", bound=Hashable)
NOTHING = "-"
KNOWN = "†"  # marks runs whose weights may know the classes
KNOWN_NOTE = (
    "† The pretrained weights were accepted although they seem to have been trained on the classes of the data set "
    "(allow_known_classes): these numbers say nothing about learning new classes."
)
# A bracket or a star at the start of a row would be taken for an argument of the row break before it.
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {sign: f"{{{sign}}}" for sign in "[]*"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
_LATEX |= {"±": "$\\pm$", "…": "\\ldots{}", "†": "\\textdagger{}"}


@dataclass(frozen=True)
class Spread:
    """A number measured with several seeds."""

    mean: float
    deviation: float | None  # the sample deviation (n - 1); None for one seed
    decimals: int = 1  # how many to show


Cell = str | int | float | Spread | None


@dataclass(frozen=True)
class Row:
    """A row, and the method and the setting that a reader may filter it by; empty if it belongs to none."""

    cells: list[Cell]
    method: str = ""
    setting: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its texts."""

    name: str  # what its files are called
    title: str
    note: str  # what a reader must know, in a sentence or two
    headings: list[str]
    rows: list[Row]
    methods: Mapping[str, str] = field(default_factory=dict)  # to which a whole column belongs, by its heading

    def is_text(self, column: int) -> bool:
        """Whether a column holds text, which is aligned left and sorted from A to Z."""
        return any(isinstance(row.cells[column], str) for row in self.rows)

    def without_empty_columns(self) -> Table:
        """The same table without the columns that have no value in any row."""
        kept = [index for index in range(len(self.headings)) if any(row.cells[index] is not None for row in self.rows)]
        rows = [replace(row, cells=[row.cells[index] for index in kept]) for row in self.rows]
        return replace(self, headings=[self.headings[index] for index in kept], rows=rows)


def spread(values: Iterable[float | None], decimals: int = 1) -> Spread | None:
    """Mean and deviation of the values that are known; None if none is."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, decimals)


def spreads(runs: Iterable[Mapping[K, float | None]], decimals: int = 1) -> dict[K, Spread]:
    """The spread over runs of each key's values, such as those of a class; keys without a value are left out."""
    values: dict[K, list[float | None]] = {}
    for run in runs:
        for key, value in run.items():
            values.setdefault(key, []).append(value)
    found = {key: spread(ones, decimals) for key, ones in values.items()}
    return {key: one for key, one in found.items() if one is not None}


def fixed(value: float, decimals: int = 1) -> str:
    """A number with a fixed number of decimals, and never "-0.0"."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def cell_text(cell: Cell) -> str:
    """What a reader sees, such as "82.1 ± 0.4" over seeds, or a dash for nothing."""
    if isinstance(cell, Spread):
        parts = [cell.mean] if cell.deviation is None else [cell.mean, cell.deviation]
        return " ± ".join(fixed(part, cell.decimals) for part in parts)
    if isinstance(cell, float):
        return fixed(cell)
    return NOTHING if cell is None else str(cell)


def sort_key(cell: Cell) -> str:
    """What the page sorts a column by: a number where the cell is one, otherwise its text; empty for nothing."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return repr(float(cell.mean if isinstance(cell, Spread) else cell))


def to_terminal(table: Table) -> TerminalTable:
    """The table under its title, without its note, except for what a mark means."""
    shown = TerminalTable(title=Text(table.title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.caption, shown.caption_justify = (Text(KNOWN_NOTE) if KNOWN_NOTE in table.note else None), "left"
    for column, heading in enumerate(table.headings):
        shown.add_column(Text(heading), justify="left" if table.is_text(column) else "right")
    for row in table.rows:
        shown.add_row(*(Text(cell_text(cell)) for cell in row.cells))
    return shown


def to_markdown(table: Table) -> str:
    """The table under its title and note."""
    rule = ["---" if table.is_text(column) else "---:" for column in range(len(table.headings))]
    lines = [table.headings, rule, *([cell_text(cell) for cell in row.cells] for row in table.rows)]
    body = "".join("| " + " | ".join(map(markdown, line)) + " |\n" for line in lines)
    note = f"{table.note}\n\n" if table.note else ""
    return f"## {markdown(table.title)}\n\n{note}{body}"


def to_latex(table: Table) -> str:
    """The table as a tabular, which needs the package booktabs and nothing else."""
    columns = "".join("l" if table.is_text(column) else "r" for column in range(len(table.headings)))
    lines = [table.headings, *([cell_text(cell) for cell in row.cells] for row in table.rows)]
    head, *body = (" & ".join(map(_escape_latex, line)) + r" \\" for line in lines)
    rows = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([f"% {_one_line(table.title)}", rf"\begin{{tabular}}{{{columns}}}", *rows, r"\end{tabular}", ""])


def to_csv(table: Table) -> str:
    """The table with plain numbers: deviations have a column of their own."""
    columns = [_csv_columns(name, [row.cells[k] for row in table.rows]) for k, name in enumerate(table.headings)]
    rows = zip(*(cells for column in columns for cells in column), strict=True)
    return "".join(csv_line(row, number=lambda value: repr(round(value, 4) + 0.0)) for row in rows)


def _csv_columns(heading: str, cells: Sequence[Cell]) -> list[list[str | float | None]]:
    """A column with its heading, and a second one if the cells have deviations."""
    columns = [[heading, *(cell.mean if isinstance(cell, Spread) else cell for cell in cells)]]
    if any(isinstance(cell, Spread) for cell in cells):
        columns.append(
            [f"{heading} deviation", *(cell.deviation if isinstance(cell, Spread) else None for cell in cells)]
        )
    return columns


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _one_line(text))


def _one_line(text: str) -> str:
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def shorten(names: Sequence[str], width: int = 28) -> str:
    """The names in a list of about `width` characters, with the number of names that were left out."""
    shown = list(names)
    while len(shown) > 1 and len(", ".join(shown)) > (width if len(shown) == len(names) else width - 6):
        shown.pop()
    text, left = ", ".join(shown), len(names) - len(shown)
    return (text if len(text) <= width else text[: width - 1] + "…") + (f" +{left}" if left else "")
