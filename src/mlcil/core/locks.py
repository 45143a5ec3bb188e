"""Locks on files: the system lets go of them when their process ends, however it ends.

Some network file systems have no such locks. There a second file names the owner; see `OwnerFile`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
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
        path: made if it is not there, and never removed: another process may wait for it.

    Raises:
        UserError: it cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._owner = path, OwnerFile(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle: int | None = _open(path)
        except OSError as error:
            raise UserError(f"cannot use folder {path.parent}: {error.strerror or error}") from error

    def try_to_claim(self) -> bool:
        """Hold the lock alone if nobody else holds it; returns whether that worked.

        Raises:
            UserError: the system refused, or it has no locks and a process on another machine is the owner.
        """
        return self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def wait(self) -> None:
        """Hold the lock alone once nobody else holds it; raises as `try_to_claim` does."""
        while not self._lock(fcntl.LOCK_EX):
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Let go of the lock."""
        if self._handle is not None:
            self._owner.release()
            os.close(self._handle)
            self._handle = None

    def _lock(self, kind: int) -> bool:
        """Lock the file; False where somebody else holds it, unless the system can wait for them."""
        assert self._handle is not None
        try:
            try:
                fcntl.flock(self._handle, kind)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                return self._owner.try_to_claim()
        except BlockingIOError:
            return False
        except OSError as error:
            # Of a file that may only be read, NFS says that it is no open file.
            may_not = "this file system locks only files that you may write"
            reason = may_not if error.errno == errno.EBADF else error.strerror or error
            raise UserError(f"cannot lock {self._path}: {reason}") from error
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
        if (other := _read(removal)) is not None and _has_ended(removal, other):
            removal.unlink(missing_ok=True)
        if _make(removal):
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
    lock = FileLock(path)
    try:
        if not lock.try_to_claim():
            on_wait()
            lock.wait()
        yield
    finally:
        lock.close()


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # NFS locks only what may be written
    except OSError:
        return os.open(path, os.O_RDONLY)  # elsewhere another user's will do, or one on a disk that is read-only


def _make(path: Path) -> bool:
    """Make a file with the name of this process in it, at once and whole; False if there is one."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        partial.write_text(_name_of(os.getpid()))
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
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
