"""Text in CSV files that people open in a spreadsheet, which would compute a cell such as =HYPERLINK(...) as a formula.

Such text gets an apostrophe before it, which spreadsheets take as "this is text". Reading takes it away again, so every
name comes back as it was, also one that begins with apostrophes itself.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_GUARDED = re.compile(r"'+[=+\-@\t\r]")


def guarded(text: str) -> str:
    """The text as a cell that no spreadsheet computes."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """The inverse of `guarded`."""
    return cell[1:] if _GUARDED.match(cell) else cell
