"""The ledger of a closed-form learner: sums over images, and who said what about which image.

Sums can be added and taken away, so the solution after any number of steps is the one of all images and labels at once.
For that, an image that comes back must not count twice. The ledger knows it by an 8-byte fingerprint of its content; of
the image itself it keeps nothing but its part in the sums. Beside the fingerprint stand the labels that each step gave,
because what is to be corrected or taken back later must be known.

To take a step back, two things are kept of it: the matrix of the images that it alone has brought, and what it has
changed in the sums of the labels. An image that comes back moves to one common matrix of those that several steps have
brought, as its features are at hand then. Only the newest steps have a matrix of their own; those of older steps are
added to the common one. So a step costs the same and keeps as much after many steps as after a few, but for a column
for each label that it speaks of, and a row for each image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError, unknown_name
from ..core.words import listed
from ..data.images import PRESENT, UNKNOWN
from .statements import Columns, Counts, Statement, counts_of, each_once, guesses_of, labels_of
from .sums import SummedImages, Sums, combined

SEVERAL, FORGOTTEN = 0, -1  # groups of images that several steps have brought, and that are not remembered
OWN = 32  # newest steps with a matrix of their own: more than anyone takes back, and memory for no more matrices


@dataclass(frozen=True, eq=False)
class Ledger:
    """What a closed-form learner keeps; every change gives a new one.

    Attributes:
        width: d, the number of features, the last of which is 1.
        features: what the features are; only sums of the same features can be brought together.
        classes: the K classes, in column order.
        fingerprints: (N,) of the images.
        group_of: (N,) the group whose matrix each image is in: that of its only step, or `SEVERAL`.
        groups, grams: each group and its matrix; see `Sums`.
        forgotten: (d, K), the sum of z y' over images that are not remembered.
        numbers, stated, rows, labels, changes, crosses, guesses: the parts of each step's `Statement`; an earlier
            version has saved no guesses.
    """

    width: int
    features: str = ""
    classes: tuple[str, ...] = ()
    fingerprints: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    group_of: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    groups: tuple[int, ...] = ()
    grams: tuple[Tensor, ...] = ()
    forgotten: Tensor | None = None
    numbers: tuple[int, ...] = ()
    stated: tuple[tuple[str, ...], ...] = ()
    rows: tuple[NDArray[np.int64], ...] = ()
    labels: tuple[NDArray[np.int8], ...] = ()
    changes: tuple[NDArray[np.int8], ...] = ()
    crosses: tuple[Tensor, ...] = ()
    guesses: tuple[NDArray[np.float32], ...] = ()

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What each step said, in order; none for images that are not remembered."""
        guesses = self.guesses or [np.empty((len(one), 0), np.float32) for one in self.rows]
        parts = self.numbers, self.stated, self.rows, self.labels, self.changes, self.crosses, guesses
        return tuple(map(Statement, *parts))

    @property
    def remembers(self) -> bool:
        """Whether every image has a fingerprint."""
        return FORGOTTEN not in self.groups

    @property
    def images(self) -> float:
        """How many there are."""
        return sum(float(gram[-1]) for gram in self.grams)

    def sums(self) -> Sums:
        """Over all images."""
        sums = Sums.empty(self.width, len(self.classes))
        for gram in self.grams:
            sums.gram.add_(gram)
        if self.forgotten is not None:
            sums.cross.add_(self.forgotten)
        if self.crosses:
            places = np.concatenate([*map(Columns(self.classes).of, self.statements)])
            sums.cross.index_add_(1, torch.from_numpy(places), torch.cat(self.crosses, 1))
        return sums

    def counts(self) -> Counts:
        """How many images each class was looked for on, and found on; without fingerprints, all images count."""
        if not self.remembers:
            sums = self.sums()
            images = np.full(len(self.classes), round(sums.images), np.int64)
            return Counts(images, sums.positives.round().long().numpy())
        return counts_of(self.statements, len(self.fingerprints), Columns(self.classes))

    def labels_now(
        self, rows: NDArray[np.int64] | None = None, statements: Sequence[Statement] | None = None
    ) -> NDArray[np.int8]:
        """int8 (n, K): for each image and class what was last said.

        Arguments:
            rows: (n,) places of images in `fingerprints`, if only these are asked for.
            statements: if only these count, in this order.
        """
        total = len(self.fingerprints)
        told = self.statements if statements is None else statements
        return labels_of(told, np.arange(total) if rows is None else rows, total, Columns(self.classes))

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
        forgotten, left = None, set(classes)
        if self.forgotten is not None:
            place = {name: column for column, name in enumerate(self.classes)}
            forgotten = Sums(torch.empty(0), self.forgotten).with_columns([place.get(name) for name in classes]).cross
        ledger = replace(self, classes=tuple(classes), forgotten=forgotten)
        if left.issuperset(self.classes):
            return ledger
        return ledger.with_statements([_about(one, left) for one in self.statements])

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

    def joined(self, number: int, label: str, into: str, features: Callable[[NDArray[np.int64]], Tensor]) -> Ledger:
        """With two classes made one: what shows `label` shows `into`, and `label` is gone.

        Its sum becomes part of the other's. Only where an image would count twice its features are needed.

        Arguments:
            number: of the step that this is, above those of all others.
            features: from rows (n,) to the features (n, d) of these images; raises UserError where it has none.
        """
        gone, kept = self.classes.index(label), self.classes.index(into)
        every = np.arange(len(self.fingerprints))
        now = self.labels_now()[:, [gone, kept]]
        guesses = guesses_of(self.statements, every, len(every), Columns(self.classes))[:, [gone, kept]]
        is_moved = (now[:, 0] == PRESENT) & (now[:, 1] != PRESENT)
        is_guessed = (guesses[:, 0] != 0) & (now == UNKNOWN).all(axis=1)
        added = np.where(is_moved, -guesses[:, 1], np.where(is_guessed, guesses[:, 0], 0.0)).astype(np.float32)
        wrong = added + is_moved - np.where(now[:, 0] == PRESENT, 1, guesses[:, 0])  # what the sum of `label` has not
        rows = np.flatnonzero(is_moved | (added != 0))
        cross = self.sums().cross[:, gone].clone()
        if (twice := np.flatnonzero(wrong)).size:
            cross += features(twice).double().T @ torch.from_numpy(wrong[twice]).double()
        told = Statement(
            number,
            (into,),
            rows,
            np.where(is_moved, PRESENT, UNKNOWN)[rows, None].astype(np.int8),
            is_moved[rows, None].astype(np.int8),
            cross[:, None],
            added[rows, None],
        )
        return self.with_statements([*self.statements, told]).without_class(label)

    def with_images(self, chosen: NDArray[np.int64], labels: NDArray[np.int8], images: SummedImages) -> Ledger:
        """With images that are not remembered: one that comes back counts again.

        Arguments:
            chosen: (n,) places of these among the images.
            labels: int8 (n, K); what is unknown counts as absent.
        """
        added = images.sums(chosen, labels == PRESENT)
        grams = self.by_group()
        grams[FORGOTTEN] = grams[FORGOTTEN] + added.gram if FORGOTTEN in grams else added.gram
        forgotten = added.cross if self.forgotten is None else self.forgotten + added.cross
        return replace(self, forgotten=forgotten).with_grams(grams)

    def with_step(
        self,
        number: int,
        fingerprints: NDArray[np.int64],
        labels: NDArray[np.int8],
        images: SummedImages,
        expected: NDArray[np.float32] | None = None,
    ) -> Ledger:
        """With one more step; an image that comes back adds what is new about it, and nothing else.

        Arguments:
            number: of the step, above those of all others.
            fingerprints: (n,) of its images; one that stands there twice counts once, with the labels of both.
            labels: int8 (n, K); unknown says nothing, and anything else replaces what was said before.
            images: the n images, to be summed over in the order of their fingerprints.
            expected: (n, K), what counts on a new image for a class of which nothing is known; None for absent. An
                image with its own score leaves the weights of the class as they are.
        """
        if number <= (last := max(self.numbers, default=0)):
            raise UserError(f"step {number} cannot be learned after step {last}; its number must be higher")
        fingerprints, places, labels = each_once(fingerprints, labels)
        rows, placed = self.placed(fingerprints)
        before = placed.labels_now(rows)
        now = np.where(labels == UNKNOWN, before, labels)
        guesses = placed.new_guesses(rows, labels, None if expected is None else expected[places])
        is_stated = (labels != UNKNOWN).any(axis=0) | guesses.any(axis=0)
        stated = tuple(name for name, one in zip(self.classes, is_stated, strict=True) if one)
        changes = ((now == PRESENT).astype(np.int8) - (before == PRESENT))[:, is_stated]
        guesses = guesses[:, is_stated if guesses.any() else []]
        values = changes + guesses if guesses.size else changes
        cross = torch.zeros(self.width, len(stated), dtype=torch.float64)
        grams, group_of = self.by_group(), placed.group_of.copy()
        for group in np.unique(group_of[rows]):
            chosen = np.flatnonzero(group_of[rows] == group)
            sums = images.sums(places[chosen], values[chosen])
            cross = cross + sums.cross
            if group == SEVERAL:
                continue
            target = number if group == FORGOTTEN else SEVERAL  # no image is in the group of the forgotten ones
            grams[target] = combined(np.add, grams[target], sums.gram) if target in grams else sums.gram
            placed.group_of[rows[chosen]] = target
            if group != FORGOTTEN:  # a group that loses all its images is dropped
                grams[int(group)] = combined(np.subtract, grams[int(group)], sums.gram)
        told = Statement(number, stated, rows, labels[:, is_stated], changes, cross, guesses)
        return placed.with_statements([*self.statements, told]).with_grams(grams)

    def new_guesses(
        self, rows: NDArray[np.int64], labels: NDArray[np.int8], expected: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """(n, K), what a step adds to the guesses: those of images that are in no matrix yet, and none where it knows.

        Arguments:
            rows: (n,) the images of the step.
            labels, expected: (n, K), see `with_step`.
        """
        guesses = guesses_of(self.statements, rows, len(self.fingerprints), Columns(self.classes))
        guesses = np.where(labels == UNKNOWN, np.float32(0), -guesses)
        if expected is None:
            return guesses
        is_new = (self.group_of[rows] == FORGOTTEN)[:, None]
        return np.where(is_new & (labels == UNKNOWN), expected.astype(np.float32), guesses)

    def without_step(self, number: int) -> Ledger:
        """As if a step had never been: what only it brought or said is gone, and what it replaced is back.

        That works for the last step, and for an earlier one if no later step has said anything about the same labels of
        the same images. Only where images came with several steps that are taken back one after another, sums may not
        tell them apart any more.

        Raises:
            UserError: there is no such step, or it cannot be taken back.
        """
        if number not in self.numbers:
            raise unknown_name("step", str(number), map(str, self.numbers))
        (gone,) = (one for one in self.statements if one.number == number)
        statements = [one for one in self.statements if one.number != number]
        columns = Columns(self.classes).of(gone)
        now, without = (self.labels_now(gone.rows, told)[:, columns] == PRESENT for told in (None, statements))
        if (blocked := ((now.astype(np.int8) - without) != gone.changes).any(axis=0)).any():
            about = listed([name for name, one in zip(gone.classes, blocked, strict=True) if one])
            raise UserError(
                f"step {number} cannot be taken back: a later step has said something about the same labels of the "
                f"same photos ({about}); take the later one back first, or learn a table that says what is right"
            )
        stays = np.zeros(len(self.fingerprints), bool)
        for one in statements:
            stays[one.rows] = True
        grams = {group: gram for group, gram in self.by_group().items() if self._stays(group, stays, number)}
        new_row = np.cumsum(stays) - 1
        kept = [one._replace(rows=new_row[one.rows]) for one in statements]
        ledger = replace(self, fingerprints=self.fingerprints[stays], group_of=self.group_of[stays])
        only = set(gone.classes) - {name for one in kept for name in one.classes}
        names = [name for name in self.classes if name not in only or not self.remembers]
        return ledger.with_statements(kept).with_grams(grams).with_classes(names)

    def _stays(self, group: int, stays: NDArray[np.bool_], number: int) -> bool:
        """Whether the images of a group stay, (N,) bool; all of them do, or none."""
        there = stays[self.group_of == group]
        if group != FORGOTTEN and there.any() and not there.all():
            if number not in self.numbers[-OWN:]:
                raise UserError(
                    f"step {number} cannot be taken back: only the newest {OWN} steps keep sums of their own, and "
                    f"step {number} is older. Its labels can still be forgotten by name"
                )
            raise UserError(
                f"step {number} cannot be taken back: some of its photos had also come with a step that is gone now, "
                "and sums cannot tell them from those that stay"
            )
        return group == FORGOTTEN or bool(there.all())

    def by_group(self) -> dict[int, Tensor]:
        """The matrix of each group."""
        return dict(zip(self.groups, self.grams, strict=True))

    def placed(self, fingerprints: NDArray[np.int64]) -> tuple[NDArray[np.int64], Ledger]:
        """The rows of images, (n,), and a ledger with all of them; the new ones are in no matrix yet (`FORGOTTEN`)."""
        rows = self.find(fingerprints)
        is_new = rows < 0
        rows[is_new] = len(self.fingerprints) + np.arange(is_new.sum())
        everything = np.concatenate([self.fingerprints, fingerprints[is_new]])
        group_of = np.concatenate([self.group_of, np.full(is_new.sum(), FORGOTTEN, np.int64)])
        return rows, replace(self, fingerprints=everything, group_of=group_of)

    def with_statements(self, statements: Sequence[Statement]) -> Ledger:
        """With these statements in place of all others."""
        return replace(
            self,
            numbers=tuple(one.number for one in statements),
            stated=tuple(one.classes for one in statements),
            rows=tuple(one.rows for one in statements),
            labels=tuple(one.labels for one in statements),
            changes=tuple(one.changes for one in statements),
            crosses=tuple(one.cross for one in statements),
            guesses=tuple(one.guesses for one in statements),
        )

    def with_grams(self, grams: dict[int, Tensor]) -> Ledger:
        """With these matrices, those of old steps in the common one; those of groups without an image are dropped."""
        own = {SEVERAL, FORGOTTEN, *self.numbers[-OWN:]}
        used = {FORGOTTEN, *np.unique(self.group_of).tolist()}
        kept = {group: gram for group, gram in grams.items() if group in own & used}
        old = [group for group in grams if group in used - own]
        for group in old:
            kept[SEVERAL] = combined(np.add, kept[SEVERAL], grams[group]) if SEVERAL in kept else grams[group]
        group_of = np.where(np.isin(self.group_of, old), SEVERAL, self.group_of)
        return replace(self, group_of=group_of, groups=tuple(kept), grams=tuple(kept.values()))


def _about(one: Statement, names: set[str]) -> Statement:
    """What a statement said about these classes."""
    kept = [column for column, name in enumerate(one.classes) if name in names]
    if len(kept) == len(one.classes):
        return one
    stated = tuple(one.classes[column] for column in kept)
    guesses = one.guesses[:, kept] if one.guesses.size else one.guesses
    return one._replace(
        classes=stated,
        labels=one.labels[:, kept],
        changes=one.changes[:, kept],
        cross=one.cross[:, kept],
        guesses=guesses,
    )
