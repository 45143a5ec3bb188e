"""One disk cache for what takes long to compute per image: decoded pixels and the features of frozen networks.

Each image has a file of its own, named after its content and shared by all runs on the machine. So one more image
costs one more computation, and a killed build goes on where it stopped. Nothing is locked: two processes that compute
the same image write the same bytes, and a file that is missing or damaged is computed again, even during a run.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import iglob
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .files import PARTIAL

CHECKSUM_BYTES = 4
ABANDONED_AFTER = 24 * 3600  # seconds after which nobody is still writing a partial file
_ROW_FILE = re.compile(r"[0-9a-f]+(\.[0-9a-f]+\.partial)?")
# An earlier format, one array for a whole data set.
_OLD_FILE = re.compile(r"[0-9a-f]{40}\.(rows|json|partial|done|lock)|folder\.lock")


class NoRoomError(Exception):
    """The rows do not fit below the cache's limit."""


@dataclass(frozen=True)
class Shelf:
    """A kind of row.

    Attributes:
        name: of its folder; anything besides the image that would change a value must change it.
        shape: of one row.
        dtype: of the values, such as "uint8".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Size of the values of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def file_bytes(self) -> int:
        """Size of the file of one row: the values and their checksum."""
        return self.row_bytes + CHECKSUM_BYTES


@dataclass(frozen=True)
class DiskCache:
    """A folder of cached rows.

    Attributes:
        folder: made when it is first needed.
        limit_bytes: the most that all rows together may take.
    """

    folder: Path
    limit_bytes: int

    def path(self, shelf: Shelf, digest: bytes) -> str:
        """The file of a row."""
        name = digest.hex()
        return f"{self.folder}/{shelf.name}/{name[:2]}/{name[2:]}"

    def has_room(self, needed: int) -> bool:
        """Whether so many bytes fit below the limit as things are."""
        return needed + sum(file.size for file in self._files()) <= self.limit_bytes

    def make_room(self, needed: int, in_use: Callable[[], set[str]]) -> None:
        """Remove what was used longest ago until so many bytes fit.

        Arguments:
            in_use: gives the files that must stay.

        Raises:
            NoRoomError: they do not fit.
        """
        files, abandoned = [], time.time() - ABANDONED_AFTER
        for file in self._files():
            if not (file.is_partial and file.used < abandoned and _remove(file.path)):
                files.append(file)
        excess = needed + sum(file.size for file in files) - self.limit_bytes
        if excess <= 0:
            return
        kept = in_use()
        removable = sorted(file for file in files if not file.is_partial and file.path not in kept)
        if excess <= sum(file.size for file in removable):
            for file in removable:
                if excess > 0 and _remove(file.path):
                    excess -= file.size
        if excess > 0:
            raise NoRoomError(self.no_room(needed))

    def _files(self) -> Iterator[_File]:
        """What is in the cache. Other files in the folder may be anyone's."""
        for pattern, name in (("*.*", _OLD_FILE), ("*-*/[0-9a-f][0-9a-f]/*", _ROW_FILE)):
            for place in iglob(pattern, root_dir=self.folder):
                path = f"{self.folder}/{place}"
                with contextlib.suppress(OSError):  # removed or renamed just now
                    if name.fullmatch(os.path.basename(path)):
                        status = os.stat(path)
                        yield _File(name is _ROW_FILE, status.st_mtime, status.st_size, path)

    def no_room(self, needed: int) -> str:
        """Why so many bytes do not fit, in one line."""
        return (
            f"{needed / 1e9:.3g} GB are needed and the cache {self.folder} may hold "
            f"{self.limit_bytes / 1e9:.3g} GB (cache_gb), part of it perhaps in use"
        )


def touch(path: str) -> bool:
    """Mark a file as used just now; returns whether it is there."""
    try:
        os.utime(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # another user's, or a read-only file system
        return os.path.exists(path)
    return True


def read_row(path: str, row_bytes: int) -> bytes | None:
    """The values in the file of a row, None if it is missing, unreadable or damaged, or is that of another row."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            whole = os.read(handle, row_bytes + CHECKSUM_BYTES + 1)  # one more, to see that there is no more
        finally:
            os.close(handle)
    except OSError:
        return None
    values, stated = whole[:row_bytes], whole[row_bytes:]
    # Earlier versions wrote checksums of the values alone.
    return values if stated == _checksum(values, path) or stated == _checksum(values) else None


def write_row(path: str, values: bytes) -> None:
    """Write the file of a row, in one step for whoever looks."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{secrets.token_hex(4)}{PARTIAL}"
    try:
        with open(partial, "xb") as file:
            file.write(values + _checksum(values, path))
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _checksum(values: bytes, path: str = "") -> bytes:
    """Of the values and of the row's shelf and name, so that of two rows neither passes for the other."""
    name = "/".join(path.split("/")[-3:]).encode()
    return zlib.crc32(values, zlib.crc32(name)).to_bytes(CHECKSUM_BYTES, "little")


class _File(NamedTuple):
    """A file of the cache; those that are removed first come first."""

    is_current: bool  # rather than of an earlier format
    used: float  # when it was last used, in seconds since 1970
    size: int
    path: str

    @property
    def is_partial(self) -> bool:
        return self.is_current and self.path.endswith(PARTIAL)


def _remove(path: str) -> bool:
    """Remove a file unless it belongs to another user."""
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        try:
            os.unlink(path)
        except PermissionError:
            return False
    return True
