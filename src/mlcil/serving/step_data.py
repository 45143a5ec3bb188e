"""What a table tells a tagger: its photos, and their labels in the tagger's own columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.words import listed
from ..data.contents import Contents, fingerprinted
from ..data.denials import with_denials
from ..data.features import KeptStem
from ..data.images import ABSENT, PRESENT, UNKNOWN, DataSet, Finding, LabelledImages, Level
from ..data.label_names import find_look_alikes
from ..data.listing import Listing
from ..data.review import count_labels
from ..data.sources import read
from ..models.ledger import Ledger
from ..training.config import RunSettings
from ..training.prepare import Say, Store, open_contents, open_images

FEW = 10  # photos of a label below which its tags are little better than guesses


@dataclass(frozen=True)
class Photos:
    """Photos with labels in the columns of a tagger; unreadable ones are left out.

    Attributes:
        images: N photos, labels int8 (N, K).
        store: the pixels or kept features, with `rows` (N,) of it.
        bad: one line for each photo that cannot be read.
    """

    images: LabelledImages
    store: Store
    rows: NDArray[np.int64]
    bad: list[str]


@dataclass(frozen=True)
class StepLabels:
    """What a table says; its photos are not decoded yet.

    Attributes:
        train, test: the photos to learn from, and those that are only to be measured on.
        known: the labels that the tagger knew before.
        stated: the labels of the table.
        findings: what its owner should know.
        contents: what has looked into the photos.
    """

    train: LabelledImages
    test: LabelledImages
    known: tuple[str, ...]
    stated: tuple[str, ...]
    findings: tuple[Finding, ...]
    contents: Contents

    def opened(self, settings: RunSettings, stem: KeptStem | None, say: Say) -> StepData:
        """Decode the photos, or compute what a stem makes of them; say which cannot be read.

        Raises:
            UserError: there is nothing to learn.
        """
        train = _opened(self.train, settings, self.contents, say, stem, settings.augment)
        test = _opened(self.test, settings, self.contents, say, stem)
        for reason in (*train.bad, *test.bad):
            say(f"left out: {reason}")
        if not len(train.rows):
            raise UserError(f"{settings.data} has no photo that can be read and says anything about a label")
        step = StepData(train, test, len(self.known), self.stated, self.findings)
        return replace(step, findings=(*self.findings, *_review(step, self.known)))


@dataclass(frozen=True)
class StepData:
    """What a table tells.

    Attributes:
        train, test: the photos to learn from, and those that are only to be measured on.
        first: the number of labels that the tagger knew before; the columns from there on are new.
        stated: the labels of the table.
        findings: what its owner should know.
    """

    train: Photos
    test: Photos
    first: int
    stated: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def new_labels(self) -> tuple[str, ...]:
        """The labels that the tagger did not know before."""
        return self.train.images.classes[self.first :]


def read_step(
    data: str,
    settings: RunSettings,
    known: Sequence[str],
    ledger: Ledger | None,
    labels: Sequence[str] | None,
    holds_out: bool,
    say: Say,
) -> StepLabels:
    """Read a table for a tagger with the labels `known`.

    Arguments:
        ledger: of the tagger, if it remembers photos: a label that a photo was given stays unless it is denied.
        labels: of the table that are to be learned; None for all.
        holds_out: whether some photos are set aside to measure on where the table does not say which.

    Raises:
        UserError: the table cannot be read, or contradicts itself.
    """
    contents = open_contents(settings, say)
    found = read_images(data, settings.images, contents, holds_out)
    train, denied = with_denials(found.train)
    test, _ = with_denials(found.test)
    stated = tuple(train.classes) if labels is None else tuple(labels)
    test = in_columns(test, train.classes).with_classes(stated)
    columns = [train.classes.index(name) for name in train.with_classes(stated).classes]
    train, denied = train.with_classes(stated), denied[:, columns]
    classes = (*known, *(name for name in stated if name not in known))
    train = in_columns(fingerprinted(train, contents), classes)
    if ledger is not None:
        train = _keep_what_was_given(train, in_columns_of(denied, stated, classes), ledger)
    return StepLabels(train, in_columns(test, classes), tuple(known), stated, found.findings, contents)


def read_check(
    data: str, settings: RunSettings, known: Sequence[str], say: Say, stem: KeptStem | None = None
) -> Photos:
    """Read a table to measure the labels `known` on, whatever part its photos are for; open its photos.

    Raises:
        UserError: it cannot be read, or has none of the labels.
    """
    contents = open_contents(settings, say)
    found = read_known(data, settings.images, contents).images
    if not set(found.classes) & set(known):
        raise UserError(f"{data} has none of the labels that the tagger knows ({listed(known)})")
    return _opened(in_columns(found, known), settings, contents, say, stem)


def read_images(data: str, images: str | None, contents: Contents, holds_out: bool) -> DataSet:
    """Read a table or any other data set; a part without photos stays empty."""
    found = read(data, images)
    return found.united(contents, holds_out) if isinstance(found, Listing) else found


class Known(NamedTuple):
    """Photos whose labels are known, and what their owner should know about them."""

    images: LabelledImages
    findings: tuple[Finding, ...]


def read_known(data: str, images: str | None, contents: Contents) -> Known:
    """Read photos to measure on: all of a table, whatever its split, or the test images of a published data set.

    Raises:
        UserError: the data cannot be read, or contradict themselves.
    """
    found = read(data, images)
    if not isinstance(found, Listing):
        return Known(with_denials(fingerprinted(found.test, contents))[0], found.findings)
    # Neither splits nor sessions matter here, so each photo is one, whatever it is listed for.
    plain = replace(found, parts=("train",) * len(found.paths), arrivals=np.zeros_like(found.arrivals))
    whole = plain.united(contents, draws=False)
    return Known(with_denials(whole.train)[0], whole.findings)


def pictures_of(images: LabelledImages) -> Sequence[str] | list[NDArray[np.uint8]]:
    """What to read: the files, or the pixels (H, W, 3) of images that exist only in memory."""
    return images.paths if images.pixels is None else list(images.pixels)


def in_columns(images: LabelledImages, classes: Sequence[str]) -> LabelledImages:
    """The images with these columns; a label that they say nothing about is unknown, and others are left out."""
    labels = np.full((len(images), len(classes)), UNKNOWN, np.int8)
    for place, name in enumerate(classes):
        if name in images.classes:
            labels[:, place] = images.labels[:, images.classes.index(name)]
    return replace(images, labels=labels, classes=tuple(classes))


def in_columns_of(values: NDArray[np.bool_], names: Sequence[str], classes: Sequence[str]) -> NDArray[np.bool_]:
    """bool (N, k) of these names in the columns of all classes, bool (N, K)."""
    wide = np.zeros((len(values), len(classes)), bool)
    wide[:, [classes.index(name) for name in names]] = values
    return wide


def _keep_what_was_given(images: LabelledImages, denied: NDArray[np.bool_], ledger: Ledger) -> LabelledImages:
    """Say nothing where a photo that comes back merely lacks a label that it was given before."""
    assert images.fingerprints is not None
    rows = ledger.find(images.fingerprints)
    before = np.full(images.labels.shape, UNKNOWN, np.int8)
    before[rows >= 0, : len(ledger.classes)] = ledger.labels_now(rows[rows >= 0])
    spared = (before == PRESENT) & (images.labels == ABSENT) & ~denied
    return replace(images, labels=np.where(spared, np.int8(UNKNOWN), images.labels))


def _opened(
    images: LabelledImages,
    settings: RunSettings,
    contents: Contents,
    say: Say,
    stem: KeptStem | None,
    augment: str = "none",
) -> Photos:
    opened = open_images(images, settings, contents, say, stem, augment)
    is_good = np.array([row not in opened.bad for row in range(len(images))], bool)
    rows = np.flatnonzero(is_good & (images.labels != UNKNOWN).any(axis=1))
    return Photos(images.subset(rows), opened.store, rows, list(opened.bad.values()))


def _review(step: StepData, known: Sequence[str]) -> list[Finding]:
    """What is odd about the labels, in plain words."""
    counts = count_labels(step.train.images.labels)
    shown = dict(zip(step.train.images.classes, counts.present.tolist(), strict=True))
    without = dict(zip(step.train.images.classes, counts.absent.tolist(), strict=True))
    found = []
    if nowhere := [name for name in step.new_labels if not shown[name]]:
        raise UserError(f"no photo of the table that can be read shows {listed(nowhere)}, so there is nothing to learn")
    if everywhere := [name for name in step.new_labels if not without[name]]:
        text = (
            f"every photo shows {listed(everywhere)}: add photos that do not, or the tagger cannot learn where to "
            "leave it out"
        )
        found.append(Finding(Level.FIX_FIRST, text))
    if few := [f"{name} ({shown[name]})" for name in step.new_labels if shown[name] < FEW]:
        text = f"few photos of {listed(few)}: expect mistakes; from about 20 photos on a label becomes useful"
        found.append(Finding(Level.LOOK, text))
    alike = find_look_alikes({name: shown.get(name, 0) for name in (*known, *step.new_labels)})
    # The reader of the table has named those among its own labels.
    return found + [one for one in alike if _names(one, step.new_labels) and _names(one, set(known) - set(step.stated))]


def _names(finding: Finding, labels: Collection[str]) -> bool:
    return any(repr(name) in finding.text for name in labels)
