"""Tagging any number of photos, by any number of processes, into files of some photos each.

Such a file is written whole or not at all, so a command that was interrupted goes on with the photos that are in none
of them. The tags of a photo do not depend on which others it is computed with.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ..core.checksums import DamagedFileError, digest_of
from ..core.errors import UserError, reason_of
from ..core.files import write_text
from ..core.pools import Pool
from ..core.progress import Show
from ..core.remote import is_url, read_bytes
from .predicting import Outcome, Wish, as_record, outcome_of, tag_photos
from .tagger import Tagger
from .tagger_files import SUMS

PART = 256  # photos of a file; as many may be lost when a command is interrupted
IDENTITY = "identity"  # name of the file that says whose parts these are


class Parts:
    """What has been done, in a folder beside the file that will hold the result.

    Arguments:
        out: the file.
        identity: what must be the same for the work to go on: the tagger and the wish. What else is there is removed.

    Raises:
        UserError: the folder cannot be used.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.folder = out.with_name(f".{out.name}.parts")
        try:
            mark = self.folder / IDENTITY
            if self.folder.exists() and not (mark.exists() and mark.read_text() == identity):
                shutil.rmtree(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot use {self.folder}: {error.strerror or error}") from error
        write_text(mark, identity)
        self._file_of = {image: file for file in sorted(self.folder.glob("*.jsonl")) for image in _images(file)}

    def left(self, photos: Sequence[str]) -> list[str]:
        """Those of the photos that are to be done."""
        return [photo for photo in photos if photo not in self._file_of]

    def fill(
        self, photos: Sequence[str], make: Callable[[], Tagger], wish: Wish, pool: Pool | None, show: Show
    ) -> None:
        """Tag photos.

        Arguments:
            make: gives the tagger, in whatever process.
            pool: the processes that do it; None for this one.
            show: called with how many of the photos are done.
        """
        parts = [photos[start : start + PART] for start in range(0, len(photos), PART)]
        done = 0
        if pool is None:
            work = TagPart(make, wish, self.folder)
            for part in parts:
                work(part, lambda count, _, done=done: show(done + count, len(photos)))  # type: ignore[misc]
                done += len(part)
        else:
            for place, _ in pool.map(partial(TagPart, make, wish, self.folder), parts):
                done += len(parts[place])
                show(done, len(photos))
        self._file_of |= {photo: _file(self.folder, part) for part in parts for photo in part}

    def outcomes(self, photos: Sequence[str]) -> Iterator[Outcome]:
        """What became of each of the photos, in this order."""
        last, found = Path(), dict[str, Outcome]()
        for photo in photos:
            if self._file_of[photo] != last:  # the photos of a part are next to each other
                last = self._file_of[photo]
                found = {one.prediction.image: one for one in _outcomes(last)}
            yield found[photo]

    def close(self) -> None:
        """Remove the folder: the result is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def identity_of(source: str, tagger: Tagger) -> str:
    """What no other tagger has: all its checksums; of a run, its place and when its sessions were finished."""
    if is_url(source):
        words = read_bytes(f"{source.rstrip('/')}/{SUMS}")
    elif (sums := Path(source, SUMS)).is_file():
        words = sums.read_bytes()
    else:
        words = os.fsencode(f"{Path(source).resolve()} {tagger.steps}")
    return hashlib.sha256(words).hexdigest()


class TagPart:
    """Tags some photos and writes what became of them to a file."""

    def __init__(self, make: Callable[[], Tagger], wish: Wish, folder: Path) -> None:
        self.tagger, self.wish, self.folder = make(), wish, folder

    def __call__(self, photos: Sequence[str], show: Show = lambda done, total: None) -> None:
        """Do it, unless it is done."""
        file = _file(self.folder, photos)
        if not file.exists():  # else a process that was lost afterwards has done it
            lines = [json.dumps(as_record(one)) + "\n" for one in tag_photos(self.tagger, photos, self.wish, show)]
            text = "".join(lines)
            write_text(file, f"{digest_of(text.encode())}\n{text}")


def _file(folder: Path, photos: Sequence[str]) -> Path:
    digest = hashlib.sha256(b"\0".join(map(os.fsencode, photos))).hexdigest()
    return folder / f"{digest[:32]}.jsonl"


def _outcomes(file: Path) -> list[Outcome]:
    """What is in a part; its first line is the digest of the others.

    Raises:
        DamagedFileError: it is damaged.
        UserError: it cannot be read.
    """
    try:
        digest, _, text = file.read_bytes().partition(b"\n")
        if digest_of(text) != digest.decode():
            raise ValueError("it does not have its checksum")
        return [outcome_of(json.loads(line)) for line in text.splitlines()]
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFileError(file, reason_of(error), "repeat the command to make it again") from error


def _images(file: Path) -> list[str]:
    """The photos of a part; one that is damaged is removed, and its photos are done again."""
    try:
        return [one.prediction.image for one in _outcomes(file)]
    except DamagedFileError:
        file.unlink(missing_ok=True)
        return []
