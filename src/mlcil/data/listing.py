"""A list of image files with their labels, before anyone has looked into the files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.words import counted
from .contents import Contents, FileFacts
from .images import ABSENT, BY_LABELS, PRESENT, UNKNOWN, DataSet, Finding, LabelledImages, Level


@dataclass(frozen=True)
class Listing:
    """What a table or a folder says about images; the same image may stand there more than once.

    Attributes:
        source: what to call it in messages.
        paths: one image file per row.
        labels: int8 (N, K): 1 present, 0 known to be absent, -1 unknown.
        classes: the K class names, sorted.
        parts: for each row "train", "test", or "" where the image's content decides.
        arrivals: int16 (N,), the session, from 1, with which each image arrives; 0 where that is not said.
        places: where each row stands, such as "row 7"; "" where the path says it all.
        test_fraction: share of test images among those whose content decides.
        findings: what was noticed while it was read.
        lists: whether labels were given as lists: two lists of one image are united. Otherwise each label was given
            by itself, and a class both present and absent is a contradiction.
    """

    source: str
    paths: tuple[str, ...]
    labels: NDArray[np.int8]
    classes: tuple[str, ...]
    parts: tuple[str, ...]
    arrivals: NDArray[np.int16]
    places: tuple[str, ...]
    test_fraction: float = 0.2
    findings: tuple[Finding, ...] = ()
    lists: bool = True

    def __post_init__(self) -> None:
        if "" in self.parts and not 0 < self.test_fraction < 1:
            raise UserError(f"got {self.test_fraction} for test_fraction, expected a number between 0 and 1")

    def resolve(self, contents: Contents) -> DataSet:
        """The images by their content: however often one is listed, it is in one part, and one image in each session.

        Raises:
            UserError: there are no training or no test images.
        """
        data = self.united(contents, draws=True)
        for part, split in ((data.train, "train"), (data.test, "test")):
            if not len(part):
                raise UserError(
                    f"{self.source} has no {split} images; mark some in a split column or put them in a folder named "
                    f"{split}, or give another test_fraction"
                )
        return data

    def united(self, contents: Contents, draws: bool) -> DataSet:
        """As `resolve`, but a part may be empty.

        Arguments:
            draws: whether the content of an image decides where nothing else does; otherwise it is for training.
        """
        facts = contents.look(self.paths)
        parts, torn = self._one_part_each(facts, draws)
        groups = self._images(facts)
        firsts = np.array([rows[0] for rows in groups], dtype=np.int64)
        merged = _Merged(self, self.labels[firsts], torn)
        for image, rows in enumerate(groups):
            if len(rows) > 1:
                merged.merge(image, rows)
        digests = tuple(facts[row].digest for row in firsts)
        arrivals = self.arrivals[firsts]
        is_test = np.array([parts[row] == "test" for row in firsts])
        whole = LabelledImages(
            tuple(self.paths[row] for row in firsts),
            merged.labels,
            self.classes,
            "train",
            digests=digests,
            arrivals=arrivals if (arrivals != BY_LABELS).any() else None,
            has_lists=self.lists,
        )
        train, test = whole.subset(np.flatnonzero(~is_test)), whole.subset(np.flatnonzero(is_test))
        return DataSet(train, replace(test, split="test"), self.findings + merged.findings())

    def where(self, row: int) -> str:
        """A row for a message, such as `photos/a.jpg (row 7)`."""
        return f"{self.paths[row]} ({self.places[row]})" if self.places[row] else self.paths[row]

    def _one_part_each(self, facts: Sequence[FileFacts], draws: bool) -> tuple[list[str], list[list[int]]]:
        """The part of each row, the same for all rows of an image, and pairs of rows that had disagreed."""
        parts, torn = list(self.parts), []
        for rows in _grouped([_content(*row) for row in zip(self.paths, facts, strict=True)]):
            named = sorted({self.parts[row] for row in rows} - {""})
            if len(named) > 1:
                torn.append([next(row for row in rows if self.parts[row] == part) for part in named])
            drawn = self._drawn(facts[rows[0]].digest) if draws else "train"
            part = named[0] if named else drawn  # "test" comes first
            for row in rows:
                parts[row] = part
        return parts, torn

    def _images(self, facts: Sequence[FileFacts]) -> list[list[int]]:
        """The rows of each image; the same photo with two sessions is an image in each of them."""
        contents = (_content(*row) for row in zip(self.paths, facts, strict=True))
        return _grouped(list(zip(contents, self.arrivals.tolist(), strict=True)))

    def _drawn(self, digest: bytes) -> str:
        """The part that an image's content decides, the same on every machine and whatever else is listed."""
        share = int.from_bytes(sha256(digest).digest()[:6], "big") / 2**48
        return "test" if share < self.test_fraction else "train"


