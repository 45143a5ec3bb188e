"""A table of values, and how it is written.

A cell is a value. Its text, its place in an order and its columns in a CSV file all come from that value.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from rich.table import Table as TerminalTable

from .table import NOTHING, markdown_table, terminal_table

# A bracket or a star after the end of a row would be taken for its argument.
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {sign: f"{{{sign}}}" for sign in "[]*"}
_LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_LATEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}
_LATEX |= {"±": "$\\pm$", "…": "\\ldots{}"}


@dataclass(frozen=True)
class Spread:
    """A figure over seeds.

    Attributes:
        deviation: of a sample (n - 1); None for one seed.
        decimals: to show.
    """

    mean: float
    deviation: float | None
    count: int
    decimals: int = 1


class Seeds(NamedTuple):
    """How many runs of a group are finished, of how many."""

    finished: int
    started: int


Cell = str | int | float | Spread | Seeds | None


@dataclass(frozen=True)
class Row:
    """A row; `method` and `setting` are what a reader may filter by, empty if it belongs to none."""

    cells: list[Cell]
    method: str = ""
    setting: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        key: unlike that of any other table, fit for a file's name.
        note: what a reader must know, in a sentence or two.
        is_text: the columns to align left.
    """

    key: str
    title: str
    note: str
    headings: list[str]
    rows: list[Row]
    is_text: tuple[int, ...] = (0,)


def spread(values: Iterable[float | None], decimals: int = 1) -> Spread | None:
    """Mean and deviation of the values that are there, None without any."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known), decimals)


def figure_text(figure: Spread | None, decimals: int | None = None) -> str:
    """Such as "82.1 ± 0.4", "82.1" for one seed, and a dash for nothing."""
    if figure is None:
        return NOTHING
    decimals = figure.decimals if decimals is None else decimals
    mean = _fixed(figure.mean, decimals)
    return mean if figure.deviation is None else f"{mean} ± {_fixed(figure.deviation, decimals)}"


def cell_text(cell: Cell) -> str:
    """A cell as a reader sees it."""
    if isinstance(cell, Spread):
        return figure_text(cell)
    if isinstance(cell, Seeds):
        return str(cell.finished) if cell.finished == cell.started else f"{cell.finished} of {cell.started}"
    if isinstance(cell, float):
        return _fixed(cell, 1)
    return NOTHING if cell is None else str(cell)


def sort_key(cell: Cell) -> float | str:
    """What to order a column by: a number where the cell is one, else its text; empty for nothing."""
    if isinstance(cell, Spread | Seeds):
        return float(_two(cell)[0])
    if cell is None or isinstance(cell, str):
        return cell or ""
    return float(cell)


def to_rich(table: Table) -> TerminalTable:
    """The table for a terminal, without title and note."""
    return terminal_table(table.headings, _texts(table), table.is_text)


def to_markdown(table: Table) -> str:
    """The table under its title and note."""
    note = f"{table.note}\n\n" if table.note else ""
    return f"## {table.title}\n\n{note}{markdown_table(table.headings, _texts(table), table.is_text)}"


def to_latex(table: Table) -> str:
    """The table as a tabular that needs the package booktabs and nothing else."""
    columns = "".join("l" if column in table.is_text else "r" for column in range(len(table.headings)))
    head, *body = (" & ".join(map(_escape, line)) + r" \\" for line in (table.headings, *_texts(table)))
    rows = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([f"% {_one_line(table.title)}", rf"\begin{{tabular}}{{{columns}}}", *rows, r"\end{tabular}", ""])


def to_csv(table: Table) -> str:
    """The table with plain numbers: a figure over seeds has a further column for its deviation."""
    further = [_further(row.cells[column] for row in table.rows) for column in range(len(table.headings))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        name for heading, part in zip(table.headings, further, strict=True) for name in _pair(heading, part)
    )
    for row in table.rows:
        writer.writerow(
            value for cell, part in zip(row.cells, further, strict=True) for value in _plain(cell, bool(part))
        )
    return out.getvalue()


def _texts(table: Table) -> list[list[str]]:
    return [[cell_text(cell) for cell in row.cells] for row in table.rows]


def _further(column: Iterable[Cell]) -> str:
    """What a second column beside this one holds, empty if there is none."""
    kinds = {type(cell) for cell in column}
    return "deviation" if Spread in kinds else "started" if Seeds in kinds else ""


def _pair(heading: str, further: str) -> list[str]:
    return [heading, f"{heading} {further}"] if further else [heading]


def _plain(cell: Cell, is_pair: bool) -> list[str]:
    values = _two(cell) if isinstance(cell, Spread | Seeds) else (cell, None)
    texts = [repr(round(value, 4) + 0.0) if isinstance(value, float) else _text(value) for value in values]
    return texts if is_pair else texts[:1]


def _two(cell: Spread | Seeds) -> tuple[float, float | None]:
    return (cell.mean, cell.deviation) if isinstance(cell, Spread) else cell


def _text(value: str | int | None) -> str:
    return "" if value is None else str(value)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _one_line(text))


def _one_line(text: str) -> str:
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def _fixed(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # + 0.0 takes the sign off a zero
