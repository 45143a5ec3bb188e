"""The scores of photos for each label, as everything that was said makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import UserError
from ..methods.analytic import Analytic
from ..models.statements import Columns, guesses_of
from ..serving.tagger import Tagger
from .book import TaughtLabel
from .columns import Column, Floats, Marks, System, solve_column
from .expectation import NEW_LABEL, Belief, Expectation
from .photos import Photos

FINE = 1e-6  # a probability just above what no photo has


@dataclass(frozen=True)
class LabelScores:
    """How photos score for a label.

    Attributes:
        weights: (d,) of its column.
        scores, probabilities: (N,) of the photos.
        threshold, own_threshold: a photo is tagged if its probability is above; the label's own without a choice.
        expect: makes the `expectation` of it.
        marked: (m,) rows of the marked photos, with `left_out` (m,) their probabilities by all photos but themselves.
    """

    weights: Floats
    scores: NDArray[np.float32]
    probabilities: Floats
    threshold: float
    own_threshold: float
    expect: Callable[[], Expectation]
    marked: NDArray[np.int64]
    left_out: Floats

    @property
    def expectation(self) -> Expectation:
        """What to expect of it; computed when it is first asked for."""
        return self.expect()

    @property
    def is_tagged(self) -> NDArray[np.bool_]:
        """(N,) whether photos get the label."""
        return np.asarray(self.probabilities > self.threshold)

    @property
    def score_threshold(self) -> float:
        """The threshold on the score."""
        tagged = self.scores[self.is_tagged]
        others = self.scores[~self.is_tagged]
        if not len(tagged):
            return float(others.max(initial=0.0)) + FINE
        return float(tagged.min() + others.max()) / 2 if len(others) else float(tagged.min()) - FINE


class Scorer:
    """Scores photos for the labels of a tagger and for new ones.

    Arguments:
        tagger: with a closed form whose sums it still has.
    """

    def __init__(self, tagger: Tagger, photos: Photos) -> None:
        assert isinstance(tagger.method, Analytic)
        self.tagger, self.photos, self.method = tagger, photos, tagger.method
        self.ledger = self.method.ledger
        net = self.method.tagger
        self.weights: Floats = net.weights[:, net.columns].double().numpy()  # (d, K)
        ridge = self.method.ridge
        if ridge is None:
            raise UserError(f"{tagger.path} has not learned anything yet, so there is nothing to go on from")
        self.system = System.of(self.ledger.sums(), ridge)
        self.thresholds = tagger.thresholds
        self._base = np.empty((0, len(tagger.classes)), np.float32)
        self._told = np.empty((0, len(tagger.classes)), np.int8)
        self._guesses = np.empty((0, len(tagger.classes)), np.float32)
        self._in_ledger = np.empty(0, bool)
        self._directions: dict[int, Floats] = {}
        self._kept: dict[str, tuple[TaughtLabel, int, LabelScores | None]] = {}

    def of(self, label: TaughtLabel) -> LabelScores | None:
        """The scores of all photos looked at so far; None for a label that nothing is known of."""
        self._extend()
        kept = self._kept.get(label.name)
        if kept is None or kept[:2] != (label, len(self._base)):
            kept = (label, len(self._base), self._compute(label))
            self._kept[label.name] = kept
        return kept[2]

    def told(self, label: TaughtLabel) -> NDArray[np.int8]:
        """(N,) what the tagger was told about each photo before: 1 the label is there, 0 it is not, -1 nothing."""
        self._extend()
        if label.is_new:
            return np.full(len(self._told), -1, np.int8)
        return np.asarray(self._told[:, self._columns(label)].max(axis=1))

    def probabilities(self) -> tuple[Floats, NDArray[np.bool_]]:
        """(N, K) of the tagger's own labels as they were, and whether each is above its threshold."""
        self._extend()
        found = self.method.probabilities(torch.from_numpy(self._base).double())
        return found, np.asarray(found > self.thresholds)

    def _extend(self) -> None:
        """Take in what was looked at since the last time."""
        first, features = len(self._base), self.photos.features
        if first == len(features):
            return
        new = features[first:]
        rows = self.ledger.find(self.photos.fingerprints[first : len(features)])
        told = np.full((len(new), len(self.tagger.classes)), -1, np.int8)
        guesses = np.zeros(told.shape, np.float32)
        here = np.flatnonzero(rows >= 0)
        told[here] = self.ledger.labels_now(rows[here])
        columns = Columns(self.ledger.classes)
        guesses[here] = guesses_of(self.ledger.statements, rows[here], len(self.ledger.fingerprints), columns)
        self._told, self._guesses = np.concatenate([self._told, told]), np.concatenate([self._guesses, guesses])
        self._in_ledger = np.concatenate([self._in_ledger, rows >= 0])
        self._base = np.concatenate([self._base, new @ self.weights.astype(np.float32)])

    def _compute(self, label: TaughtLabel) -> LabelScores | None:
        rows = {row: shown for photo, shown in label.marks.items() if (row := self.photos.row(photo)) is not None}
        rows = {row: shown for row, shown in rows.items() if row < len(self._base)}
        if label.is_new and not any(rows.values()):
            return None
        marked = np.array(list(rows), np.int64)
        present = np.array(list(rows.values()), np.float64)
        column = self._column(label, marked, present)
        if not rows and len(label.bases) == 1:
            scores = self._base[:, self._columns(label)[0]]
        else:
            scores = self.photos.features[: len(self._base)] @ column.weights.astype(np.float32)
        asked = np.array([self.photos.id(row) in label.asked for row in rows], bool)

        @cache
        def expect() -> Expectation:
            belief = NEW_LABEL if label.is_new else self._belief(label, scores)
            return Expectation(scores, column.left_out, present, asked, belief)

        if label.is_new:
            own = float(expect().probabilities(np.array(expect().best_threshold())))
            both = expect().probabilities(scores), expect().probabilities(column.left_out)
        else:
            own = float(min(self.thresholds[one] for one in self._columns(label)))
            both = self._own_probabilities(label, scores), self._own_probabilities(label, column.left_out)
        threshold = own if label.threshold is None else label.threshold
        return LabelScores(column.weights, scores, both[0], threshold, own, expect, marked, both[1])

    def _column(self, label: TaughtLabel, marked: NDArray[np.int64], present: Floats) -> Column:
        features = self.photos.features[marked].astype(np.float64)
        if fresh := [row for row in marked.tolist() if row not in self._directions]:
            found = self.system.directions(self.photos.features[fresh].astype(np.float64))
            self._directions |= dict(zip(fresh, found.T, strict=True))
        directions = np.stack([self._directions[row] for row in marked.tolist()], axis=1) if len(marked) else None
        columns = self._columns(label)
        before = np.maximum(self._told[marked][:, columns] == 1, self._guesses[marked][:, columns]).max(
            axis=1, initial=0
        )
        start = self._start(label)
        if directions is None:
            return Column(start, np.empty(0))
        return solve_column(start, Marks(features, present, before, self._in_ledger[marked]), directions)

    def _start(self, label: TaughtLabel) -> Floats:
        """(d,) the weights without the marks; labels that were merged add up, but for photos that had both."""
        columns = self._columns(label)
        weights = self.weights[:, columns].sum(axis=1)
        twice = np.flatnonzero((self._told[:, columns] == 1).sum(axis=1) > 1)
        if len(twice):
            directions = self.system.directions(self.photos.features[twice].astype(np.float64))
            weights = weights - directions @ ((self._told[twice][:, columns] == 1).sum(axis=1) - 1.0)
        return np.asarray(weights)

    def _columns(self, label: TaughtLabel) -> list[int]:
        return [self.tagger.column(name) for name in label.bases]

    def _belief(self, label: TaughtLabel, scores: NDArray[np.float32]) -> Belief:
        """What the sums say about a label that the tagger knows."""
        low, middle = np.quantile(scores, [0.1587, 0.5])
        model, column = self.method.scores, self._columns(label)[0]
        slope = float(np.clip(float(model.slope[column]) * float(middle - low), 0.6, 6.0))
        share = sum(float(model.share[one]) for one in self._columns(label))
        return Belief(slope, 0.25 * slope, min(max(share, 1e-4), 0.9), 1.5)

    def _own_probabilities(self, label: TaughtLabel, scores: NDArray[np.float32] | Floats) -> Floats:
        """Of scores (n,), as the tagger itself gives them for the first of the labels."""
        column = self._columns(label)[:1]
        return self.method.probabilities(torch.from_numpy(np.asarray(scores, np.float64)[:, None]), column)[:, 0]
