"""What is known about photos by their content: a thumbnail, their size, and their features; kept in one file.

The file is a help and no more: it can be made again from the photos, and a damaged one is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..data.file_index import Stamp

TOGETHER = 500  # digests in one question; SQLite allows 999 in its oldest versions
_TABLES = """
CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, touched INTEGER, inode INTEGER,
    digest BLOB, problem TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS photos (digest BLOB PRIMARY KEY, width INTEGER, height INTEGER, thumbnail BLOB,
    checksum INTEGER);
CREATE TABLE IF NOT EXISTS features (digest BLOB, kind TEXT, vector BLOB, checksum INTEGER, PRIMARY KEY (digest, kind));
"""


class LookedAt(NamedTuple):
    """A file that was looked at: a photo, or the reason why it is none."""

    path: str
    stamp: Stamp | None
    digest: bytes
    problem: str | None = None
    width: int = 0
    height: int = 0
    thumbnail: bytes = b""
    vector: NDArray[np.float32] | None = None  # (p,)


class KnownFile(NamedTuple):
    """What is remembered about a file."""

    stamp: Stamp
    digest: bytes
    problem: str | None


class Known(NamedTuple):
    """What is remembered about a photo."""

    width: int
    height: int
    vector: NDArray[np.float32]  # (p,)


class PhotoIndex:
    """The file; every method may be called from any thread.

    Arguments:
        path: made if it is not there.
        kind: of the features; those of another network are of no use.

    Raises:
        UserError: it cannot be made.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"cannot use {path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        for is_last in (False, True):
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.executescript(_TABLES)
                return connection
            except sqlite3.DatabaseError as error:
                connection.close()
                if is_last or isinstance(error, sqlite3.OperationalError):  # locked, read-only, full: not damaged
                    raise
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        raise AssertionError

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def files(self) -> dict[bytes, KnownFile]:
        """All that is remembered about files, by path."""
        with self._lock:
            rows = self._connection.execute("SELECT * FROM files").fetchall()
        return {path: KnownFile(Stamp(*stamp), digest, problem) for path, *stamp, digest, problem in rows}

    def find(self, digests: Sequence[bytes]) -> Iterator[tuple[bytes, Known]]:
        """Those of these photos of which everything is remembered, in any order."""
        question = (
            "SELECT photos.digest, width, height, vector, features.checksum FROM photos "
            "JOIN features ON features.digest = photos.digest WHERE kind = ? AND photos.digest IN ({})"
        )
        for start in range(0, len(digests), TOGETHER):
            part = digests[start : start + TOGETHER]
            with self._lock:
                rows = self._connection.execute(
                    question.format(", ".join("?" * len(part))), (self.kind, *part)
                ).fetchall()
            for digest, width, height, vector, checksum in rows:
                if zlib.crc32(vector) == checksum:  # what is damaged is computed again
                    yield digest, Known(width, height, np.frombuffer(vector, np.float32))

    def thumbnail(self, digest: bytes) -> bytes | None:
        """The thumbnail of a photo as a JPEG file, None if there is none or it is damaged."""
        question = "SELECT thumbnail, checksum FROM photos WHERE digest = ?"
        with self._lock:
            row = self._connection.execute(question, (digest,)).fetchone()
        return row[0] if row is not None and zlib.crc32(row[0]) == row[1] else None

    def add(self, looked: Sequence[LookedAt], paths: Sequence[bytes]) -> None:
        """Remember files, all of them or, if that fails, none.

        Arguments:
            paths: of each, as bytes: a name need not be valid text.
        """
        files = [
            (path, *one.stamp, one.digest, one.problem) for path, one in zip(paths, looked, strict=True) if one.stamp
        ]
        photos = [
            (one.digest, one.width, one.height, one.thumbnail, zlib.crc32(one.thumbnail))
            for one in looked
            if one.thumbnail
        ]
        vectors = [
            (one.digest, self.kind, data, zlib.crc32(data))
            for one in looked
            if one.vector is not None
            for data in [one.vector.astype(np.float32).tobytes()]
        ]
        # Where there is no room, as on a full disk, the photos are looked at again the next time.
        with self._lock, contextlib.suppress(sqlite3.OperationalError), self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", files)
            self._connection.executemany("INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?, ?)", photos)
            self._connection.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", vectors)
