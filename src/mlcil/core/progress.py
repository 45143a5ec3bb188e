"""Saying how far a long task is."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 5.0  # between two lines; a shorter task passes in silence

Show = Callable[[int, int], None]
"""Called with how many images of how many are done."""


def progress_line(say: Callable[[str], None], what: str) -> Show:
    """A function of (done, all) that says every few seconds how far a task is and how long it will still take.

    Arguments:
        say: prints a line.
        what: the task, such as "decoding test images".
    """
    began = said = time.monotonic()
    before: int | None = None  # how many were done at the first call, from which on the pace counts

    def progress(done: int, total: int) -> None:
        nonlocal began, said, before
        if before is None:
            before, began = done, time.monotonic()
        elif time.monotonic() - said >= SECONDS:
            said = time.monotonic()
            say(f"{what}: {pace(said - began, done, total, before)}")

    return progress


def pace(seconds: float, done: int, total: int, before: int = 0) -> str:
    """How far a pass over images is, in words.

    Arguments:
        seconds: since it began.
        before: how many were done then.
    """
    rate = (done - before) / max(seconds, 1e-9)
    return f"{done}/{total}, {rate:.0f} images/s, {duration((total - done) / max(rate, 1e-9))} left"


def duration(seconds: float) -> str:
    """A length of time in words."""
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1.5:
        return f"{hours:.1f} h"
    return f"{minutes:.0f} min" if minutes >= 1.5 else f"{seconds:.0f} s"
