"""Lines that say how far a long task is."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 5.0  # between two lines; a shorter task passes in silence


def progress_line(say: Callable[[str], None], what: str) -> Callable[[int, int], None]:
    """A function of (done, all) that says every few seconds how far a task is.

    Arguments:
        say: prints a line.
        what: the task, such as "decoding test images".
    """
    said = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS:
            said = time.monotonic()
            say(f"{what}: {done}/{total}")

    return progress
