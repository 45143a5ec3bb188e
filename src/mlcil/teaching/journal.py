"""The journal of a teaching folder: everything that a person has said, one line each, on disk before it is answered.

Nothing in it is ever changed: what is undone gets a line of its own, so undo works across restarts. The state of
teaching is a function of the tagger and these lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.files import flush_folder

UNDO, REDO = "undo", "redo"
Entry = Mapping[str, Any]
"""What was done: {"do": "mark", "label": ..., "yes": [...], "no": [...], "unknown": [...]}, or another deed."""


class Journal:
    """The lines of a file, and which of them count.

    Arguments:
        path: the file, made when the first line is written.

    Raises:
        UserError: a line is damaged. A last line that was cut short, as by a crash while it was written, is left out:
            nobody was told that it had been kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[Entry] = []  # what counts, in order
        self.undone: list[Entry] = []  # what redo brings back, the last one first
        self.sequence = 0  # lines so far
        for number, entry in enumerate(_read(path), start=1):
            try:
                self._apply(entry)
            except (LookupError, TypeError) as error:
                raise UserError(f"entry {number} of {path} makes no sense; put back a copy of the file") from error

    def add(self, entry: Entry) -> None:
        """Write a line; it is on disk when this returns.

        Raises:
            UserError: it cannot be written; then nothing has changed.
        """
        self._append({**entry, "time": datetime.now(UTC).isoformat(timespec="seconds")})
        self._apply(entry)

    def undo(self) -> Entry | None:
        """Take the last deed back that counts; returns it, None if there is none."""
        if not self.done:
            return None
        self.add({"do": UNDO})
        return self.undone[-1]

    def redo(self) -> Entry | None:
        """Do again what was undone last; returns it, None if there is none."""
        if not self.undone:
            return None
        self.add({"do": REDO})
        return self.done[-1]

    def _apply(self, entry: Entry) -> None:
        self.sequence += 1
        if entry["do"] == UNDO:
            self.undone.append(self.done.pop())
        elif entry["do"] == REDO:
            self.done.append(self.undone.pop())
        else:
            self.done.append(entry)
            self.undone.clear()

    def _append(self, entry: Entry) -> None:
        """Add a line, or leave the file as it was."""
        data = _line(entry)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:  # else closing would write what a full disk refused
                start = file.tell()
                try:
                    if file.write(data) < len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                    if not start:
                        flush_folder(self.path.parent)  # the file is new
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(file.fileno(), start)  # half a line would spoil the next
                    raise
        except OSError as error:
            raise UserError(
                f"cannot keep this in {self.path}: {error.strerror or error}; nothing was changed"
            ) from error


def _line(entry: Entry) -> bytes:
    """An entry as one line of JSON with a checksum before it."""
    text = json.dumps(entry, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _read(path: Path) -> list[Entry]:
    """The entries of a file; the end of its last line is put right, where it was cut short or not ended."""
    try:
        data = path.read_bytes()
        whole, _, rest = data.rpartition(b"\n")
        if _is_whole(rest):  # an editor has left it so
            with path.open("ab") as file:
                file.write(b"\n")
            whole = data
        # What was cut short is the beginning of a line: it has no other bytes, and not all of a line before its last.
        elif rest and (_is_whole(rest[:-1]) or not all(32 <= byte < 127 for byte in rest)):
            raise _damaged(path, 1 + data.count(b"\n"))
        elif rest:
            os.truncate(path, len(data) - len(rest))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return [_entry(path, number, line) for number, line in enumerate(whole.split(b"\n"), start=1) if line]


def _entry(path: Path, number: int, line: bytes) -> Entry:
    if not _is_whole(line):
        raise _damaged(path, number)
    try:
        entry: Entry = json.loads(line.partition(b" ")[2])
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {number} of {path} is not JSON: {error}; put back a copy of the file") from None
    return entry


def _is_whole(line: bytes) -> bool:
    check, _, text = line.partition(b" ")
    return check == b"%08x" % zlib.crc32(text)


def _damaged(path: Path, number: int) -> UserError:
    return UserError(f"line {number} of {path} is damaged; put back a copy of the file, or remove this line from it")
