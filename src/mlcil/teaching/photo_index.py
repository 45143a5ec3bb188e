"""What is known about photos by their content: a thumbnail, their size, and their features; kept in one file.

The file is a help and no more: it can be made again from the photos, and a damaged one is.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..data.file_index import Stamp, has_row_checksum, row_text, with_row_checksum

TOGETHER = 500  # digests in one question; SQLite allows 999 in its oldest versions
_TABLES = """
DROP TABLE IF EXISTS files;
DROP TABLE IF EXISTS photos;
DROP TABLE IF EXISTS features;
CREATE TABLE IF NOT EXISTS files_2 (path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, touched INTEGER,
    inode INTEGER, digest BLOB, problem TEXT, checksum INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS photos_2 (digest BLOB PRIMARY KEY, width INTEGER, height INTEGER, thumbnail BLOB,
    checksum INTEGER);
CREATE TABLE IF NOT EXISTS features_2 (digest BLOB, kind TEXT, vector BLOB, checksum INTEGER,
    PRIMARY KEY (digest, kind));
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
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot use {path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        for is_last in (False, True):
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            connection.text_factory = row_text
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.executescript(_TABLES)
                return connection
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite quotes what it finds
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
            rows = self._rows("SELECT * FROM files_2")
        return {row[0]: KnownFile(Stamp(*row[1:5]), *row[5:7]) for row in rows if has_row_checksum(row)}

    def find(self, digests: Sequence[bytes]) -> Iterator[tuple[bytes, Known]]:
        """Those of these photos of which everything is remembered, in any order."""
        for start in range(0, len(digests), TOGETHER):
            part = digests[start : start + TOGETHER]
            these = f"digest IN ({', '.join('?' * len(part))})"  # question marks and nothing else
            with self._lock:
                photos = self._rows(f"SELECT * FROM photos_2 WHERE {these}", *part)  # noqa: S608
                features = self._rows(f"SELECT * FROM features_2 WHERE {these} AND kind = ?", *part, self.kind)  # noqa: S608
            sizes = {row[0]: (row[1], row[2]) for row in photos if has_row_checksum(row)}
            for row in features:
                if row[0] in sizes and row[1] == self.kind and has_row_checksum(row):  # damaged ones are made again
                    width, height = sizes[row[0]]
                    yield row[0], Known(width, height, np.frombuffer(row[2], np.float32))

    def thumbnail(self, digest: bytes) -> bytes | None:
        """The thumbnail of a photo as a JPEG file, None if there is none or it is damaged."""
        with self._lock:
            rows = self._rows("SELECT * FROM photos_2 WHERE digest = ?", digest)
        return rows[0][3] if rows and rows[0][0] == digest and has_row_checksum(rows[0]) else None

    def _rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """What is found; nothing if the file is so damaged that SQLite itself notices."""
        try:
            return self._connection.execute(question, values).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return []

    def add(self, looked: Sequence[LookedAt], paths: Sequence[bytes]) -> None:
        """Remember files, all of them or, if that fails, none.

        Arguments:
            paths: of each, as bytes: a name need not be valid text.
        """
        files = [
            with_row_checksum(path, *one.stamp, one.digest, one.problem)
            for path, one in zip(paths, looked, strict=True)
            if one.stamp
        ]
        photos = [
            with_row_checksum(one.digest, one.width, one.height, one.thumbnail) for one in looked if one.thumbnail
        ]
        vectors = [
            with_row_checksum(one.digest, self.kind, one.vector.astype(np.float32).tobytes())
            for one in looked
            if one.vector is not None
        ]
        # Where there is no room, as on a full disk, or the file is damaged, the photos are looked at again the next
        # time.
        with self._lock, contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError), self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO files_2 VALUES (?, ?, ?, ?, ?, ?, ?, ?)", files)
            self._connection.executemany("INSERT OR REPLACE INTO photos_2 VALUES (?, ?, ?, ?, ?)", photos)
            self._connection.executemany("INSERT OR REPLACE INTO features_2 VALUES (?, ?, ?, ?)", vectors)
