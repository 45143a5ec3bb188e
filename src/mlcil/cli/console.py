"""Where commands print."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from ..core.escaping import printable

if TYPE_CHECKING:
    from rich.console import Console

    from ..core.progress import Show

PROGRESS_SECONDS = 5.0  # between two lines of progress


def make_console() -> Console:
    """The terminal, or whatever standard output is; files have no edge at which lines would be broken."""
    from .plain_console import PlainConsole

    console = PlainConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else PlainConsole(width=140)


def say(console: Console, text: str) -> None:
    """Print one line as it is; what a terminal would act on is escaped."""
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def to_stderr(text: str) -> None:
    """Print one line that is not part of the result."""
    print(printable(text), file=sys.stderr, flush=True)


def progress(before: int = 0) -> Show:
    """What prints now and then how many photos are done; `before` of them were done before."""
    from ..core.progress import pace

    began, said = time.monotonic(), time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS:
            said = time.monotonic()
            to_stderr(pace(said - began, done + before, total + before, before))

    return show
