"""Writing files so that a crash, a kill or a full disk never leaves a broken one behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import UserError
from .remote import check_local

PARTIAL = ".partial"  # how the name of a file, or of the folder around it, ends while it is being written
_HERE = hashlib.blake2b(socket.gethostname().encode(), digest_size=3).hexdigest()
_ABANDONED = re.compile(rf"\..+\.([0-9a-f]{{6}})-[a-z0-9_]{{8}}{re.escape(PARTIAL)}")
# Some network file systems lock for one machine alone, so what one of another name has left must be older than this.
_ELSEWHERE = 24 * 3600  # seconds
_tidied: set[Path] = set()  # folders in which this process has looked for what killed ones left


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file in a temporary folder beside `path`, then move it into place in one step.

    A file that stood there before passes its permissions on.

    Raises:
        UserError: the file system refused (full, read-only, ...). Whatever stood at `path` is untouched.
    """
    check_local(path)
    try:
        with _partial_folder(path) as folder:
            partial = folder / path.name
            write(partial)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            partial.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
            partial.replace(path)
            flush_folder(path.parent)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}. What was saved before is intact; "
            "make room and repeat the command to continue"
        ) from error


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a temporary neighbour of a new folder, then move it into place in one step.

    Raises:
        UserError: something is at `path` already, or the file system refused; nothing is left behind then.
    """
    check_local(path)
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists already; choose another place, nothing is ever overwritten")
    try:
        with _partial_folder(path) as partial:
            try:
                fill(partial)
            except UserError as error:
                if str(partial) not in str(error):
                    raise
                raise UserError(str(error).replace(str(partial), str(path))) from error  # the name that people know
            partial.chmod(0o755)
            flush_folder(partial)
            partial.rename(path)  # fails unless the place is free, or an empty folder that somebody just made
            flush_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _partial_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside a path, locked as long as somebody writes there, and removed in the end."""
    _make_folder(path.parent)
    _tidy(path.parent)
    while True:
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.{_HERE}-", suffix=PARTIAL))
        try:
            handle = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks: there nothing that is left is removed
            fcntl.flock(handle, fcntl.LOCK_EX)
        if partial.exists():
            break
        os.close(handle)  # before it was locked, another process has taken it for abandoned
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """Make a folder and those that it is in, so that they survive a power cut."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def _tidy(folder: Path) -> None:
    """Remove what killed processes were writing in a folder; once in a process, for a folder may hold many files."""
    if folder in _tidied:
        return
    _tidied.add(folder)
    with contextlib.suppress(OSError):
        for place in os.scandir(folder):
            found = _ABANDONED.fullmatch(place.name)
            if found and (found[1] == _HERE or time.time() - place.stat().st_mtime > _ELSEWHERE):
                _remove_abandoned(Path(place.path))


def _remove_abandoned(partial: Path) -> None:
    with contextlib.suppress(OSError, UserError):  # it is gone, another user's, or on a file system without locks
        handle = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if somebody is writing there
            remove(partial)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, if it is there, or a folder with all that is in it.

    Raises:
        UserError: the file system refused.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot remove {path}: {error.strerror or error}; repeat the command to continue") from error


def flush_folder(folder: Path) -> None:
    """Let the names of files in a folder survive a power cut, where the file system can promise that."""
    with contextlib.suppress(OSError):  # some cannot; the files themselves are whole in any case
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""

    def put(partial: Path) -> None:
        partial.write_bytes(data)

    write_atomically(path, put)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON to `path` atomically. NaN is refused: it is not JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Read a JSON file; `object_hook` may change each mapping while it is read.

    Raises:
        UserError: the file is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=object_hook)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also bytes that are no text, and numbers too long to read
        raise UserError(f"{path} is not valid JSON: {error}") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
