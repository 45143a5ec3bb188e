"""Two ledgers become one: images that both have seen count once, or the merge is refused."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.words import counted, listed
from ..data.images import PRESENT, UNKNOWN
from .ledger import Group, Ledger, Statement
from .sums import Sums

MIXTURES = ((1, 0), (0, 1), (1, 1))  # how often the first's and the second's sum of a class count


def merged(first: Ledger, second: Ledger) -> Ledger:
    """Both learners' images and labels in one ledger, exactly; a class that both know is the same class.

    The columns are those of `first`, then those that only `second` has. Steps that both began with count once; the
    others of `second` follow all of `first`, with new numbers.

    Raises:
        UserError: the features differ, an image is not remembered, the two disagree, or both have seen some of the same
            images in a way that sums cannot tell apart.
    """
    check_same_features(first, second)
    if not (first.remembers and second.remembers):
        raise UserError("cannot merge: one of the two does not remember its photos, so some might count twice")
    names = list(dict.fromkeys((*first.classes, *second.classes)))
    return _Merger(first.with_classes(names), second.with_classes(names)).merge()


def check_same_features(first: Ledger, second: Ledger) -> None:
    """Make sure that sums can be brought together.

    Raises:
        UserError: they are sums of different features.
    """
    if (first.features, first.width) != (second.features, second.width):
        raise UserError(
            "the two do not have the same features: they need the same backbone, weights, image size and options"
        )


class _Merger:
    """Brings two ledgers with the same columns together."""

    def __init__(self, first: Ledger, second: Ledger) -> None:
        self.first, self.second = first, second
        self.rows, self.placed = first.placed(second.fingerprints)  # (N of second,) in the merged ledger
        self.number = self._numbers()

    def merge(self) -> Ledger:
        first, second = self.first, self.second
        new = [one for one in second.statements if self.number[one.number] not in first.numbers]
        self._check_agreement(new)
        added = [one._replace(number=self.number[one.number], rows=self.rows[one.rows]) for one in new]
        told = self.placed.with_statements([*first.statements, *added])
        now = told.labels_now() == PRESENT  # (N, K)
        sums, moved = first.by_group(), {}
        for place, (group, one) in enumerate(second.by_group().items()):
            there = np.flatnonzero(second.group_of == place)
            rows = self.rows[there]
            key = tuple(sorted(self.number[step] for step in group))
            if (self.placed.group_of[rows] >= 0).any():
                old = self._same_group(rows)
                key = tuple(sorted({*old, *key}))
                one = self._united(sums[old], one, there, now[rows])
            sums[key], moved[key] = one, rows
        return told.with_sums(sums, moved)

    def _numbers(self) -> dict[int, int]:
        """What each step of the second is called in the merged ledger: one of those that both began with as before."""
        found, last, rest = {}, max(self.first.numbers, default=0), list(self.first.statements)
        for one in self.second.statements:
            same = [place for place, two in enumerate(rest) if self._is_same(one, two)]
            # A step of its own comes after all of the first, and what it said before another step must stay before it.
            last, rest = (last, rest[same[0] :]) if same else (last + 1, [])
            found[one.number] = rest.pop(0).number if same else last
        return found

    def _is_same(self, one: Statement, two: Statement) -> bool:
        return (
            one.classes == two.classes
            and np.array_equal(self.rows[one.rows], two.rows)
            and np.array_equal(one.labels, two.labels)
        )

    def _check_agreement(self, new: list[Statement]) -> None:
        """Make sure that what each said on its own is no contradiction."""
        shared = set(self.number.values())
        mine = self.placed.labels_now([one for one in self.first.statements if one.number not in shared])[self.rows]
        theirs = self.second.labels_now(new)
        differs = ((mine != theirs) & (mine != UNKNOWN) & (theirs != UNKNOWN)).any(axis=0)
        if differs.any():
            names = listed([name for name, one in zip(self.first.classes, differs, strict=True) if one])
            raise UserError(f"cannot merge: the two disagree about photos that both have seen ({names})")

    def _same_group(self, rows: NDArray[np.int64]) -> Group:
        """The group of the first that has the very same images."""
        places = np.unique(self.placed.group_of[rows])
        if len(places) > 1 or (self.first.group_of == places[0]).sum() != len(rows):
            raise self._cannot_tell()
        return self.first.groups[places[0]]

    def _united(self, one: Sums, other: Sums, there: NDArray[np.int64], now: NDArray[np.bool_]) -> Sums:
        """The sums of images that both have, rows `there` of the second: counted once, with the labels now, (n, K)."""
        mine, theirs = self.placed.labels_now()[self.rows[there]] == PRESENT, self.second.labels_now()[there] == PRESENT
        cross = torch.empty_like(one.cross)
        for column in range(now.shape[1]):
            a, b = mine[:, column].astype(int), theirs[:, column].astype(int)
            fitting = [mix for mix in MIXTURES if np.array_equal(mix[0] * a + mix[1] * b, now[:, column])]
            if not fitting:
                raise self._cannot_tell()
            cross[:, column] = fitting[0][0] * one.cross[:, column] + fitting[0][1] * other.cross[:, column]
        return Sums(one.gram, cross)

    def _cannot_tell(self) -> UserError:
        known = int((self.placed.group_of[self.rows] >= 0).sum())
        return UserError(
            f"cannot merge exactly: both have seen {counted(known, 'photo')} that came with other photos or labels in "
            "each, and sums cannot tell them apart. Let one of them learn the other's table"
        )
