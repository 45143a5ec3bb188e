"""What a run was given: its images by content, and what each session saw of them.

A run that goes on finds its images again by their content, wherever they stand in the table now: progress and buffers
name images by row. Rows may be added for sessions that are still to come. What a session has learned from must not
change under it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.checksums import check_record, with_checksum
from ..core.errors import UserError
from ..core.files import read_json
from ..core.words import counted
from ..data.images import BY_LABELS, PRESENT, UNKNOWN, DataSet, LabelledImages
from ..data.protocol import Protocol, Session

ImageKey = tuple[str, int, int]
"""The digest of an image, its arrival, and how many such images stand before it."""


class Row(NamedTuple):
    """An image of the data."""

    content: str  # a digest of the file
    arrival: int  # see `LabelledImages.arrivals`: the same photo may come with several sessions
    labels: str  # a number that stands for them
    first: int  # the first session that sees it, in training or in testing; 0 for none
    path: str  # when it was last seen


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
        trained = [np.concatenate([one.indices, one.validation.indices]) for one in sessions]
        tested = [protocol.test_rows(one.stop) for one in sessions]
        return cls(_rows(data.train, trained), _rows(data.test, tested), views)

    @property
    def digest(self) -> str:
        """Stands for the images with their labels and parts, in whatever order and under whatever names."""
        rows = [("train", row) for row in self.train] + [("test", row) for row in self.test]
        return _digest(sorted(f"{part} {row.content} {row.arrival} {row.labels}" for part, row in rows))

    @property
    def train_digest(self) -> str:
        """Stands for the training images in their order."""
        return _digest(row.content for row in self.train)

    def to_text(self) -> str:
        """As JSON, the inverse of `read_record`."""
        record = {"train": self.train, "test": self.test, "sessions": self.sessions}
        return json.dumps(with_checksum(record)) + "\n"

    def arranged(self, data: DataSet, begun: int, run: Path) -> DataSet:
        """The data with its images in the order of the record, and those that are new after them.

        Rows are numbered, so an image that is gone before a session has seen it leaves a row about which nothing is
        known.

        Arguments:
            begun: how many sessions are learned or being learned.
            run: the run's folder.

        Raises:
            UserError: an image is gone that a session has seen.
        """
        train = _arranged(data.train, self.train, begun, run)
        return data._replace(train=train, test=_arranged(data.test, self.test, begun, run))

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
                    f"{number} would see something else. Put the data back to go on, give new rows a later session in "
                    "a column `session`, or choose another --out to learn from the data as they are"
                )
        return changes or None

    def _changes(self, now: DataRecord) -> str:
        """What was added or labelled differently, in words; empty for nothing."""
        pairs = [*zip(self.train, now.train, strict=False), *zip(self.test, now.test, strict=False)]
        # A row that no session sees is of an image that cannot be read or is gone.
        other = [new.path for old, new in pairs if old.labels != new.labels and (old.first or new.first)]
        added = [row.path for row in (*now.train[len(self.train) :], *now.test[len(self.test) :])]
        kinds = ((added, "new"), (other, "labelled differently"))
        return " and ".join(
            f"{counted(len(paths), 'image is', 'images are')} {what} (first {paths[0]})"
            for paths, what in kinds
            if paths
        )


def read_record(file: Path) -> DataRecord:
    """Read a record.

    Raises:
        UserError: it is missing or damaged.
    """
    record: Any = read_json(file)
    check_record(file, record, "put back a copy of it, or choose another --out")
    try:
        train, test = (tuple(Row(*row) for row in record[part]) for part in ("train", "test"))
        return DataRecord(train, test, tuple(record["sessions"]))
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is not the record of a run's data: bad or missing entry {error}") from None


def data_file(run: Path) -> Path:
    """Where the record of a run is."""
    return run / "data.json"


def image_keys(rows: Iterable[tuple[str, int]]) -> list[ImageKey]:
    """What names each image in any order, from contents and arrivals; benchmarks may hold an image twice."""
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for row in rows:
        found.append((*row, seen[row]))
        seen[row] += 1
    return found


def keys_of(rows: Sequence[Row]) -> list[ImageKey]:
    """The keys of recorded images. A row that no session saw may stand in for one that is gone: it counts last."""
    order = sorted(range(len(rows)), key=lambda row: rows[row].first == 0)
    keys = dict(zip(order, image_keys((rows[row].content, rows[row].arrival) for row in order), strict=True))
    return [keys[row] for row in range(len(rows))]


def _rows(images: LabelledImages, seen: Sequence[NDArray[np.int64]]) -> tuple[Row, ...]:
    """The rows of the record, given the rows that each session sees."""
    assert images.digests is not None
    first = np.zeros(len(images), np.int64)
    for number, rows in reversed([*enumerate(seen, start=1)]):
        first[rows] = number
    contents, labels = (one.hex() for one in images.digests), (f"{key:016x}" for key in _label_keys(images).tolist())
    return tuple(map(Row, contents, _arrivals(images), labels, first.tolist(), images.paths))


def _label_keys(images: LabelledImages) -> NDArray[np.uint64]:
    """(N,) a number for the labels of each image; a class that is absent does not change it."""

    def number(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    present, unknown = (
        np.array([number(f"{value} {name}") for name in images.classes], np.uint64) for value in (PRESENT, UNKNOWN)
    )
    shown, unsure = ((images.labels == value).astype(np.uint64) for value in (PRESENT, UNKNOWN))  # (N, K)
    keys: NDArray[np.uint64] = shown @ present + unsure @ unknown
    return keys


def _arrivals(images: LabelledImages) -> list[int]:
    return [BY_LABELS] * len(images) if images.arrivals is None else images.arrivals.tolist()


def _arranged(images: LabelledImages, stored: Sequence[Row], begun: int, run: Path) -> LabelledImages:
    assert images.digests is not None
    contents = (one.hex() for one in images.digests)
    place = {key: row for row, key in enumerate(image_keys(zip(contents, _arrivals(images), strict=True)))}
    wanted = keys_of(stored)
    gone = [row for row, key in enumerate(wanted) if key not in place]
    lost = [stored[row].path for row in gone if 0 < stored[row].first <= begun]
    if lost:
        raise UserError(
            f"{len(lost)} of the {images.split} images of {run} are no longer in its data or have changed, first "
            f"{lost[0]}. Put them back to go on, or choose another --out to learn from the data as they are"
        )
    known = [place.get(key, 0) for key in wanted]  # in place of one that is gone, any other
    is_new = np.ones(len(images), bool)
    is_new[[place[key] for key in wanted if key in place]] = False
    whole = images.subset(np.concatenate([np.array(known, np.int64), np.flatnonzero(is_new)]))
    labels = whole.labels.copy()
    labels[gone] = UNKNOWN
    return replace(whole, labels=labels)


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


def _digest(lines: Iterable[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
