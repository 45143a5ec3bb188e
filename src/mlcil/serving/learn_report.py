"""What `learn` says: its plan before, and afterwards what was learned and what changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.words import counted, listed
from ..data.images import Finding, Level
from ..data.review import count_labels
from ..methods.analytic import Analytic
from ..methods.base import Method
from ..models.ledger import Ledger
from ..training.config import RunSettings
from ..training.progress import duration
from .measuring import quality
from .records import LabelFacts
from .step_data import StepData
from .tagger import Tagger

TIMED = 8  # images by which the speed of the network is measured
BACKWARD = 3.0  # a training step takes about this many times the forward pass
ALIKE = 0.95  # correlation of two labels' scores above which they can hardly be told apart
ESTIMATED = "estimated from the sums; such estimates say where to look, and --check TABLE measures"


class Plan(NamedTuple):
    """What a lesson is going to do."""

    images: int
    returning: int  # images among them that the tagger has seen before
    measured: int  # further images that are only measured on
    labels: tuple[tuple[str, int, int, bool], ...]  # name, photos with it, photos without it, whether it is new
    corrections: int  # labels that replace what was said of the same photo before
    method: str
    seconds: float  # that it will take at most, by the speed of the network on this machine

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
        yield f"  {self.method}; at most {duration(self.seconds)}"


class Quality(NamedTuple):
    """How well a label is given, in percent; None where nothing can be said."""

    ap: float | None
    precision: float | None
    recall: float | None


class LabelChange(NamedTuple):
    """What learning did to a label that the tagger knew before."""

    name: str
    before: Quality
    after: Quality
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


def make_plan(step: StepData, ledger: Ledger | None, method: Method, settings: RunSettings) -> Plan:
    """Say what a lesson will do, and time the network for how long."""
    images = step.train.images
    counts = count_labels(images.labels)
    labels = tuple(
        (name, int(counts.present[k]), int(counts.absent[k]), k >= step.first)
        for k, name in enumerate(images.classes)
        if name in step.stated
    )
    returning, corrections = 0, 0
    if ledger is not None and images.fingerprints is not None and len(ledger.fingerprints):
        rows = ledger.find(images.fingerprints)
        before, now = ledger.labels_now()[rows[rows >= 0]], images.labels[rows >= 0, : step.first]
        returning, corrections = len(before), int(((before >= 0) & (now >= 0) & (before != now)).sum())
    trained = isinstance(method, Analytic)
    epochs = 1.0 if trained else BACKWARD * settings.epochs
    words = f"{settings.method} on {settings.backbone}" + ("" if trained else f", {settings.epochs} epochs")
    seconds = _seconds_per_image(method, settings) * (epochs * len(images) + len(step.test.rows))
    return Plan(len(images), returning, len(step.test.rows), labels, corrections, words, seconds)


@torch.no_grad()
def _seconds_per_image(method: Method, settings: RunSettings) -> float:
    backbone = method.tagger.backbone
    images = torch.zeros(TIMED, 3, settings.image_size, settings.image_size)
    backbone.eval()(backbone.stem(images))  # the first pass takes longer
    began = time.monotonic()
    backbone(backbone.stem(images))
    return (time.monotonic() - began) / TIMED


def estimated_changes(before: Tagger, after: Tagger) -> list[LabelChange]:
    """What learning did to the labels that the tagger knew before, estimated from the sums; nothing without sums."""
    if not (isinstance(before.method, Analytic) and isinstance(after.method, Analytic)):
        return []
    was, now = _estimate(before), _estimate(after)
    return [LabelChange(name, was[name], now[name], ESTIMATED, None) for name in before.classes if name in now]


def _estimate(tagger: Tagger) -> dict[str, Quality]:
    """What the sums say about each label, on photos like those on which it was looked for.

    All other photos count as not showing it. That makes a label rarer with every step, and its AP and precision lower,
    though it is given as well as before. So the share of the photos that it was looked for on is taken.
    """
    assert isinstance(tagger.method, Analytic)
    model, counts = tagger.method.scores, tagger.method.ledger.counts()
    share = torch.from_numpy(counts.positives / np.maximum(counts.images, 1)).clamp(1e-12, 1 - 1e-9)
    usual = model._replace(share=share)
    recall, precision = usual.expected(model.best_thresholds())
    columns = (usual.expected_ap(), precision, recall)
    rows = zip(*((100 * one).tolist() for one in columns), strict=True)
    return {name: Quality(*map(_or_none, row)) for name, row in zip(tagger.classes, rows, strict=True)}


def measured_changes(
    before: Tagger, after: Tagger, scores: tuple[Any, Any], labels: NDArray[np.int8], words: str
) -> list[LabelChange]:
    """What learning did to the labels that the tagger knew before, measured on photos.

    Arguments:
        scores: (N, K) of the tagger before, and (N, K') of the one after.
        labels: int8 (N, K) of the labels that it knew before.
        words: what the photos are.
    """
    known, changes = len(before.classes), []
    old, new = _qualities(before, scores[0], labels), _qualities(after, scores[1][:, :known], labels)
    for place, name in enumerate(before.classes):
        if new[place].ap is not None:
            facts = replace(after.labels[place], **new[place]._asdict(), measured=words)
            changes.append(LabelChange(name, old[place], new[place], f"measured on {words}", facts))
    return changes


def _qualities(tagger: Tagger, scores: Any, labels: Any) -> list[Quality]:
    columns = quality(scores, labels, tagger.thresholds[: scores.shape[1]])
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
