"""The ledger of a closed-form learner: sums over images, and who said what about which image.

Sums can be added and taken away, so the solution after any number of steps is the one of all images and labels at once.
For that, an image that comes back must not count twice. The ledger knows it by an 8-byte fingerprint of its content; of
the image itself it keeps nothing but its part in the sums. Beside the fingerprint stand the labels that each step gave,
because what is to be corrected or taken back later must be known.

Images are grouped by the steps that brought them, and each group has sums of its own. When an image comes back, its
features are at hand, and it moves from one group to another. To take a step back, its groups lose what only that step
said; a group that only that step brought is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError, unknown_name
from ..core.words import listed
from ..data.images import PRESENT, UNKNOWN
from .sums import Expand, Sums

Group = tuple[int, ...]
"""The steps that brought an image, in order; the empty group holds images that are not remembered."""


class Statement(NamedTuple):
    """What one step said."""

    number: int  # of the step
    classes: tuple[str, ...]  # the k classes that it was about
    rows: NDArray[np.int64]  # (n,) its images, as places in `Ledger.fingerprints`
    labels: NDArray[np.int8]  # (n, k): 1 present, 0 absent, -1 unknown


class Counts(NamedTuple):
    """For each class, on how many images it was looked for and found."""

    images: NDArray[np.int64]
    positives: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ledger:
    """What a closed-form learner keeps; every change gives a new one.

    Attributes:
        width: d, the number of features, the last of which is 1.
        features: what the features are; only sums of the same features can be brought together.
        classes: the K classes, in column order.
        fingerprints: (N,) of the images.
        group_of: (N,) the place in `groups` of each image.
        groups: the steps of each group.
        grams, crosses: the sums of each group, with the current labels of its images; see `Sums`.
        numbers, stated, rows, labels: the parts of each step's `Statement`.
    """

    width: int
    features: str = ""
    classes: tuple[str, ...] = ()
    fingerprints: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    group_of: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    groups: tuple[Group, ...] = ()
    grams: tuple[Tensor, ...] = ()
    crosses: tuple[Tensor, ...] = ()
    numbers: tuple[int, ...] = ()
    stated: tuple[tuple[str, ...], ...] = ()
    rows: tuple[NDArray[np.int64], ...] = ()
    labels: tuple[NDArray[np.int8], ...] = ()

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What each step said, in order; none for images that are not remembered."""
        return tuple(map(Statement, self.numbers, self.stated, self.rows, self.labels))

    @property
    def remembers(self) -> bool:
        """Whether every image has a fingerprint."""
        return () not in self.groups

    def by_group(self) -> dict[Group, Sums]:
        """The sums of each group."""
        return dict(zip(self.groups, map(Sums, self.grams, self.crosses), strict=True))

    def sums(self) -> Sums:
        """Over all images."""
        return sum(self.by_group().values(), Sums.empty(self.width, len(self.classes)))

    def counts(self) -> Counts:
        """How many images each class was looked for on, and found on; without fingerprints, all images count."""
        if not self.remembers:
            sums = self.sums()
            images = np.full(len(self.classes), round(sums.images), np.int64)
            return Counts(images, sums.positives.round().long().numpy())
        now = self.labels_now()
        return Counts((now != UNKNOWN).sum(axis=0), (now == PRESENT).sum(axis=0))

    def labels_now(self, statements: Iterable[Statement] | None = None) -> NDArray[np.int8]:
        """int8 (N, K): for each image and class what was last said.

        Arguments:
            statements: if only these count, in this order.
        """
        now = np.full((len(self.fingerprints), len(self.classes)), UNKNOWN, np.int8)
        column = {name: place for place, name in enumerate(self.classes)}
        for one in self.statements if statements is None else statements:
            place = np.ix_(one.rows, np.array([column[name] for name in one.classes], np.int64))
            now[place] = np.where(one.labels == UNKNOWN, now[place], one.labels)
        return now

    def find(self, fingerprints: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the places of these images in `fingerprints`, -1 for those that were never seen."""
        if not len(self.fingerprints):
            return np.full(len(fingerprints), -1, np.int64)
        order = np.argsort(self.fingerprints)
        ranked = self.fingerprints[order]
        places = np.searchsorted(ranked, fingerprints).clip(max=len(ranked) - 1)
        return np.where(ranked[places] == fingerprints, order[places], -1)

    def with_classes(self, classes: Sequence[str]) -> Ledger:
        """With these columns in this order; a new class has been seen nowhere yet, and one that is not named is gone.

        To leave a class out is exact: the result is as if its labels had never been given. Its images stay.
        """
        place = {name: column for column, name in enumerate(self.classes)}
        source = [place.get(name) for name in classes]
        statements = []
        for one in self.statements:
            kept = [column for column, name in enumerate(one.classes) if name in classes]
            stated = tuple(one.classes[column] for column in kept)
            statements.append(one._replace(classes=stated, labels=one.labels[:, kept]))
        crosses = tuple(one.with_columns(source).cross for one in self.by_group().values())
        return replace(self, classes=tuple(classes), crosses=crosses).with_statements(statements)

    def without_class(self, name: str) -> Ledger:
        """As if the labels of one class had never been given."""
        if name not in self.classes:
            raise unknown_name("label", name, self.classes)
        return self.with_classes([one for one in self.classes if one != name])

    def renamed(self, old: str, new: str) -> Ledger:
        """With another name for a class."""
        if old not in self.classes:
            raise unknown_name("label", old, self.classes)
        if new in self.classes:
            raise UserError(f"cannot rename {old!r} to {new!r}: there is a label of that name already")
        classes, *stated = (
            tuple(new if one == old else one for one in names) for names in (self.classes, *self.stated)
        )
        return replace(self, classes=classes, stated=tuple(stated))

    def with_images(self, described: Tensor, labels: NDArray[np.int8], expand: Expand) -> Ledger:
        """With images that are not remembered: one that comes back counts again.

        Arguments:
            described: (n, p), what `expand` makes features of.
            labels: int8 (n, K); what is unknown counts as absent.
        """
        sums, added = self.by_group(), Sums.of(described, labels == PRESENT, expand, self.width)
        return self.with_sums(sums | {(): sums[()] + added if () in sums else added})

    def with_step(
        self,
        number: int,
        fingerprints: NDArray[np.int64],
        described: Tensor,
        labels: NDArray[np.int8],
        expand: Expand,
    ) -> Ledger:
        """With one more step; an image that comes back adds what is new about it, and nothing else.

        Arguments:
            number: of the step, above those of all others.
            fingerprints: (n,) of its images; one that stands there twice counts once, with the labels of both.
            described: (n, p), what `expand` makes features of.
            labels: int8 (n, K); unknown says nothing, and anything else replaces what was said before.
        """
        if number <= (last := max(self.numbers, default=0)):
            raise UserError(f"step {number} cannot be learned after step {last}; its number must be higher")
        fingerprints, described, labels = _each_once(fingerprints, described, labels)
        rows, placed = self.placed(fingerprints)
        is_stated = (labels != UNKNOWN).any(axis=0)
        stated = tuple(name for name, one in zip(self.classes, is_stated, strict=True) if one)
        told = placed.with_statements([*self.statements, Statement(number, stated, rows, labels[:, is_stated])])
        before = placed.labels_now()[rows]
        now = np.where(labels == UNKNOWN, before, labels)
        sums, moved = self.by_group(), {}
        for place in np.unique(placed.group_of[rows]):
            chosen = np.flatnonzero(placed.group_of[rows] == place)
            group = self.groups[place] if place >= 0 else ()
            both = Sums.of(described[chosen], np.hstack([before, now])[chosen] == PRESENT, expand, self.width)
            if place >= 0:  # if the whole group moves, it is dropped
                sums[group] -= both.with_columns(range(len(self.classes)))
            key = (*group, number)
            sums[key] = both.with_columns(range(len(self.classes), 2 * len(self.classes)))
            moved[key] = rows[chosen]
        return told.with_sums(sums, moved)

    def without_step(self, number: int) -> Ledger:
        """As if a step had never been: what only it brought or said is gone, and what it replaced is back.

        Raises:
            UserError: there is no such step, or what it replaced cannot be told. Images that came with the same steps
                have one sum for each class. Where a step changed which of them show a class, in correcting or in
                completing the labels of earlier steps, the sum from before is known if all of them or none showed it.
        """
        if number not in self.numbers:
            raise unknown_name("step", str(number), map(str, self.numbers))
        statements = [one for one in self.statements if one.number != number]
        now, without = self.labels_now() == PRESENT, self.labels_now(statements) == PRESENT
        sums: dict[Group, Sums] = {}
        new_place = np.full(len(self.groups), -1, np.int64)
        for place, (group, one) in enumerate(self.by_group().items()):
            left = tuple(step for step in group if step != number)
            if left or not group:
                there = self.group_of == place
                own = one if left == group else self._undone(number, one, now[there], without[there])
                sums[left] = sums[left] + own if left in sums else own
                new_place[place] = list(sums).index(left)
        group_of = new_place[self.group_of]
        stays = group_of >= 0
        new_row = np.cumsum(stays) - 1
        kept = [one._replace(rows=new_row[one.rows]) for one in statements]
        ledger = replace(self, fingerprints=self.fingerprints[stays], group_of=group_of[stays])
        gone = set(self.stated[self.numbers.index(number)]) - {name for one in kept for name in one.classes}
        names = [name for name in self.classes if name not in gone or not self.remembers]
        return ledger.with_statements(kept).with_sums(sums).with_classes(names)

    def _undone(self, number: int, sums: Sums, now: NDArray[np.bool_], without: NDArray[np.bool_]) -> Sums:
        """The sums of one group, labels (n, K) now, with the labels that there would be without a step."""
        differs = (now != without).any(axis=0)
        if (blocked := differs & without.any(axis=0) & ~without.all(axis=0)).any():
            names = listed([name for name, one in zip(self.classes, blocked, strict=True) if one])
            raise UserError(
                f"step {number} cannot be taken back: it changed labels that an earlier step had given to the same "
                f"photos ({names}), and the photos would be needed to undo that. Learn a table that says what is right"
            )
        # Where all images of the group showed a class, its column is the sum of their features; where none did, zero.
        whole = sums.total[:, None] * torch.from_numpy(without[0]).double()
        return Sums(sums.gram, torch.where(torch.from_numpy(differs), whole, sums.cross))

    def placed(self, fingerprints: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ledger]:
        """The rows of images, (n,), and a ledger with all of them; the new ones are in no group yet (-1)."""
        rows = self.find(fingerprints)
        is_new = rows < 0
        rows[is_new] = len(self.fingerprints) + np.arange(is_new.sum())
        everything = np.concatenate([self.fingerprints, fingerprints[is_new]])
        group_of = np.concatenate([self.group_of, np.full(is_new.sum(), -1, np.int64)])
        return rows, replace(self, fingerprints=everything, group_of=group_of)

    def with_statements(self, statements: Sequence[Statement]) -> Ledger:
        """With these statements in place of all others, and the sums as they are."""
        return replace(
            self,
            numbers=tuple(one.number for one in statements),
            stated=tuple(one.classes for one in statements),
            rows=tuple(one.rows for one in statements),
            labels=tuple(one.labels for one in statements),
        )

    def with_sums(self, sums: dict[Group, Sums], moved: dict[Group, NDArray[np.int64]] | None = None) -> Ledger:
        """With these sums, whose first groups are those of `group_of`.

        Arguments:
            moved: rows of images that belong to another group now; a group that loses all its images is dropped.
        """
        keys = list(sums)
        group_of = self.group_of.copy()
        for key, rows in (moved or {}).items():
            group_of[rows] = keys.index(key)
        is_kept = np.isin(np.arange(len(keys)), group_of) | np.array([not key for key in keys], bool)
        kept = [key for key, one in zip(keys, is_kept, strict=True) if one]
        return replace(
            self,
            group_of=(np.cumsum(is_kept) - 1)[group_of],
            groups=tuple(kept),
            grams=tuple(sums[key].gram for key in kept),
            crosses=tuple(sums[key].cross for key in kept),
        )


def _each_once(
    fingerprints: NDArray[np.int64], described: Tensor, labels: NDArray[np.int8]
) -> tuple[NDArray[np.int64], Tensor, NDArray[np.int8]]:
    """Every image of a step once, with what all of its rows say: present before absent before unknown."""
    kept, first, of_row = np.unique(fingerprints, return_index=True, return_inverse=True)
    if len(kept) == len(fingerprints):
        return fingerprints, described, labels
    united = labels[first]
    np.maximum.at(united, of_row, labels)
    return kept, described[first], united
