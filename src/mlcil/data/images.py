"""The in-memory index of a data set: where the images are and what is known about each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name

PRESENT, ABSENT, UNKNOWN = 1, 0, -1
BY_LABELS, EVERY_SESSION = 0, -1  # how an image arrives that no one session brings; see `LabelledImages.arrivals`


@dataclass(frozen=True)
class LabelledImages:
    """Images and their three-valued labels.

    Attributes:
        paths: one image file per row; for images that exist only in memory, a name for each.
        labels: int8 (N, K): 1 present, 0 known to be absent, -1 unknown.
        classes: the K class names, in column order.
        split: which part of the data set this is, "train" or "test".
        pixels: uint8 (N, H, W, 3) for images that exist only in memory, else None.
        digests: one per image, of its content, where that has been read already; else None.
        arrivals: int16 (N,), the session, from 1, with which each image arrives; BY_LABELS for each session that has a
            class which the image shows, EVERY_SESSION for all of them. None is BY_LABELS for all, as published.
        has_lists: whether labels were given as lists: a class that is not listed counts as absent, if anybody looked.
    """

    paths: tuple[str, ...]
    labels: NDArray[np.int8]
    classes: tuple[str, ...]
    split: str
    pixels: NDArray[np.uint8] | None = None
    digests: tuple[bytes, ...] | None = None
    arrivals: NDArray[np.int16] | None = None
    has_lists: bool = False

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise UserError(f"class names must differ, these stand twice: {', '.join(twice)}")

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def fingerprints(self) -> NDArray[np.int64] | None:
        """(N,), 8 bytes of each image's digest; None where there are no digests."""
        if self.digests is None:
            return None
        return np.frombuffer(b"".join(one[:8] for one in self.digests), np.int64)

    def subset(self, rows: NDArray[np.int64]) -> LabelledImages:
        """The images of the given rows, in that order."""
        return replace(
            self,
            paths=tuple(self.paths[row] for row in rows),
            labels=self.labels[rows],
            pixels=None if self.pixels is None else self.pixels[rows],
            digests=None if self.digests is None else tuple(self.digests[row] for row in rows),
            arrivals=None if self.arrivals is None else self.arrivals[rows],
        )

    def with_classes(self, classes: Sequence[str]) -> LabelledImages:
        """The same images with these columns only, in this order."""
        position = {name: column for column, name in enumerate(self.classes)}
        for name in classes:
            if name not in position:
                raise unknown_name("class", name, self.classes)
        columns = [position[name] for name in classes]
        return replace(self, labels=self.labels[:, columns], classes=tuple(classes))


class Level(IntEnum):
    """How much a finding matters."""

    FIX_FIRST = 1  # results will be wrong or meaningless
    LOOK = 2  # probably a mistake
    NOTE = 3  # good to know


class Finding(NamedTuple):
    """Something about the data that its owner should know: a whole sentence without a full stop."""

    level: Level
    text: str


class DataSet(NamedTuple):
    """The two parts of a data set, which have the same classes, and what was noticed while it was read."""

    train: LabelledImages
    test: LabelledImages
    findings: tuple[Finding, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in column order."""
        return self.train.classes
