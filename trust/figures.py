"""What all trials of trust share: a short and a full size, and figures with the command that repeats them."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

OUT = Path("runs/trust")
_BEGAN = time.monotonic()


class Figure(NamedTuple):
    """What a trial found.

    Attributes:
        name: what was counted or measured.
        value: the outcome.
        wanted: what it must be, in words; empty where nothing was asked.
        is_met: whether it is so.
    """

    name: str
    value: float | str
    wanted: str = ""
    is_met: bool = True


class Size(NamedTuple):
    """How much a trial tries."""

    full: bool
    seed: int

    @property
    def folder(self) -> Path:
        """Where the figures are kept."""
        return OUT / ("full" if self.full else "short")

    def of(self, short: int, full: int) -> int:
        """The one of two numbers that this size has."""
        return full if self.full else short


def size_asked(description: str | None) -> Size:
    """What the command line says: `--full` for ten times as much, `--seed` for other random choices."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="about ten times as much")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is chosen at random")
    asked = parser.parse_args()
    return Size(asked.full, asked.seed)


def report(title: str, figures: Sequence[Figure], size: Size, **further: Any) -> None:
    """Print the figures, and keep them in runs/trust under the script's name; the process ends with 1 if one fails.

    Arguments:
        further: what else belongs into the JSON, such as a curve.
    """
    name = Path(sys.argv[0]).stem
    table = Table("what", "found", "wanted", "", title=title)
    for one in figures:
        shown = one.value if isinstance(one.value, str) else f"{one.value:,.6g}"
        table.add_row(one.name, shown, one.wanted, ("yes" if one.is_met else "NO") if one.wanted else "")
    Console(width=140).print(table)
    found = {
        "title": title,
        "command": " ".join(["python", f"trust/{name}.py", *sys.argv[1:]]),
        "seconds": round(time.monotonic() - _BEGAN, 1),
        "python": platform.python_version(),
        "figures": [one._asdict() for one in figures],
        **further,
    }
    size.folder.mkdir(parents=True, exist_ok=True)
    (size.folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    if not all(one.is_met for one in figures):
        sys.exit(1)
