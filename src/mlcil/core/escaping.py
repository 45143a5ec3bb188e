"""Text that others have made, such as labels and names of files, in what is printed and written: it does nothing there.

LaTeX is beside the tables (`reports.table`); HTML is escaped by Jinja and by the browser's own functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_JOINERS = "\u200c\u200d"  # not printable by Python's rules, but Persian words and emoji are written with them
_MARKDOWN = frozenset("\\`*[]<>|&~")
# Where a cell begins, be it only for a program that takes another sign than the comma for the separator, and what makes
# it a formula there, such as the wide signs of East Asian text.
_BEGINS, _FORMULA = r"(?:^|(?<=[;|\t\r\n]))", r"(?=['\"\s\0]*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])"
_UNGUARDED, _GUARDED = re.compile(_BEGINS + _FORMULA), re.compile(f"{_BEGINS}'{_FORMULA}")
_QUOTED = re.compile(r'^\s|[",\r\n]|\s$')


def printable(text: str) -> str:
    """The text with escapes in place of what a terminal would act on, such as colours, a new line or a direction."""
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or one in _JOINERS else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


def markdown(text: str) -> str:
    """The text in one line that Markdown shows as it is, in a table too."""
    plain = printable(" ".join(text.split()))
    return "".join(f"\\{one}" if one in _MARKDOWN else one for one in plain)


def csv_line(cells: Iterable[str | float | None], number: Callable[[float], str] = "{:.6g}".format) -> str:
    """A line of a CSV file with commas. What a spreadsheet would compute, such as =HYPERLINK(...), stays text.

    Such text gets an apostrophe before it, which spreadsheets take as "this is text"; `unguarded` takes it away again.

    Arguments:
        number: how a float is written.
    """
    return ",".join(_cell(one, number) for one in cells) + "\n"


def unguarded(cell: str) -> str:
    """The text of a cell that `csv_line` has written."""
    return _GUARDED.sub("", cell)


def _cell(value: str | float | None, number: Callable[[float], str]) -> str:
    if not isinstance(value, str):
        return "" if value is None else number(value) if isinstance(value, float) else str(value)
    text = _UNGUARDED.sub("'", value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text
