"""Rows of values, one per image, that are read from the disk cache and computed where they are not in it."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .cache import DiskCache, NoRoomError, Shelf, read_row, touch, write_row
from .errors import UserError
from .progress import Show

COUNTS_PER_LIMIT = 20  # how often the used space is counted while as much as the limit is written
BLOCK = 128  # rows that a process computes before it looks again which are still to do
_IN_USE: weakref.WeakSet[CachedRows] = weakref.WeakSet()


class Source(Protocol):
    """Computes rows."""

    @property
    def digests(self) -> tuple[bytes, ...]:
        """One per row: rows with the same digest have the same values."""

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[Any] | UserError]]:
        """Yield each of these rows with its values, or with the reason why it has none."""


Spread = Callable[[Sequence[Sequence[int]]], Iterator[tuple[int, dict[int, str]]]]
"""Lets other processes compute blocks of rows and write them to the cache.

Yields the place of each block as it is done, with row -> why it has no values.
"""


def open_rows(
    cache: DiskCache,
    shelf: Shelf,
    source: Source,
    missing: Mapping[int, str] | None = None,
    on_progress: Show | None = None,
    spread: Spread | None = None,
) -> CachedRows:
    """Find rows in the cache and compute those that are not there; each is on disk as soon as it is computed.

    Arguments:
        missing: row -> why it has no values, for rows of which that is known already.
        spread: who computes the rows instead of this process.

    Raises:
        NoRoomError: they do not fit below the limit.
        OSError: the folder cannot be used.
    """
    rows = CachedRows(cache, shelf, source, dict(missing or {}))
    if (needed := len(set(source.digests)) * shelf.file_bytes) > cache.limit_bytes:
        raise NoRoomError(cache.no_room(needed))
    _IN_USE.add(rows)  # from now on its files are not removed to make room, at least not by this process
    rows.fill(on_progress, spread)
    return rows


def _blocks(rows: Sequence[int]) -> list[Sequence[int]]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _in_any_order(rows: Sequence[int]) -> list[Sequence[int]]:
    """The rows in blocks, in an order of each process's own, so that several that begin together share the work."""
    blocks = _blocks(rows)
    secrets.SystemRandom().shuffle(blocks)  # the global generator is the run's
    return blocks


def _in_use() -> set[str]:
    return {path for rows in _IN_USE for path in rows.paths()}


