"""Two ledgers become one: images that both have seen count once, or the merge is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.words import counted
from ..data.images import PRESENT, UNKNOWN
from .ledger import Group, Ledger, Statement, check_same_features
from .sums import Sums


def merged(first: Ledger, second: Ledger) -> tuple[Ledger, dict[int, int]]:
    """Both learners' images and labels in one ledger, exactly; a class that both know is the same class.

    The columns are those of `first`, then those that only `second` has. Steps that both have count once.

    Returns:
        The ledger, and what each step of `second` is called in it.

    Raises:
        UserError: the features differ, an image is not remembered, or both have seen some of the same images in a way
            that sums cannot tell apart.
    """
    check_same_features(first, second)
    if not (first.remembers and second.remembers):
        raise UserError("cannot merge: one of the two does not remember its photos, so some might count twice")
    names = list(dict.fromkeys((*first.classes, *second.classes)))
    merger = _Merger(first.with_classes(names), second.with_classes(names))
    return merger.merge(), merger.number


class _Merger:
    """Brings two ledgers with the same columns together."""

    def __init__(self, first: Ledger, second: Ledger) -> None:
        self.first, self.second = first, second
        self.places = first.find(second.fingerprints)  # (N of second,) rows of first, -1 where it lacks the image
        self.number = self._numbers()

    def merge(self) -> Ledger:
        first, second = self.first, self.second
        sums = first.by_group()
        group_of_new: list[tuple[NDArray[np.int64], Group]] = []
        new_key: dict[Group, Group] = {}
        for place, (group, one) in enumerate(second.by_group().items()):
            there = np.flatnonzero(second.group_of == place)
            key = tuple(sorted(self.number[step] for step in group))
            known = self.places[there]
            if (known < 0).all():
                sums[key] = sums[key] + one if key in sums else one
                group_of_new.append((there, key))
            else:
                old = self._same_group(there, known)
                joined = tuple(sorted({*old, *key}))
                sums[joined], new_key[old] = self._united(there, known, sums.pop(old), one), joined
        return self._assembled(sums, group_of_new, new_key)

    def _numbers(self) -> dict[int, int]:
        """What each step of the second is called in the merged ledger: a step of both keeps its number."""
        found, following = {}, max(self.first.numbers, default=0)
        for one in self.second.statements:
            same = next((two.number for two in self.first.statements if self._is_same(one, two)), None)
            following += same is None
            found[one.number] = following if same is None else same
        return found

    def _is_same(self, one: Statement, two: Statement) -> bool:
        return (
            one.classes == two.classes
            and np.array_equal(self.second.fingerprints[one.rows], self.first.fingerprints[two.rows])
            and np.array_equal(one.labels, two.labels)
        )

    def _same_group(self, there: NDArray[np.int64], known: NDArray[np.int64]) -> Group:
        """The group of the first that has the very same images."""
        places = np.unique(self.first.group_of[known])
        if (known < 0).any() or len(places) > 1 or (self.first.group_of == places[0]).sum() != len(known):
            raise UserError(
                f"cannot merge exactly: both have seen {counted(int((self.places >= 0).sum()), 'photo')} that came "
                "with other photos in each, and sums cannot tell them apart. Let one of them learn the other's table"
            )
        return self.first.groups[places[0]]

    def _united(self, there: NDArray[np.int64], known: NDArray[np.int64], one: Sums, other: Sums) -> Sums:
        """The sums of the images that both have: counted once, with the labels of both."""
        mine, theirs = self.first.labels_now()[known], self.second.labels_now()[there]  # (n, K)
        take = []
        for column, name in enumerate(self.first.classes):
            a, b = mine[:, column], theirs[:, column]
            if not ((a == UNKNOWN).all() or (b == UNKNOWN).all() or np.array_equal(a == PRESENT, b == PRESENT)):
                raise UserError(f"cannot merge: the two disagree about {name!r} on photos that both have seen")
            take.append(column if (a == UNKNOWN).all() else None)
        added = other.with_columns(take)
        return Sums(one.gram, one.cross + added.cross)

    def _assembled(
        self, sums: dict[Group, Sums], added: list[tuple[NDArray[np.int64], Group]], new_key: dict[Group, Group]
    ) -> Ledger:
        first, second, keys = self.first, self.second, list(sums)
        rows, fingerprints = first.placed(second.fingerprints)
        group_of = np.full(len(fingerprints), -1, np.int64)
        for place, group in enumerate(first.groups):
            group_of[: len(first.group_of)][first.group_of == place] = keys.index(new_key.get(group, group))
        for there, key in added:
            group_of[rows[there]] = keys.index(key)
        new = [one for one in second.statements if self.number[one.number] not in first.numbers]
        return replace(
            first,
            fingerprints=fingerprints,
            group_of=group_of,
            groups=tuple(keys),
            grams=tuple(sums[key].gram for key in keys),
            crosses=tuple(sums[key].cross for key in keys),
            numbers=(*first.numbers, *(self.number[one.number] for one in new)),
            stated=(*first.stated, *(one.classes for one in new)),
            rows=(*first.rows, *(rows[one.rows] for one in new)),
            labels=(*first.labels, *(one.labels for one in new)),
        )
