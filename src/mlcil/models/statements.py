"""What steps said about images, and what follows from all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..data.images import UNKNOWN


class Statement(NamedTuple):
    """What one step said."""

    number: int  # of the step, from 1
    classes: tuple[str, ...]  # the k classes that it was about
    rows: NDArray[np.int64]  # (n,) its images, as places in `Ledger.fingerprints`
    labels: NDArray[np.int8]  # (n, k): 1 present, 0 absent, -1 unknown
    changes: NDArray[np.int8]  # (n, k): 1 where the class was not present before, -1 where it is not any more, else 0
    cross: Tensor  # (d, k) float64, the sum over its images of z times changes and guesses
    guesses: NDArray[np.float32]  # (n, k), by how much more than by the changes the classes count now; or (n, 0)


class Counts(NamedTuple):
    """For each class, on how many images it was looked for and found."""

    images: NDArray[np.int64]
    positives: NDArray[np.int64]


class Columns:
    """Where the classes of statements stand among K classes."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.count = len(classes)
        self._place = {name: place for place, name in enumerate(classes)}

    def of(self, one: Statement) -> NDArray[np.int64]:
        """(k,) the columns of a statement."""
        return np.array([self._place[name] for name in one.classes], np.int64)


def labels_of(
    statements: Iterable[Statement], rows: NDArray[np.int64], total: int, columns: Columns
) -> NDArray[np.int8]:
    """int8 (n, K): for each of these images and each class what was last said.

    Arguments:
        rows: (n,) places of the images, each below `total`.
    """
    kept, given = np.unique(rows, return_inverse=True)
    place = np.full(total, -1, np.int64)
    place[kept] = np.arange(len(kept))
    now = np.full((len(kept), columns.count), UNKNOWN, np.int8)
    for one in statements:
        here = place[one.rows]
        if (is_asked := here >= 0).any():
            where, said = np.ix_(here[is_asked], columns.of(one)), one.labels[is_asked]
            now[where] = np.where(said == UNKNOWN, now[where], said)
    return now[given]


def guesses_of(
    statements: Iterable[Statement], rows: NDArray[np.int64], total: int, columns: Columns
) -> NDArray[np.float32]:
    """float32 (n, K): what counts for each of these images and each class of which nothing is known.

    Arguments:
        rows: (n,) places of the images, each there once.
    """
    place = np.full(total, -1, np.int64)
    place[rows] = np.arange(len(rows))
    now = np.zeros((len(rows), columns.count), np.float32)
    for one in statements:
        here = place[one.rows]
        if one.guesses.size and (is_asked := here >= 0).any():
            now[np.ix_(here[is_asked], columns.of(one))] += one.guesses[is_asked]
    return now


def counts_of(statements: Sequence[Statement], total: int, columns: Columns) -> Counts:
    """How many of `total` images each class was looked for on, and found on; changes add up to what is present."""
    told = np.zeros(total, np.int64)
    for one in statements:
        told[one.rows] += 1
    counts = Counts(np.zeros(columns.count, np.int64), np.zeros(columns.count, np.int64))
    again = [np.empty(0, np.int64)]  # images and classes of which several statements may have spoken, as one number
    for one in statements:
        where, is_known = columns.of(one), one.labels != UNKNOWN
        counts.positives[where] += one.changes.sum(axis=0)
        if (is_again := told[one.rows] > 1).any():
            image, column = np.nonzero(is_known & is_again[:, None])
            again.append(one.rows[image] * columns.count + where[column])
            is_known = is_known[~is_again]
        counts.images[where] += is_known.sum(axis=0)
    counts.images[:] += np.bincount(np.unique(np.concatenate(again)) % max(columns.count, 1), minlength=columns.count)
    return counts


def each_once(
    fingerprints: NDArray[np.int64], labels: NDArray[np.int8]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """Every image of a step once, by fingerprint, with what all of its rows say: present before absent before unknown.

    Returns:
        The fingerprints (m,), the first row of each (m,), and its labels (m, K).
    """
    kept, first, of_row = np.unique(fingerprints, return_index=True, return_inverse=True)
    united = labels[first]
    if len(kept) < len(fingerprints):
        np.maximum.at(united, of_row, labels)
    return kept, first, united
