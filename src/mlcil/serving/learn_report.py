"""What `learn` says: its plan before, and afterwards what was learned and what changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.progress import duration
from ..core.words import counted, listed
from ..data.images import UNKNOWN, Finding, Level
from ..data.review import count_labels
from ..evaluation.metrics import Floats
from ..methods.analytic import Analytic
from ..methods.base import Method
from ..models.ledger import Ledger
from ..training.config import RunSettings
from .measuring import expected_quality, quality
from .records import LabelFacts
from .step_data import StepLabels
from .tagger import Tagger

TIMED = 8  # images by which the speed of the network is measured
BACKWARD = 3.0  # a training step takes about this many times the forward pass
ALIKE = 0.95  # correlation of two labels' scores above which they can hardly be told apart
# On the COCO slice the mean over labels was right to 0.4 points, and nine of ten labels to 2.3 (docs/results.md).
ESTIMATED = "an estimate from what it said of the new photos before, not exact for one label; --check TABLE measures"
FEWEST_NEW = 50  # photos that an estimate needs
MISSING, FEWEST_MISSING = 0.3, 5.0  # photos with an old label that nobody labelled, as a part of its own, and at least


class Plan(NamedTuple):
    """What a lesson is going to do."""

    images: int
    returning: int  # images among them that the tagger has seen before
    measured: int  # further images that are only measured on
    labels: tuple[tuple[str, int, int, bool], ...]  # name, photos with it, photos without it, whether it is new
    corrections: int  # labels that replace what was said of the same photo before
    method: str
    seconds: float  # that the network will take for all of them, by its speed on this machine

    def lines(self) -> Iterator[str]:
        """The plan in words."""
        back = f", {self.returning} of them seen before" if self.returning else ""
        aside = f"; {self.measured} more to measure on" if self.measured else ""
        yield f"plan: learn from {counted(self.images, 'photo')}{back}{aside}"
        for is_new, words in ((True, "new labels"), (False, "labels that it knows")):
            names = [f"{name} ({shown}+, {without}-)" for name, shown, without, new in self.labels if new == is_new]
            if names:
                yield f"  {words}: {listed(names, 12)}"
        if self.corrections:
            yield f"  corrections: {counted(self.corrections, 'label')} of photos seen before will change"
        yield f"  {self.method}; about {duration(self.seconds)}, less for photos that were looked at before"


class Quality(NamedTuple):
    """How well a label is given, in percent; None where nothing can be said."""

    ap: float | None
    precision: float | None
    recall: float | None


class LabelChange(NamedTuple):
    """What learning did to a label that the tagger knew before."""

    name: str
    change: Quality  # in percent points
    before: Quality | None  # where they were measured, and not only their difference estimated
    after: Quality | None
    how: str  # where the figures come from, in words
    facts: LabelFacts | None  # as measured afterwards, if it was measured


@dataclass(frozen=True)
class LearnReport:
    """What was learned, and how well.

    Attributes:
        plan: what was planned.
        labels: the labels of the table.
        measured: on what they were measured, in words; "" if they could not be.
        changes: of the labels that the tagger knew before.
        findings: what its owner should know.
        seconds: that it took.
    """

    plan: Plan
    labels: tuple[str, ...]
    measured: str
    changes: tuple[LabelChange, ...]
    findings: tuple[Finding, ...]
    seconds: float


def make_plan(labels: StepLabels, ledger: Ledger | None, method: Method, settings: RunSettings) -> Plan:
    """Say what a lesson will do, and time the network for how long."""
    images, first = labels.train, len(labels.known)
    counts = count_labels(images.labels)
    named = tuple(
        (name, int(counts.present[k]), int(counts.absent[k]), k >= first)
        for k, name in enumerate(images.classes)
        if name in labels.stated
    )
    returning, corrections = 0, 0
    if ledger is not None and images.fingerprints is not None and len(ledger.fingerprints):
        rows = ledger.find(images.fingerprints)
        before, now = ledger.labels_now(rows[rows >= 0]), images.labels[rows >= 0, :first]
        returning, corrections = len(before), int(((before >= 0) & (now >= 0) & (before != now)).sum())
    is_solved = isinstance(method, Analytic) and method.is_all_in_sums
    epochs = 1.0 if is_solved else BACKWARD * settings.epochs
    words = f"{settings.method} on {settings.backbone}" + ("" if is_solved else f", {settings.epochs} epochs")
    seconds = _seconds_per_image(method, settings) * (epochs * len(images) + len(labels.test)) / max(settings.jobs, 1)
    return Plan(len(images), returning, len(labels.test), named, corrections, words, seconds)


@torch.no_grad()
def _seconds_per_image(method: Method, settings: RunSettings) -> float:
    backbone = method.tagger.backbone
    images = torch.zeros(TIMED, 3, settings.image_size, settings.image_size)
    backbone.eval()(backbone.stem(images))  # the first pass takes longer
    began = time.monotonic()
    backbone(backbone.stem(images))
    return (time.monotonic() - began) / TIMED


class NewPhotos(NamedTuple):
    """The photos of a lesson that the tagger had not seen before."""

    before: NDArray[Any]  # (n, K) scores of the tagger before
    after: NDArray[Any]  # (n, K') scores of the one after, whose first K labels are the same
    labels: NDArray[np.int8]  # (n, K') as the table has them


def estimated_changes(before: Tagger, after: Tagger, new: NewPhotos) -> list[LabelChange]:
    """What learning did to the labels that the tagger knew before, judged by what it said of the new photos then.

    Nobody has labelled these photos for the old labels, so the probabilities of the tagger before are taken as true.
    With few new photos there is no estimate.
    """
    if len(new.before) < FEWEST_NEW:
        return []
    known, probabilities = len(before.classes), before.probabilities(new.before)
    old = _rows(expected_quality(new.before, probabilities, before.thresholds))
    now = _rows(expected_quality(new.after[:, :known], probabilities, after.thresholds[:known]))
    return [
        LabelChange(name, _difference(*pair), None, None, ESTIMATED, None)
        for name, *pair in zip(before.classes, old, now, strict=True)
    ]


def unlabelled(before: Tagger, new: NewPhotos) -> list[Finding]:
    """A warning about old labels that many new photos seem to show, though the table says nothing about them."""
    known = len(before.classes)
    likely = (before.probabilities(new.before) * (new.labels[:, :known] == UNKNOWN)).sum(axis=0)
    found = [
        f"{label.name} (about {likely[k]:.0f})"
        for k, label in enumerate(before.labels)
        if likely[k] >= max(FEWEST_MISSING, MISSING * (label.positives or 0))
    ]
    if not found:
        return []
    text = (
        f"many of these photos seem to show labels that the table does not have: {listed(found)}. They count as photos "
        "without them, so the tagger will give these labels less often; add the labels to the table if you can"
    )
    return [Finding(Level.LOOK, text)]


def measured_changes(
    before: Tagger, after: Tagger, scores: tuple[Any, Any], labels: NDArray[np.int8], words: str, keeps: bool
) -> list[LabelChange]:
    """What learning did to the labels that the tagger knew before, measured on photos.

    Arguments:
        scores: (N, K) of the tagger before, and (N, K') of the one after.
        labels: int8 (N, K) of the labels that it knew before.
        words: what the photos are.
        keeps: whether the figures become those of the labels.
    """
    known, changes = len(before.classes), []
    old = _rows(quality(scores[0], labels, before.thresholds))
    new = _rows(quality(scores[1][:, :known], labels, after.thresholds[:known]))
    for place, name in enumerate(before.classes):
        if new[place].ap is not None:
            facts = after.labels[place].with_figures(*new[place], words) if keeps else None
            change = _difference(old[place], new[place])
            changes.append(LabelChange(name, change, old[place], new[place], f"measured on {words}", facts))
    return changes


def _difference(before: Quality, after: Quality) -> Quality:
    pairs = zip(before, after, strict=True)
    return Quality(*(None if was is None or now is None else now - was for was, now in pairs))


def _rows(columns: tuple[Floats, Floats, Floats]) -> list[Quality]:
    """AP, precision and recall, each (K,) in 0..1, label by label in percent."""
    return [Quality(*map(_or_none, row)) for row in zip(*((100 * one).tolist() for one in columns), strict=True)]


def too_similar(tagger: Tagger, names: Sequence[str]) -> list[Finding]:
    """Pairs of labels, one of them among `names`, whose scores go together so closely that they may be one label."""
    assert isinstance(tagger.method, Analytic)
    sums, weights = tagger.method.ledger.sums(), tagger.method.tagger.weights.double()
    lower = sums.matrix()
    matrix = lower + lower.tril(-1).T
    share = sums.positives / sums.images
    spread = weights.T @ (matrix @ weights) - sums.images * torch.outer(share, share)  # (K, K)
    deviation = spread.diagonal().clamp(min=1e-12).sqrt()
    likeness = (spread / torch.outer(deviation, deviation)).numpy()
    found = []
    for name in names:
        row = likeness[tagger.column(name)].copy()
        row[tagger.column(name)] = 0
        other = tagger.classes[int(row.argmax())]
        if row.max() > ALIKE and not (other in names and other < name):
            text = (
                f"{name!r} and {other!r} look nearly the same to the tagger: photos of one will get the other as well; "
                "if they are one label, use one name for both"
            )
            found.append(Finding(Level.LOOK, text))
    return found


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
