"""The cache of decoded pixels: an entry per data set and size, shared by all runs, safe against kills."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ..core.files import write_json
from .decoding import BadImage, Decoding

# Part of every cache key: raise it when decoding changes by one bit. 2: JPEGs of at least four
# times the wanted size are decoded to a fraction of theirs.
FORMAT = 2


class NoRoomError(Exception):
    """The entry does not fit below the cache's limit."""


class OpenedEntry(NamedTuple):
    """A finished entry that nobody removes before `lock` is closed.

    Attributes:
        path: the file of raw uint8 (N, size, size, 3).
        reasons: row -> why its image could not be decoded; the row is black.
        lock: a file descriptor that holds the entry's lock; the receiver closes it.
    """

    path: Path
    reasons: dict[int, str]
    lock: int


def open_entry(job: Decoding, folder: Path, limit: int) -> OpenedEntry:
    """Find the entry of these images in the cache, or build it, or continue its build.

    Raises:
        NoRoomError: it does not fit below `limit` bytes.
        OSError: the folder cannot be written.
    """
    needed = len(job.paths) * job.size * job.size * 3
    if needed > limit:
        raise NoRoomError(_no_room(folder, needed, limit))
    folder.mkdir(parents=True, exist_ok=True)
    digests = job.digests()
    entry = _Entry(folder, _key(digests, job.size), len(job.paths), job.size)
    lock = os.open(entry.file("lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        bad = _finish(entry, lock, lambda: _build(entry, job, digests, limit))
        os.utime(entry.file("u8"))  # most recently used
    except BaseException:
        os.close(lock)
        raise
    return OpenedEntry(entry.file("u8"), bad, lock)


@dataclass(frozen=True)
class _Entry:
    """The files `<key>.*` of one data set at one size.

    It is finished when `.u8` (the pixels) and `.json` (the manifest) agree. Until then the pixels grow in
    `.partial`, and `.done` has one byte per row, 1 once that row's pixels are safely on the disk. `.lock` is
    locked exclusively by a builder or a remover and shared by whoever uses the pixels; the system releases
    it when its holder dies.
    """

    folder: Path
    key: str
    count: int
    size: int

    @property
    def row_bytes(self) -> int:
        return self.size * self.size * 3

    @property
    def bytes(self) -> int:
        return self.count * self.row_bytes

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.key}.{kind}"

    def bad_rows(self) -> dict[int, str] | None:
        """Row -> reason of a finished entry, None if it is not finished."""
        try:
            manifest = json.loads(self.file("json").read_text())
            found = manifest["format"], manifest["count"], manifest["size"], self.file("u8").stat().st_size
            bad = {int(row): str(reason) for row, reason in manifest["bad"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return bad if found == (FORMAT, self.count, self.size, self.bytes) else None


def _finish(entry: _Entry, lock: int, build: Callable[[], None]) -> dict[int, str]:
    """Return the entry's bad rows with the lock held shared; build it first unless another process did."""
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Looked at again after each change of the lock: changing it lets go of it for a moment.
        if (bad := entry.bad_rows()) is not None:
            return bad
        fcntl.flock(lock, fcntl.LOCK_EX)
        if entry.bad_rows() is None:
            build()


def _build(entry: _Entry, job: Decoding, digests: Sequence[bytes], limit: int) -> None:
    done = _reserve(entry, limit)
    reasons: dict[int, str] = {}
    with entry.file("partial").open("r+b") as pixels, entry.file("done").open("r+b") as marks:
        for chunk in job.chunks([row for row in range(entry.count) if not done[row]], digests):
            good = {row: image for row, image in chunk.items() if not isinstance(image, BadImage)}
            # A bad row is not marked: a continued build meets it again and learns its reason.
            reasons |= {row: image.reason for row, image in chunk.items() if isinstance(image, BadImage)}
            _put(pixels, {row * entry.row_bytes: image.tobytes() for row, image in good.items()})
            _put(marks, dict.fromkeys(good, b"\1"))  # only now: the pixels are on the disk
    manifest = {"format": FORMAT, "count": entry.count, "size": entry.size}
    write_json(entry.file("json"), manifest | {"bad": {str(row): why for row, why in reasons.items()}})
    entry.file("partial").replace(entry.file("u8"))
    entry.file("done").unlink()


def _put(file: io.BufferedRandom, parts: dict[int, bytes]) -> None:
    """Write each part at its offset. Not through a memory map, where a full disk kills the process."""
    for offset, data in parts.items():
        file.seek(offset)
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _reserve(entry: _Entry, limit: int) -> bytes:
    """Make room, give the partial file its full length and return the marks of an earlier attempt."""
    partial, marks = entry.file("partial"), entry.file("done")
    with (entry.folder / "folder.lock").open("w") as folder_lock:
        # One process at a time, or two would count the same free space.
        fcntl.flock(folder_lock, fcntl.LOCK_EX)
        _make_room(entry, limit)
        with contextlib.suppress(FileNotFoundError):
            done = marks.read_bytes()
            if len(done) == entry.count and partial.stat().st_size == entry.bytes:
                return done
        marks.write_bytes(bytes(entry.count))
        with partial.open("wb") as file:
            file.truncate(entry.bytes)
    return bytes(entry.count)


def _make_room(entry: _Entry, limit: int) -> None:
    """Remove the least recently used other entries, finished or abandoned, until this one fits."""
    others = []
    for path in entry.folder.iterdir():
        if path.suffix in {".u8", ".partial"} and path.stem != entry.key:
            with contextlib.suppress(FileNotFoundError):  # renamed by its builder just now
                status = path.stat()
                others.append((status.st_mtime_ns, status.st_size, path))
    used = entry.bytes + sum(size for _, size, _ in others)
    for _, size, path in sorted(others):
        if used > limit and _remove(entry.folder, path.stem):
            used -= size
    if used > limit:
        raise NoRoomError(_no_room(entry.folder, entry.bytes, limit))


def _remove(folder: Path, key: str) -> bool:
    """Remove an entry unless it is being built or used; its lock file stays, someone may wait on it."""
    with (folder / f"{key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for kind in ("u8", "json", "done", "partial"):
            (folder / f"{key}.{kind}").unlink(missing_ok=True)
    return True


def _no_room(folder: Path, needed: int, limit: int) -> str:
    return (
        f"the pixels need {needed / 1e9:.3g} GB and the cache {folder} may hold {limit / 1e9:.3g} GB, "
        "part of it perhaps in use; decoding at every access instead, which is slower"
    )


def _key(digests: Sequence[bytes], size: int) -> str:
    whole = blake2b(f"mlcil pixels {FORMAT} {size} ".encode(), digest_size=20)
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()