def _content(path: str, facts: FileFacts) -> bytes | str:
    """What tells one image from another."""
    # Two empty files are not one photo, so only the path tells whether an unreadable file is another.
    return facts.digest if facts.problem is None else os.path.abspath(path)


def _grouped(keys: Sequence[Hashable]) -> list[list[int]]:
    """The rows with the same key, in the order in which the keys first occur."""
    groups: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


@dataclass
class _Merged:
    """The labels of each image, and the pairs of rows that disagreed."""

    listing: Listing
    labels: NDArray[np.int8]
    torn: list[list[int]]
    repeated: list[list[int]] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)
    emptied: list[list[int]] = field(default_factory=list)
    united: list[list[int]] = field(default_factory=list)

    def merge(self, image: int, rows: list[int]) -> None:
        """Take all rows of an image together."""
        self.repeated.append(rows)
        block = self.listing.labels[rows]  # (rows, K)
        self.labels[image] = block.max(axis=0)  # present before absent before unknown
        present, absent = block == PRESENT, block == ABSENT
        if self.listing.lists:
            shown, empty = present.any(axis=1), absent.all(axis=1)
            torn = np.flatnonzero(present.any(axis=0) & absent.any(axis=0))
            if shown.any() and empty.any():
                self.emptied.append([rows[int(empty.argmax())], rows[int(shown.argmax())]])
            elif len(torn) and self.listing.places[rows[0]]:  # in class folders, that is how to give two labels
                places = present[:, torn[0]].argmax(), absent[:, torn[0]].argmax()
                self.united.append(sorted(rows[int(place)] for place in places))
            return
        for column in np.flatnonzero(present.any(axis=0) & absent.any(axis=0)):
            self.labels[image, column] = UNKNOWN
            pair = [rows[int(present[:, column].argmax())], rows[int(absent[:, column].argmax())]]
            self.disputed.append(f"{self.listing.classes[column]!r} of {self._pair(pair)}")

    def findings(self) -> tuple[Finding, ...]:
        """What its owner should know about the images that are listed more than once."""
        told = [
            (Level.NOTE, self.repeated, "more than once", "each was taken once"),
            (Level.LOOK, self.torn, "both for testing and for training", "taken for testing alone"),
            (Level.LOOK, self.emptied, "both without and with labels", "the labels were taken"),
            (Level.LOOK, self.united, "with different labels", "all of them were taken"),
        ]
        found = []
        for level, rows, how, then in told:
            if rows:
                count = counted(len(rows), "image stands", "images stand")
                text = f"{count} {how} in {self.listing.source}, first {self._pair(rows[0])}; {then}"
                found.append(Finding(level, text))
        if self.disputed:
            count = counted(len(self.disputed), "label is", "labels are")
            text = f"{count} both 1 and 0 in {self.listing.source}, first {self.disputed[0]}; taken as unknown"
            found.append(Finding(Level.LOOK, text))
        return tuple(found)

    def _pair(self, rows: list[int]) -> str:
        return f"{self.listing.where(rows[0])} and {self.listing.where(rows[1])}"
