"""Ctrl-C and SIGTERM: one line that says what is kept and how to go on, and the process ends at once.

Ending at once is safe at any moment, since every file is written whole or not at all. An exception would not be: it
comes up wherever the program happens to be, in an import or in a callback from C++, where it is lost or aborts.
Training is the exception: the first signal waits there until the step under way is saved, the second one does not.
This module imports next to nothing, so that the handler is in place before anything that takes time.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from .errors import UserError

if TYPE_CHECKING:
    from subprocess import Popen

_SILENCE = "ignore::UserWarning:multiprocessing.resource_tracker"
_SHOW_CURSOR, _CLEAR_LINE = "\x1b[?25h", "\r\x1b[2K"  # what a live display leaves behind


def _nothing_done() -> str:
    return "interrupted before anything was done; the same command starts again"


_explain: Callable[[], str] = _nothing_done
_followers: Sequence[Popen[bytes]] = ()
_is_postponed = False
_waiting = 0  # the signal that waits for the work under way, 0 for none


def install() -> None:
    """Let SIGINT and SIGTERM end this process with one line; a signal that it was started to ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _heed)
    _silence_the_tracker()
    atexit.register(_ignore)  # else Python restores the defaults while it tears itself down


def explain_with(explain: Callable[[], str]) -> None:
    """Set what makes the line.

    Arguments:
        explain: called when the signal comes, wherever the program is then; so it must not import anything.
    """
    global _explain
    _explain = explain


def end_with_me(processes: Sequence[Popen[bytes]]) -> None:
    """Name processes that are to end with this one without a word; the list may still grow."""
    global _followers
    _followers = processes


@contextmanager
def postponed() -> Iterator[None]:
    """Let the first signal wait while work is under way that asks `waiting` and calls `end`.

    If the work stops without having done so, the process ends then; only a `UserError` says more than the signal does.
    """
    global _is_postponed
    _is_postponed, refused = True, False
    try:
        yield
    except UserError:
        refused = True
        raise
    finally:
        _is_postponed = False
        if _waiting and not refused:
            end(_waiting)


def waiting() -> int:
    """The number of the signal that waits for the work under way, 0 if there is none."""
    return _waiting


def is_first_process() -> bool:
    """Of the processes of one run on a machine, only the first prints."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _silence_the_tracker() -> None:
    """Keep a process of Python's own, which clears up after the workers of one that ended, from warning about that."""
    given = os.environ.get("PYTHONWARNINGS", "")
    if _SILENCE not in given:
        os.environ["PYTHONWARNINGS"] = f"{given},{_SILENCE}".lstrip(",")


def _heed(number: int, frame: FrameType | None) -> None:
    global _waiting
    if not _is_postponed or _waiting:
        end(number)
    _waiting = number
    if is_first_process():
        _print_line(lambda: "saving after the step under way; a second signal ends at once")


def end(number: int) -> NoReturn:
    """End this process now, as a signal of this number does."""
    _ignore()
    for process in _followers:
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)  # they may be waiting for this process
    if is_first_process():
        _print_line(_explain)
    signal.signal(number, signal.SIG_DFL)  # whoever reads our output may have stopped reading
    with suppress(Exception):
        sys.__stdout__.flush()  # type: ignore[union-attr]
    os._exit(128 + number)


def _ignore() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _print_line(explain: Callable[[], str]) -> None:
    text = "interrupted"
    with suppress(Exception):
        text = explain()
    with suppress(OSError):
        before = _SHOW_CURSOR + _CLEAR_LINE if os.isatty(2) else ""
        line = f"{before}mlcil: {text}\n".encode(errors="backslashreplace")  # names of files need not be valid text
        os.write(2, line)  # not sys.stderr, which may be in use right now
