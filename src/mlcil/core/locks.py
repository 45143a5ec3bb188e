"""Locks on files: the system lets go of them when their process ends, however it ends.

Some network file systems have no such locks. There a second file names the owner; see `OwnerFile`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import UserError

NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # what a file system without locks answers
POLL_SECONDS = 0.2  # between two looks at an owner file


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
        self._owner = OwnerFile(path)

    def claim(self, on_wait: Callable[[], None] | None = None) -> None:
        """Hold the lock alone; `on_wait` is called before waiting, if it comes to that.

        Raises:
            UserError: the file system has no locks, and a process on another machine is the owner.
        """
        if on_wait is None or not self.try_to_claim():
            if on_wait is not None:
                on_wait()
            while not self._lock(fcntl.LOCK_EX):
                time.sleep(POLL_SECONDS)

    def try_to_claim(self) -> bool:
        """Hold the lock alone if nobody else holds it; returns whether that worked; raises as `claim` does."""
        try:
            return self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Let go of the lock."""
        if self._handle is not None:
            self._owner.release()
            os.close(self._handle)
            self._handle = None

    def _lock(self, kind: int) -> bool:
        """Lock the file; False where it has an owner and the system cannot wait for it."""
        assert self._handle is not None
        try:
            fcntl.flock(self._handle, kind)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return self._owner.try_to_claim()
        return True


class OwnerFile:
    """A file that only one process can make, and that names it: a lock where the file system has none.

    The file of a process of this machine that has ended is replaced. Nobody here knows about processes elsewhere.

    Arguments:
        lock: the file to be locked; the owner's stands beside it.
    """

    def __init__(self, lock: Path) -> None:
        self.path = lock.with_name(f"{lock.name}.owner")
        self._is_ours = False

    def try_to_claim(self) -> bool:
        """Become the owner if nobody else is; returns whether that worked.

        Raises:
            UserError: the owner is, or was, a process on another machine.
        """
        self._remove_dead()
        self._is_ours = _make(self.path)
        return self._is_ours

    def release(self) -> None:
        """Remove the file if it is ours."""
        if self._is_ours:
            self.path.unlink(missing_ok=True)
            self._is_ours = False

    def _remove_dead(self) -> None:
        """Remove the file if its process ran on this machine and has ended."""
        found = _read(self.path)
        if found is None or not _has_ended(self.path, found):
            return
        # Of several that find the same dead owner only one may remove it, or it could remove its successor.
        removal = self.path.with_name(f"{self.path.name}.removal")
        if not _make(removal):
            other = _read(removal)
            if other is not None and _has_ended(removal, other):
                removal.unlink(missing_ok=True)
            return
        try:
            if _read(self.path) == found:
                self.path.unlink()
        finally:
            removal.unlink(missing_ok=True)


@contextlib.contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file alone, waiting for whoever else does.

    Arguments:
        on_wait: called before waiting, if it comes to that.

    Raises:
        UserError: the file cannot be made, or is a process's on another machine and the file system has no locks.
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


def _make(path: Path) -> bool:
    """Make a file with the name of this process in it; False if there is one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        os.write(handle, _name_of(os.getpid()).encode())
    finally:
        os.close(handle)
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def _name_of(process: int) -> str:
    """A process as `host pid start`: the same number may be given to another process later."""
    try:
        start = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # there is no such process, or a system without /proc
        start = "-"
    return f"{socket.gethostname()} {process} {start}"


def _has_ended(file: Path, owner: str) -> bool:
    """Whether the owner that a file names has ended.

    Raises:
        UserError: nobody can tell here: it runs on another machine, or the file does not name it.
    """
    words = owner.split()
    if len(words) != 3 or words[0] != socket.gethostname() or not words[1].isdecimal():
        who = f"process {words[1]} on {words[0]}" if len(words) == 3 else "a process that it does not name"
        raise UserError(f"{file} belongs to {who}; wait for it, or delete this file if that process has ended")
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return _name_of(int(words[1])) != owner
