"""An index of image files on disk, so that a file that did not change is not read again."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

TOGETHER = 500  # paths in one question; SQLite allows 999 in its oldest versions
WAIT = 1.0  # seconds for a process that writes into the index; reading the files instead always works
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TABLE = (
    "CREATE TABLE IF NOT EXISTS files_3 (path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, touched INTEGER, "
    "inode INTEGER, digest BLOB, width INTEGER, height INTEGER, format TEXT, checksum INTEGER) WITHOUT ROWID"
)

T = TypeVar("T")


class Stamp(NamedTuple):
    """What changes when a file does."""

    size: int
    changed: int  # time of the last change, in nanoseconds since 1970; a program may set it back
    touched: int  # the same of its inode, which no program can set
    inode: int

    @staticmethod
    def of(path: str) -> Stamp | None:
        """The stamp of a file, None if there is none; what a URL names has none, and so is always read."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        inode = status.st_ino & 0x7FFFFFFFFFFFFFFF  # SQLite has a sign
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)


class Entry(NamedTuple):
    """What is remembered about an image file that can be used."""

    digest: bytes
    width: int
    height: int
    format: str


class FileIndex:
    """Remembers image files by path.

    It is no more than a help: where it cannot be read or written it knows nothing, and a damaged one is replaced.

    Arguments:
        path: its file, made when it is first needed; None for an index that knows nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def find(self, stamps: Mapping[str, Stamp]) -> dict[str, Entry]:
        """What is known about those of these files that still have their stamp."""
        return self._attempt(lambda connection: _find(connection, stamps)) or {}

    def add(self, entries: Mapping[str, tuple[Stamp, Entry]]) -> None:
        """Remember these files."""
        rows = [with_row_checksum(_key(path), *stamp, *entry) for path, (stamp, entry) in entries.items()]
        question = "INSERT OR REPLACE INTO files_3 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._attempt(lambda connection: connection.executemany(question, rows))

    def forget(self, path: str) -> None:
        """Forget a file."""
        self._attempt(lambda connection: connection.execute("DELETE FROM files_3 WHERE path = ?", (_key(path),)))

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do it in one transaction; None if that is not possible."""
        if self._path is None:
            return None
        for _ in range(2):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self._path, timeout=WAIT)) as connection, connection:
                    connection.text_factory = row_text
                    connection.execute(_TABLE)
                    return work(connection)
            except UnicodeDecodeError:  # SQLite has quoted what it found in a damaged file
                if not _remove(self._path):
                    return None
            except (sqlite3.Error, OSError) as error:
                if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _DAMAGED or not _remove(self._path):
                    return None
        return None


def _find(connection: sqlite3.Connection, stamps: Mapping[str, Stamp]) -> dict[str, Entry]:
    found, paths = {}, iter(stamps)
    while part := {_key(path): path for path in islice(paths, TOGETHER)}:
        question = f"SELECT * FROM files_3 WHERE path IN ({', '.join('?' * len(part))})"  # noqa: S608 - question marks
        for row in connection.execute(question, list(part)):
            if has_row_checksum(row) and stamps[part[row[0]]] == row[1:5]:  # a file whose row is damaged is read again
                found[part[row[0]]] = Entry(*row[5:-1])
    return found


def with_row_checksum(*values: object) -> tuple[object, ...]:
    """The values of a row of a table, and after them a checksum: SQLite itself has none."""
    return *values, zlib.crc32(repr(values).encode())


def has_row_checksum(row: tuple[object, ...]) -> bool:
    """Whether a row ends with the checksum of what stands before it."""
    return row == with_row_checksum(*row[:-1])


def row_text(data: bytes) -> str:
    """Text in a row of a table."""
    return data.decode(errors="replace")  # of a damaged row, whose checksum is wrong then


def _key(path: str) -> bytes:
    return os.fsencode(os.path.abspath(path))  # bytes, as a name need not be valid text


def _remove(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
        Path(f"{path}-journal").unlink(missing_ok=True)  # it belongs to the damaged file
    except OSError:
        return False
    return True
