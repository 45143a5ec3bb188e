"""Two ledgers become one: images that both have seen count once, or the merge is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.words import counted, listed
from ..data.images import PRESENT
from .ledger import FORGOTTEN, SEVERAL, Ledger
from .statements import Columns, Statement
from .sums import Sums


def merged(first: Ledger, second: Ledger) -> tuple[Ledger, dict[int, int]]:
    """Both learners' images and labels in one ledger, exactly; a class that both know is the same class.

    The columns are those of `first`, then those that only `second` has. Steps that both began with count once; the
    others of `second` follow all of `first`, with new numbers.

    Returns:
        The ledger, and what each step of `second` is called in it.

    Raises:
        UserError: the features differ, an image is not remembered, both have given labels of the same class to the same
            image, or both have seen some of the same images in a way that sums cannot tell apart.
    """
    check_same_features(first, second)
    if not (first.remembers and second.remembers):
        raise UserError("cannot merge: one of the two does not remember its photos, so some might count twice")
    names = list(dict.fromkeys((*first.classes, *second.classes)))
    merger = _Merger(first.with_classes(names), second.with_classes(names))
    return merger.merge(), merger.number


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
        added = [one._replace(number=self.number[one.number], rows=self.rows[one.rows]) for one in new]
        told = self.placed.with_statements([*first.statements, *added])
        self._check_labels(told)
        grams, group_of = first.by_group(), self.placed.group_of.copy()
        for group, gram in second.by_group().items():
            rows = self.rows[second.group_of == group]
            is_new = self.placed.group_of[rows] == FORGOTTEN
            if is_new.any():  # the matrices of the first have all others already
                target = group if group == SEVERAL else self.number.get(group, group)
                own = gram - self._known_part(rows[~is_new])
                grams[target] = grams[target] + own if target in grams else own
                group_of[rows[is_new]] = target
        return replace(told, group_of=group_of).with_grams(grams)

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
            and np.array_equal(one.changes, two.changes)
            and np.array_equal(one.guesses, two.guesses)
        )

    def _check_labels(self, told: Ledger) -> None:
        """Make sure that the changes of all steps add up to what was last said."""
        total = np.zeros((len(told.fingerprints), len(told.classes)), np.int64)
        columns = Columns(told.classes)
        for one in told.statements:
            total[np.ix_(one.rows, columns.of(one))] += one.changes
        if (differs := (total != (told.labels_now() == PRESENT)).any(axis=0)).any():
            names = listed([name for name, one in zip(told.classes, differs, strict=True) if one])
            raise UserError(
                f"cannot merge exactly: both have given labels to the same photos on their own ({names}). Let one of "
                "them learn the other's table"
            )

    def _known_part(self, rows: NDArray[np.int64]) -> Tensor:
        """The matrix of images that the first has as well: they must be all of some of its groups."""
        groups = np.unique(self.placed.group_of[rows]).tolist()
        if np.isin(self.first.group_of, groups).sum() != len(rows):
            known = counted(int((self.placed.group_of[self.rows] != FORGOTTEN).sum()), "photo")
            raise UserError(
                f"cannot merge exactly: both have seen {known} that came with other photos in each, and sums cannot "
                "tell them apart. Let one of them learn the other's table"
            )
        grams = self.first.by_group()
        return sum((grams[group] for group in groups), Sums.empty(self.first.width).gram)
