"""What a run was given: its images by content, and what each session saw of them.

A run that goes on finds its images again by their content, wherever they stand in the table now: progress and buffers
name images by row. Rows may be added for sessions that are still to come. What a session has learned from must not
change under it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.files import read_json
from ..data.images import PRESENT, UNKNOWN, DataSet, LabelledImages
from ..data.protocol import Protocol, Session


class Row(NamedTuple):
    """An image of the data: a digest of its content, its labels as a number, its path when it was last seen."""

    content: str
    labels: str
    path: str


@dataclass(frozen=True)
class DataRecord:
    """The data of a run.

    Attributes:
        train, test: their images in the order of the run's rows.
        sessions: for each session a digest of all that it sees in training and in testing.
    """

    train: tuple[Row, ...]
    test: tuple[Row, ...]
    sessions: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: DataSet, protocol: Protocol, sessions: Sequence[Session]) -> DataRecord:
        """The record of a run's data, whose images have digests."""
        views = tuple(_view(protocol, session) for session in sessions)
        return cls(_rows(data.train), _rows(data.test), views)

    @property
    def digest(self) -> str:
        """Stands for the images with their labels and parts, in whatever order and under whatever names."""
        lines = sorted(
            f"{part} {row.content} {row.labels}" for part in ("train", "test") for row in getattr(self, part)
        )
        return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()

    @property
    def train_digest(self) -> str:
        """Stands for the training images in their order."""
        return blake2b("\n".join(row.content for row in self.train).encode(), digest_size=16).hexdigest()

    def to_text(self) -> str:
        """As JSON, the inverse of `read_record`."""
        return json.dumps({"train": self.train, "test": self.test, "sessions": self.sessions}, indent=0) + "\n"

    def arranged(self, data: DataSet, run: Path) -> DataSet:
        """The data with its images in the order of the record, and those that are new after them.

        Raises:
            UserError: an image of the record is not there any more.
        """
        return data._replace(train=_arranged(data.train, self.train, run), test=_arranged(data.test, self.test, run))

    def check(self, now: DataRecord, begun: int, run: Path) -> str | None:
        """Make sure that the sessions which have begun see what they saw; returns what else has changed, if anything.

        Arguments:
            now: the record of the data as it is, `arranged`.
            begun: how many sessions are learned or being learned.
            run: the run's folder.

        Raises:
            UserError: one of these sessions would see something else.
        """
        changes = self._changes(now)
        for number, (before, after) in enumerate(zip(self.sessions[:begun], now.sessions, strict=False), start=1):
            if before != after:
                raise UserError(
                    f"the data of {run} changed since it was learned from: {changes or 'its classes'}, and session "
                    f"{number} would see something else. Put the data back to go on, or choose another --out to learn "
                    "from the data as they are"
                )
        return changes or None

    def _changes(self, now: DataRecord) -> str:
        """What was added or labelled differently, in words; empty for nothing."""
        pairs = [*zip(self.train, now.train, strict=False), *zip(self.test, now.test, strict=False)]
        other = [new.path for old, new in pairs if old.labels != new.labels]
        added = [row.path for row in (*now.train[len(self.train) :], *now.test[len(self.test) :])]
        kinds = ((added, "new"), (other, "labelled differently"))
        return " and ".join(
            f"{len(paths)} image{' is' if len(paths) == 1 else 's are'} {what} (first {paths[0]})"
            for paths, what in kinds
            if paths
        )


def read_record(file: Path) -> DataRecord:
    """Read a record.

    Raises:
        UserError: it is missing or damaged.
    """
    record: Any = read_json(file)
    try:
        train, test = (tuple(Row(*row) for row in record[part]) for part in ("train", "test"))
        return DataRecord(train, test, tuple(record["sessions"]))
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is not the record of a run's data: bad or missing entry {error}") from None


def _rows(images: LabelledImages) -> tuple[Row, ...]:
    assert images.digests is not None
    keys = (f"{key:016x}" for key in _label_keys(images).tolist())
    return tuple(Row(*row) for row in zip((one.hex() for one in images.digests), keys, images.paths, strict=True))


def _label_keys(images: LabelledImages) -> NDArray[np.uint64]:
    """(N,) a number for the labels and arrival of each image; a class that is absent does not change it."""
    numbers = [
        np.array(
            [int.from_bytes(blake2b(f"{value} {name}".encode(), digest_size=8).digest()) for name in images.classes]
        )
        for value in (PRESENT, UNKNOWN)
    ]
    present, unknown = (one.astype(np.uint64) for one in numbers)
    keys: NDArray[np.uint64] = (images.labels == PRESENT).astype(np.uint64) @ present + (
        images.labels == UNKNOWN
    ).astype(np.uint64) @ unknown
    return keys if images.arrivals is None else keys + images.arrivals.astype(np.uint64)


def _arranged(images: LabelledImages, stored: Sequence[Row], run: Path) -> LabelledImages:
    assert images.digests is not None
    place = {key: row for row, key in enumerate(_numbered([one.hex() for one in images.digests]))}
    wanted = _numbered([row.content for row in stored])
    gone = [row.path for row, key in zip(stored, wanted, strict=True) if key not in place]
    if gone:
        raise UserError(
            f"{len(gone)} of the {images.split} images of {run} are no longer in its data or have changed, first "
            f"{gone[0]}. Put them back to go on, or choose another --out to learn from the data as they are"
        )
    known = [place[key] for key in wanted]
    is_new = np.ones(len(images), bool)
    is_new[known] = False
    return images.subset(np.concatenate([np.array(known, np.int64), np.flatnonzero(is_new)]))


def _numbered(digests: Sequence[str]) -> list[tuple[str, int]]:
    """Each digest with a count of how often it stood there before: benchmarks may hold an image twice."""
    seen: Counter[str] = Counter()
    found = []
    for digest in digests:
        found.append((digest, seen[digest]))
        seen[digest] += 1
    return found


def _view(protocol: Protocol, session: Session) -> str:
    """A digest of all that a session sees, in training and in testing."""
    rows = protocol.test_rows(session.stop)
    digest = blake2b(json.dumps(session.classes).encode(), digest_size=16)
    for values in (
        *(session.indices, session.labels, *session.validation),
        *(rows, protocol.data.test.labels[rows, : session.stop]),
    ):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