class CachedRows:
    """Rows on disk; it can be pickled for another process if its source can.

    Attributes:
        missing: row -> why it has no values, one line that names the image. Such a row must not be read.
    """

    def __init__(self, cache: DiskCache, shelf: Shelf, source: Source, missing: dict[int, str]) -> None:
        self.cache, self.shelf, self.source, self.missing = cache, shelf, source, missing
        self._verified = np.zeros(len(source.digests), np.bool_)  # this process has seen the right checksum
        self._uncounted = cache.limit_bytes  # bytes written since the used space was counted, which it was not yet
        self._writes_back = True

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedRows, (self.cache, self.shelf, self.source, self.missing)  # another process verifies again

    def __len__(self) -> int:
        return len(self.source.digests)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """One per row."""
        return self.source.digests

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The values of these rows (n,), as (n, *shape).

        Raises:
            UserError: a row is neither in the cache nor can it be computed.
        """
        return self._gather(rows.tolist(), [0] * len(rows), self.shelf.shape)

    def pick(self, rows: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[Any]:
        """Of each row (n,) the part at its place (n,) along the first axis, as (n, *shape[1:]); errors as above."""
        return self._gather(rows.tolist(), places.tolist(), self.shelf.shape[1:])

    def paths(self) -> Iterator[str]:
        """The file of each row."""
        return (self.cache.path(self.shelf, digest) for digest in self.digests)

    def fill(self, on_progress: Show | None = None, spread: Spread | None = None) -> None:
        """Mark every row as used now, and compute those that are not in the cache; arguments as of `open_rows`."""
        first = {digest: row for row, digest in reversed([*enumerate(self.digests)]) if row not in self.missing}
        absent = self._absent(sorted(first.values()))
        if spread and len(absent) > BLOCK:
            self._spread_all(absent, on_progress, spread)
        else:
            self._compute_all(absent, on_progress)
        failed = {self.digests[row] for row in absent if row in self.missing}
        # The same content under another name has an error that names the other file.
        others = [row for row, digest in enumerate(self.digests) if digest in failed and row not in self.missing]
        self._compute_all(others, None)

    def write_absent(self) -> dict[int, str]:
        """Compute what is not in the cache and write it, in a process for which another one makes room.

        Returns:
            row -> why it has no values.
        """
        for row, values in self.source.compute(self._absent(range(len(self)))):
            if isinstance(values, UserError):
                self.missing[row] = str(values)
            else:
                self._write(row, values)
        return self.missing

    def _spread_all(self, rows: Sequence[int], on_progress: Show | None, spread: Spread) -> None:
        self.cache.make_room(len(rows) * self.shelf.file_bytes, _in_use)
        blocks, done = _blocks(rows), len(self) - len(rows)
        for place, missing in spread(blocks):
            self.missing |= missing
            done += len(blocks[place])
            if on_progress:
                on_progress(done, len(self))

    def _compute_all(self, rows: Sequence[int], on_progress: Show | None) -> None:
        if not rows:
            return
        each, left = self.shelf.file_bytes, len(rows)
        self.cache.make_room(left * each, _in_use)
        self._uncounted = 0
        for block in _in_any_order(rows):
            absent = self._absent(block)  # without those that another process has written by now
            left -= len(block) - len(absent)
            for row, values in self.source.compute(absent):
                if isinstance(values, UserError):
                    self.missing[row] = str(values)
                else:
                    if self._is_count_due():  # others may have written as well
                        self.cache.make_room(left * each, _in_use)
                    self._write(row, values)
                left -= 1
                if on_progress:
                    on_progress(len(self) - left, len(self))

    def _absent(self, rows: Iterable[int]) -> list[int]:
        """Those of these rows that are not in the cache; the others are marked as used now."""
        return [row for row in rows if not touch(self.cache.path(self.shelf, self.digests[row]))]

    def _gather(self, rows: list[int], places: list[int], shape: tuple[int, ...]) -> NDArray[Any]:
        """The part of each row that begins at its place, counted in parts of this shape."""
        values = np.empty((len(rows), *shape), self.shelf.dtype)
        parts = values.reshape(len(rows), math.prod(shape)).view(np.uint8)
        size = parts.shape[1]
        absent = [at for at, row in enumerate(rows) if not self._read(row, parts[at], places[at] * size)]
        if absent:
            again = {row: one.reshape(-1) for row, one in self._compute_again({rows[at] for at in absent})}
            for at in absent:
                parts[at] = again[rows[at]].view(np.uint8)[places[at] * size :][:size]
        return values

    def _read(self, row: int, target: NDArray[np.uint8], offset: int) -> bool:
        """Read a part of a row; returns whether it is there, which is known for sure after the first reading."""
        path = self.cache.path(self.shelf, self.digests[row])
        if self._verified[row]:
            return _read_part(path, target, offset)
        values = read_row(path, self.shelf.row_bytes)
        if values is not None:
            target[:] = np.frombuffer(values, np.uint8)[offset:][: len(target)]
            self._verified[row] = True
        return values is not None

    def _compute_again(self, rows: set[int]) -> Iterator[tuple[int, NDArray[Any]]]:
        for row, values in self.source.compute(sorted(rows)):
            if isinstance(values, UserError):
                raise values
            # Not at the cost of other rows, or two runs would remove each other's without end.
            if self._is_count_due():
                self._writes_back = self.cache.has_room(self.shelf.file_bytes)
            if self._writes_back:
                with contextlib.suppress(OSError):
                    self._write(row, values)
            yield row, np.ascontiguousarray(values, self.shelf.dtype)

    def _is_count_due(self) -> bool:
        if self._uncounted < self.cache.limit_bytes / COUNTS_PER_LIMIT:
            return False
        self._uncounted = 0
        return True

    def _write(self, row: int, values: NDArray[Any]) -> None:
        write_row(self.cache.path(self.shelf, self.digests[row]), values.astype(self.shelf.dtype).tobytes())
        self._uncounted += self.shelf.file_bytes


def _read_part(path: str, target: NDArray[np.uint8], offset: int) -> bool:
    """Read a part of a file; returns whether it is there."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            return os.preadv(handle, [target.data], offset) == len(target)
        finally:
            os.close(handle)
    except OSError:
        return False
