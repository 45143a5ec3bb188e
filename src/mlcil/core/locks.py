"""Locks on files: the system lets go of them when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import UserError


class FileLock:
    """An open lock file, held by one process at a time.

    Arguments:
        path: the lock file, made if it is not there and never removed: another process may wait on it.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)  # another user's will do

    def claim(self, on_wait: Callable[[], None] | None = None) -> None:
        """Hold the lock alone; `on_wait` is called before waiting, if it comes to that."""
        if on_wait is None or not self.try_to_claim():
            if on_wait is not None:
                on_wait()
            self._lock(fcntl.LOCK_EX)

    def try_to_claim(self) -> bool:
        """Hold the lock alone if nobody else holds it; returns whether that worked."""
        try:
            self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let go of the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _lock(self, kind: int) -> None:
        assert self._handle is not None
        fcntl.flock(self._handle, kind)


@contextlib.contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file alone, waiting for whoever else does.

    Arguments:
        on_wait: called before waiting, if it comes to that.

    Raises:
        UserError: the file cannot be made.
    """
    try:
        lock = FileLock(path)
    except OSError as error:
        raise UserError(f"cannot use folder {path.parent}: {error.strerror}") from error
    try:
        lock.claim(on_wait)
        yield
    finally:
        lock.close()
