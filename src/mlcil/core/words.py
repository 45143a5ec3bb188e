"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 6  # names that a sentence lists before it counts the rest


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things, such as "1 run" or "2 runs", or "1 image is" and "2 images are"."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(names: Iterable[str], most: int = NAMED) -> str:
    """The names with commas between them, and how many there are beyond the first few."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
