"""The ledger of a closed-form learner: sums over images, and who said what about which image.

Sums can be added and taken away, so the solution after any number of steps is the one of all images and labels at once.
For that, an image that comes back must not count twice. The ledger knows it by an 8-byte fingerprint of its content; of
the image itself it keeps nothing. Beside the fingerprint stand the labels that each step gave, because what is to be
corrected or taken back later must be known.

Images are grouped by the steps that brought them, and each group has sums of its own. When an image comes back, its
features are at hand, and it moves from one group to another. To take a step back, its groups lose what only that step
said; a group that only that step brought is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
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

    def sums(self) -> Sums:
        """Over all images."""
        return sum(self.by_group().values(), Sums.empty(self.width, len(self.classes)))

    def counts(self) -> Counts:
        """How many images each class was looked for on, and found on; without fingerprints, all images count."""
        sums = self.sums()
        if not self.remembers:
            images = np.full(len(self.classes), round(sums.images), np.int64)
            return Counts(images, sums.positives.round().long().numpy())
        now = self.labels_now()
        return Counts((now != UNKNOWN).sum(axis=0), (now == PRESENT).sum(axis=0))

    def labels_now(self, without: int | None = None) -> NDArray[np.int8]:
        """int8 (N, K): for each image and class what was last said.

        Arguments:
            without: a step to leave out.
        """
        now = np.full((len(self.fingerprints), len(self.classes)), UNKNOWN, np.int8)
        column = {name: place for place, name in enumerate(self.classes)}
        for one in self.statements:
            if one.number != without:
                place = np.ix_(one.rows, np.array([column[name] for name in one.classes], np.int64))
                now[place] = np.where(one.labels == UNKNOWN, now[place], one.labels)
        return now

    def find(self, fingerprints: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the places of these images in `fingerprints`, -1 for those that were never seen."""
        order = np.argsort(self.fingerprints, kind="stable")
        ranked = self.fingerprints[order]
        places = np.searchsorted(ranked, fingerprints).clip(max=max(len(ranked) - 1, 0))
        if not len(ranked):
            return np.full(len(fingerprints), -1, np.int64)
        return np.where(ranked[places] == fingerprints, order[places], -1)

    def with_classes(self, classes: Sequence[str]) -> Ledger:
        """With these columns in this order; a new class has been seen nowhere yet, and one that is not named is gone.

        To leave a class out is exact: the result is as if its labels had never been given. Its images stay.
        """
        place = {name: column for column, name in enumerate(self.classes)}
        source = [place.get(name) for name in classes]
        crosses = tuple(one.with_columns(source).cross for one in self.by_group().values())
        kept = [[column for column, name in enumerate(one.classes) if name in set(classes)] for one in self.statements]
        return replace(
            self,
            classes=tuple(classes),
            crosses=crosses,
            stated=tuple(tuple(one.classes[k] for k in own) for one, own in zip(self.statements, kept, strict=True)),
            labels=tuple(one.labels[:, own] for one, own in zip(self.statements, kept, strict=True)),
        )

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
        change = {old: new}
        classes, *stated = (tuple(change.get(one, one) for one in names) for names in (self.classes, *self.stated))
        return replace(self, classes=classes, stated=tuple(stated))

    def with_images(self, described: Tensor, labels: NDArray[np.int8], expand: Expand) -> Ledger:
        """With images that are not remembered: one that comes back counts again.

        Arguments:
            described: (n, p), what `expand` makes features of.
            labels: int8 (n, K); what is unknown counts as absent.
        """
        added = Sums.of(described, labels == PRESENT, expand, self.width)
        return self._with_sums(self.by_group() | {(): self.by_group().get((), self._nothing()) + added})

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
        fingerprints, described, labels = _each_once(fingerprints, described, labels)
        rows, all_fingerprints = self.placed(fingerprints)
        is_stated = (labels != UNKNOWN).any(axis=0)
        group_of = np.concatenate([self.group_of, np.full(len(all_fingerprints) - len(self.group_of), -1, np.int64)])
        told = replace(
            self,
            fingerprints=all_fingerprints,
            group_of=group_of,
            numbers=(*self.numbers, number),
            stated=(*self.stated, tuple(np.array(self.classes, object)[is_stated])),
            rows=(*self.rows, rows),
            labels=(*self.labels, labels[:, is_stated]),
        )
        before, now = self.labels_now() == PRESENT, told.labels_now() == PRESENT
        sums, moved = self.by_group(), {}
        for place in np.unique(group_of[rows]):
            chosen = np.flatnonzero(group_of[rows] == place)
            there = rows[chosen]
            known = self.groups[place] if place >= 0 else ()
            key = (*known, number)
            sums[key], moved[key] = Sums.of(described[chosen], now[there], expand, self.width), there
            if place >= 0:
                gone = Sums.of(described[chosen], before[there], expand, self.width)
                is_whole = len(there) == (self.group_of == place).sum()
                sums[known] = self._nothing() if is_whole else sums[known] - gone
        return told._with_sums(sums, moved)

    def without_step(self, number: int) -> Ledger:
        """As if a step had never been.

        Images that only this step brought are gone. Of the others, the labels that only this step gave are gone.

        Raises:
            UserError: there is no such step, or it changed or completed what an earlier step had said about the same
                image: what the sums would be without that cannot be told any more.
        """
        if number not in self.numbers:
            raise unknown_name("step", str(number), map(str, self.numbers))
        now, without = self.labels_now() == PRESENT, self.labels_now(without=number) == PRESENT
        sums: dict[Group, Sums] = {}
        for place, (group, one) in enumerate(self.by_group().items()):
            left = tuple(step for step in group if step != number)
            if not left and group:
                continue
            there = self.group_of == place
            own = one if left == group else self._reduced(number, one, now[there], without[there])
            sums[left] = sums.get(left, self._nothing()) + own
        return self._without(number, sums)

    def _reduced(self, number: int, sums: Sums, now: NDArray[np.bool_], without: NDArray[np.bool_]) -> Sums:
        """The sums of one group, labels (n, K) now, with the labels that there would be without a step."""
        differs = (now != without).any(axis=0)
        if (blocked := differs & without.any(axis=0)).any():
            names = listed([name for name, one in zip(self.classes, blocked, strict=True) if one])
            raise UserError(
                f"step {number} cannot be taken back: it changed labels that an earlier step had given to the same "
                f"photos ({names}), and the photos would be needed to undo that. Learn a table that says what is right"
            )
        return sums.with_columns([None if gone else column for column, gone in enumerate(differs)])

    def _without(self, number: int, sums: dict[Group, Sums]) -> Ledger:
        """The ledger with these sums, without a step's statement and without what only it had."""
        kept = [place for place, one in enumerate(self.numbers) if one != number]
        stays = np.array([self.groups[place] != (number,) for place in self.group_of], bool)
        new_row = np.cumsum(stays) - 1
        keys = list(sums)
        left = [tuple(step for step in self.groups[place] if step != number) for place in self.group_of[stays]]
        ledger = replace(
            self,
            fingerprints=self.fingerprints[stays],
            group_of=np.array([keys.index(group) for group in left], np.int64),
            numbers=tuple(self.numbers[place] for place in kept),
            stated=tuple(self.stated[place] for place in kept),
            rows=tuple(new_row[self.rows[place]] for place in kept),
            labels=tuple(self.labels[place] for place in kept),
        )._with_sums(sums)
        used = {name for names in ledger.stated for name in names}
        return ledger.with_classes([name for name in self.classes if name in used or not self.remembers])

    def placed(self, fingerprints: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of images, (n,), and the fingerprints of all images, old and new."""
        rows = self.find(fingerprints)
        is_new = rows < 0
        rows[is_new] = len(self.fingerprints) + np.arange(is_new.sum())
        return rows, np.concatenate([self.fingerprints, fingerprints[is_new]])

    def _nothing(self) -> Sums:
        return Sums.empty(self.width, len(self.classes))

    def by_group(self) -> dict[Group, Sums]:
        """The sums of each group."""
        return dict(zip(self.groups, map(Sums, self.grams, self.crosses), strict=True))

    def _with_sums(self, sums: dict[Group, Sums], moved: dict[Group, NDArray[np.int64]] | None = None) -> Ledger:
        """With these sums, whose first groups are those of `group_of`; `moved` images belong to another group now."""
        keys = list(sums)
        group_of = self.group_of.copy()
        for key, rows in (moved or {}).items():
            group_of[rows] = keys.index(key)
        kept = [place for place, key in enumerate(keys) if not key or (group_of == place).any()]
        new_place = np.cumsum(np.isin(np.arange(len(keys)), kept)) - 1
        return replace(
            self,
            group_of=new_place[group_of] if len(group_of) else group_of,
            groups=tuple(keys[place] for place in kept),
            grams=tuple(sums[keys[place]].gram for place in kept),
            crosses=tuple(sums[keys[place]].cross for place in kept),
        )


def _each_once(
    fingerprints: NDArray[np.int64], described: Tensor, labels: NDArray[np.int8]
) -> tuple[NDArray[np.int64], Tensor, NDArray[np.int8]]:
    """Every image of a step once, with what all of its rows say: present before absent before unknown."""
    kept, first, of_row = np.unique(fingerprints, return_index=True, return_inverse=True)
    if len(kept) == len(fingerprints):
        return fingerprints, described, labels
    united = labels[first].copy()
    np.maximum.at(united, of_row, labels)
    return kept, described[first], united


def check_same_features(first: Ledger, second: Ledger) -> None:
    """Make sure that sums can be brought together.

    Raises:
        UserError: they are sums of different features.
    """
    if (first.features, first.width) != (second.features, second.width):
        raise UserError(
            "the two do not have the same features: they need the same backbone, weights, image size and options"
        )
