"""One disk cache for arrays that take long to compute: decoded pixels and the features of frozen networks.

An entry is an array of rows, one per image, shared by all runs on the machine. A killed build is continued where it
stopped; entries that were used longest ago make room for new ones; nobody removes an entry that is in use.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import write_json
from .locks import FileLock

Chunk = Mapping[int, NDArray[Any] | str]
"""Some rows of an array, each its values or the reason why it has none."""


class NoRoomError(Exception):
    """The entry does not fit below the cache's limit."""


@dataclass(frozen=True)
class Rows:
    """An array to be cached.

    Attributes:
        key: a name that stands for the content: anything that would change a value must change it.
        count: number of rows.
        shape: of one row.
        dtype: of the values, such as "uint8".
    """

    key: str
    count: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Size of the whole array."""
        return self.count * self.row_bytes


class CachedRows:
    """A finished array on disk, read by row; it can be pickled for another process.

    Attributes:
        rows: what it holds.
        missing: row -> why it has no values; such a row is zero.
    """

    def __init__(self, path: Path, rows: Rows, missing: dict[int, str]) -> None:
        self.path, self.rows, self.missing = path, rows, missing
        self._map: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.rows.count

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return np.asarray(self._array()[index])

    @property
    def digest(self) -> str:
        """A name for the content."""
        return self.rows.key

    def _array(self) -> NDArray[Any]:
        if self._map is None:
            shape, kind = (self.rows.count, *self.rows.shape), self.rows.dtype
            empty = math.prod(shape) == 0  # an empty file cannot be mapped
            self._map = np.empty(shape, kind) if empty else np.memmap(self.path, kind, "r", 0, shape)
        return self._map

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}  # the other process maps the file itself


@dataclass(frozen=True)
class DiskCache:
    """A folder of cached arrays.

    Attributes:
        folder: made when it is first needed.
        limit_bytes: the most that all arrays together may take.
    """

    folder: Path
    limit_bytes: int

    def open(
        self,
        rows: Rows,
        compute: Callable[[Sequence[int]], Iterator[Chunk]],
        on_wait: Callable[[], None] | None = None,
    ) -> CachedRows:
        """Find an array in the cache, or compute it, or continue an interrupted computation.

        Arguments:
            compute: from the row numbers that are missing to their values, some rows at a time; after each part it is
                safe on disk.
            on_wait: called before waiting for another process that computes the same array.

        Raises:
            NoRoomError: it does not fit below the limit.
            OSError: the folder cannot be used.
        """
        if rows.bytes > self.limit_bytes:
            raise NoRoomError(self.no_room(rows))
        entry = _Entry(self.folder, rows)
        lock = FileLock(entry.file("lock"))
        try:
            missing = self._finished(entry, lock, compute, on_wait)
            with contextlib.suppress(PermissionError):  # another user's
                os.utime(entry.file("rows"))  # used just now
        except BaseException:
            lock.close()
            raise
        found = CachedRows(entry.file("rows"), rows, missing)
        weakref.finalize(found, lock.close)  # nobody removes the file while the array is in use
        return found

    def _finished(
        self,
        entry: _Entry,
        lock: FileLock,
        compute: Callable[[Sequence[int]], Iterator[Chunk]],
        on_wait: Callable[[], None] | None,
    ) -> dict[int, str]:
        """Hold the lock shared with the entry finished; build it first unless another process did."""
        while True:
            lock.share()
            # Looked at again after each change of the lock: changing it lets go of it for a moment.
            if (missing := entry.missing()) is not None:
                return missing
            lock.claim(on_wait)
            if entry.missing() is None:
                self._build(entry, compute)

    def _build(self, entry: _Entry, compute: Callable[[Sequence[int]], Iterator[Chunk]]) -> None:
        done = self._reserve(entry)
        reasons: dict[int, str] = {}
        with entry.file("partial").open("r+b") as values, entry.file("done").open("r+b") as marks:
            for chunk in compute([row for row in range(entry.rows.count) if not done[row]]):
                good = {row: value.tobytes() for row, value in chunk.items() if not isinstance(value, str)}
                # A row without values is not marked: a continued build meets it again and learns the reason.
                reasons |= {row: value for row, value in chunk.items() if isinstance(value, str)}
                _put(values, {row * entry.rows.row_bytes: data for row, data in good.items()})
                _put(marks, dict.fromkeys(good, b"\1"))  # only now: the values are on the disk
        write_json(entry.file("json"), entry.facts() | {"missing": {str(row): why for row, why in reasons.items()}})
        entry.file("partial").replace(entry.file("rows"))
        entry.file("done").unlink()

    def _reserve(self, entry: _Entry) -> bytes:
        """Make room, give the partial file its full length, and return the marks of an earlier attempt."""
        partial, marks, count = entry.file("partial"), entry.file("done"), entry.rows.count
        folder_lock = FileLock(self.folder / "folder.lock")  # or two processes would count the same free space
        folder_lock.claim()
        try:
            self._make_room(entry)
            with contextlib.suppress(FileNotFoundError):
                done = marks.read_bytes()
                if len(done) == count and partial.stat().st_size == entry.rows.bytes:
                    return done
            marks.write_bytes(bytes(count))
            with partial.open("wb") as file:
                file.truncate(entry.rows.bytes)
        finally:
            folder_lock.close()
        return bytes(count)

    def _make_room(self, entry: _Entry) -> None:
        """Remove other entries, finished or abandoned, those used longest ago first, until this one fits."""
        others = []
        for path in self.folder.iterdir():
            if path.suffix in {".rows", ".partial"} and path.stem != entry.rows.key:
                with contextlib.suppress(FileNotFoundError):  # renamed by its builder just now
                    status = path.stat()
                    others.append((status.st_mtime_ns, status.st_size, path))
        used = entry.rows.bytes + sum(size for _, size, _ in others)
        for _, size, path in sorted(others):
            if used > self.limit_bytes and _remove(self.folder, path.stem):
                used -= size
        if used > self.limit_bytes:
            raise NoRoomError(self.no_room(entry.rows))

    def no_room(self, rows: Rows) -> str:
        """Why an array does not fit, in one line."""
        return (
            f"{rows.bytes / 1e9:.3g} GB are needed and the cache {self.folder} may hold "
            f"{self.limit_bytes / 1e9:.3g} GB (cache_gb), part of it perhaps in use"
        )


@dataclass(frozen=True)
class _Entry:
    """The files `<key>.*` of one array.

    It is finished when `.rows` (the values) and `.json` (what they are) agree. Until then the values grow in
    `.partial`, and `.done` has one byte per row, 1 once that row is safely on the disk. `.lock` is held exclusively by
    a builder or a remover and shared by whoever uses the values.
    """

    folder: Path
    rows: Rows

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.rows.key}.{kind}"

    def facts(self) -> dict[str, Any]:
        return {"count": self.rows.count, "shape": list(self.rows.shape), "dtype": self.rows.dtype}

    def missing(self) -> dict[int, str] | None:
        """Row -> reason of a finished entry, None if it is not finished."""
        try:
            stored = json.loads(self.file("json").read_text())
            missing = {int(row): str(reason) for row, reason in stored.pop("missing").items()}
            is_whole = self.file("rows").stat().st_size == self.rows.bytes
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return missing if is_whole and stored == self.facts() else None


def _put(file: io.BufferedRandom, parts: dict[int, bytes]) -> None:
    """Write each part at its offset. Not through a memory map, where a full disk kills the process."""
    for offset, data in parts.items():
        file.seek(offset)
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _remove(folder: Path, key: str) -> bool:
    """Remove an entry unless it is being built or used; its lock file stays, somebody may wait on it."""
    lock = FileLock(folder / f"{key}.lock")
    try:
        if not lock.try_to_claim():
            return False
        for kind in ("rows", "json", "done", "partial"):
            (folder / f"{key}.{kind}").unlink(missing_ok=True)
    finally:
        lock.close()
    return True
