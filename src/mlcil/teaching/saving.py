"""From what was said to a new version of the tagger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.words import counted
from ..data.images import ABSENT, PRESENT, UNKNOWN
from ..methods.analytic import Analytic
from ..models.sums import DescribedImages
from ..serving.changing import exact_copy, forget_labels, rename, solved
from ..serving.records import LabelFacts, Step
from ..serving.tagger import Tagger
from .book import TaughtLabel


@dataclass(frozen=True)
class Lesson:
    """What a tagger is to be taught.

    Attributes:
        labels: that it is to have in the end.
        source: where the photos are, in words.
        photos: ids of the n photos that can be marked, with `fingerprints` (n,) and `features` (n, d).
        weights: (d,) by label, as they were solved for.
        thresholds: on the scores of these weights, by label, for those that do not have the tagger's own.
        facts: expected precision and recall in percent, by label.
    """

    labels: Sequence[TaughtLabel]
    source: str
    photos: Sequence[str]
    fingerprints: NDArray[np.int64]
    features: NDArray[np.float32]
    weights: Mapping[str, NDArray[np.float64]]
    thresholds: Mapping[str, float]
    facts: Mapping[str, tuple[float, float]]

    def features_of(self, fingerprints: NDArray[np.int64]) -> Tensor:
        """(n,) -> (n, d).

        Raises:
            UserError: a photo is not there.
        """
        place = {value: row for row, value in enumerate(self.fingerprints.tolist())}
        missing = sum(value not in place for value in fingerprints.tolist())
        if missing:
            raise UserError(
                f"cannot merge these labels exactly: {counted(missing, 'photo')} with both of them cannot be looked at "
                "here; open the folder that has them"
            )
        return torch.from_numpy(self.features[[place[value] for value in fingerprints.tolist()]])


def taught(tagger: Tagger, lesson: Lesson) -> Tagger:
    """A new tagger that has learned what was said; the one given stays as it is.

    Labels that nobody spoke of count on the marked photos as the tagger scores them, so that they stay as they are.

    Raises:
        UserError: labels cannot be merged, or the tagger cannot be changed.
    """
    kept = {base for label in lesson.labels for base in label.bases}
    if gone := [name for name in tagger.classes if name not in kept]:
        tagger = forget_labels(tagger, gone)
    for label in lesson.labels:
        for other in label.bases[1:]:
            tagger = _joined(tagger, other, label.bases[0], lesson)
    tagger = _renamed(tagger, {one.bases[0]: one.name for one in lesson.labels if one.bases})
    marked = [one for one in lesson.labels if one.marks]
    return _learned(tagger, lesson) if marked else _with_thresholds(tagger, lesson)


def _joined(tagger: Tagger, label: str, into: str, lesson: Lesson) -> Tagger:
    """With two labels of the tagger made one."""
    method = exact_copy(tagger, "merge labels")
    number = 1 + max((*method.ledger.numbers, tagger.session))
    prints = method.ledger.fingerprints
    ledger = method.ledger.joined(number, label, into, lambda rows: lesson.features_of(prints[rows]))
    images = len(ledger.rows[-1])
    step = Step(number, _now(), f"{label} merged into {into}", images, images, (into,), ())
    labels = [one for one in tagger.labels if one.name != label]
    return solved(tagger, method, ledger, labels, (*tagger.steps, step), method.ridge)


def _renamed(tagger: Tagger, names: Mapping[str, str]) -> Tagger:
    changed = {old: new for old, new in names.items() if old != new}
    if not changed:
        return tagger
    # By names that nothing has, as two labels may have changed theirs.
    meanwhile = {old: f"\0{place}" for place, old in enumerate(changed)}
    return rename(rename(tagger, meanwhile), {meanwhile[old]: new for old, new in changed.items()})


def _learned(tagger: Tagger, lesson: Lesson) -> Tagger:
    method = exact_copy(tagger, "learn by marks")
    names = [one.name for one in lesson.labels]
    new = [one.name for one in lesson.labels if one.is_new and one.yes]
    ledger = method.ledger.with_classes([*tagger.classes, *new])
    rows, labels = _labels(lesson, ledger.classes)
    features = torch.from_numpy(lesson.features[rows])
    expected = lesson.features[rows] @ np.stack([lesson.weights[name] for name in ledger.classes], axis=1)
    number = 1 + max((*ledger.numbers, tagger.session))
    images = DescribedImages(lambda places: features[places], lambda z: z, ledger.width)
    prints = lesson.fingerprints[rows]
    returning = int((ledger.find(prints) >= 0).sum())
    ledger = ledger.with_step(number, prints, labels, images, expected.astype(np.float32))
    stated = tuple(name for name in names if any(one.name == name and one.marks for one in lesson.labels))
    step = Step(number, _now(), lesson.source, len(rows), returning, stated, tuple(new))
    facts = [*tagger.labels, *(LabelFacts(name, number, step.learned) for name in new)]
    # At the strength at which the person has seen it; the next table that is learned finds another one.
    return _with_thresholds(solved(tagger, method, ledger, facts, (*tagger.steps, step), method.ridge), lesson)


def _labels(lesson: Lesson, classes: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """The marked photos as rows (n,), and their labels int8 (n, K)."""
    row_of = {photo: row for row, photo in enumerate(lesson.photos)}
    marked = sorted({row_of[photo] for one in lesson.labels for photo in one.marks if photo in row_of})
    place = {row: number for number, row in enumerate(marked)}
    labels = np.full((len(marked), len(classes)), UNKNOWN, np.int8)
    for one in lesson.labels:
        if one.name in classes:
            for photo, shown in one.marks.items():
                if photo in row_of:
                    labels[place[row_of[photo]], classes.index(one.name)] = PRESENT if shown else ABSENT
    return np.array(marked, np.int64), labels


def _with_thresholds(tagger: Tagger, lesson: Lesson) -> Tagger:
    """With the thresholds and the figures of the lesson."""
    assert isinstance(tagger.method, Analytic)
    scores = torch.tensor([lesson.thresholds.get(name, 0.0) for name in tagger.classes], dtype=torch.float64)
    chosen = dict(zip(tagger.classes, tagger.method.probabilities(scores).tolist(), strict=True))
    own = {label.name for label in lesson.labels if not label.is_new and label.threshold is None}
    before = {name: value for name, value in (tagger.chosen or {}).items() if name not in own}
    found = before | {name: value for name, value in chosen.items() if name in lesson.thresholds}
    measured = f"expected from marks in {lesson.source}"
    labels = [
        one.with_figures(None, 100 * figures[0], 100 * figures[1], measured)
        if (figures := lesson.facts.get(one.name)) is not None
        else one
        for one in tagger.labels
    ]
    return replace(tagger, chosen=found or None, labels=tuple(labels), path=None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
