"""What to expect of a label: how probable it is on each photo, where to put the threshold, how sure all that is.

The probability of a label rises with the score as a logistic curve. How steep it is and where it is one half are
unknown; both together say how many photos have the label, of which there is some idea beforehand. Marks say more. It
does no harm that photos are chosen for marking by their scores, as the curve is about the label of a photo given its
score. All curves of a grid are weighed by what was known before and by the marks, so that few marks leave a wide
spread, and every figure comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import Floats

BINS = 160  # of scores
SLOPES = np.linspace(0.6, 6.0, 19)  # of the grid of curves, per deviation of the scores of all photos
MIDDLES = np.linspace(0.0, 9.0, 31)  # in deviations
CERTAIN, DEVIATIONS = 0.9, 1.645  # how probable it is that a figure is within its bounds; of a Gaussian, in deviations


class Belief(NamedTuple):
    """What is known about a label before any mark."""

    slope: float  # of the curve, per deviation of the scores of all photos
    slope_deviation: float
    share: float  # of photos with the label
    share_factor: float  # by which the share may well be larger or smaller


NEW_LABEL = Belief(1.8, 0.7, 0.03, 2.5)  # as labels of COCO are on common backbones


class Figure(NamedTuple):
    """A figure in 0..1 and its bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scale:
    """Scores in deviations from the usual score of photos."""

    middle: float
    deviation: float

    @classmethod
    def of(cls, scores: NDArray[np.float32]) -> Scale:
        """From the scores (N,) of all photos, most of which do not show the label."""
        low, middle = np.quantile(scores, [0.1587, 0.5])  # a deviation below the mean; above it the label may be
        return cls(float(middle), max(float(middle - low), 1e-9))

    def standard(self, scores: NDArray[np.floating[Any]]) -> Floats:
        """Scores of any shape in deviations."""
        return (np.asarray(scores, np.float64) - self.middle) / self.deviation

    def score(self, standard: float) -> float:
        """The inverse of `standard`."""
        return self.middle + self.deviation * standard


class Expectation:
    """What marks say about a label.

    Arguments:
        scores: (N,) of all photos.
        left_out: (m,) scores of the marked photos by all others.
        present: (m,) whether they show the label.
        is_asked: (m,) whether a person was asked about them. A photo that somebody has looked for shows the label
            because of that, and says nothing about others with its score.
        belief: what was known before.
    """

    def __init__(
        self,
        scores: NDArray[np.float32],
        left_out: Floats,
        present: Floats,
        is_asked: NDArray[np.bool_],
        belief: Belief = NEW_LABEL,
    ) -> None:
        self.scale = Scale.of(scores)
        values = self.scale.standard(scores)
        top = max(float(values.max(initial=0.0)), float(self.scale.standard(left_out).max(initial=0.0)), 1.0)
        self.edges = np.linspace(min(float(values.min(initial=0.0)), -4.0), top + 1e-6, BINS + 1)
        self.middles = (self.edges[1:] + self.edges[:-1]) / 2
        self._counts = np.histogram(values, self.edges)[0].astype(np.float64)
        slopes, middles = (one.ravel() for one in np.meshgrid(SLOPES, MIDDLES))
        self._curves = _logistic(slopes[:, None] * (self.middles - middles[:, None]))  # (G, BINS)
        marked = self.scale.standard(left_out)[is_asked]
        logits = slopes[:, None] * (marked - middles[:, None])  # (G, m)
        told = -np.logaddexp(0, np.where(present[is_asked] > 0, -logits, logits)).sum(axis=1)
        shares = self._curves @ self._counts / max(len(scores), 1)
        self._weights = _weights(told + _prior(slopes, shares, belief))  # (G,)

    def probabilities(self, scores: NDArray[np.floating[Any]]) -> Floats:
        """The probability of the label for scores of any shape; a higher score never has a lower one."""
        return np.interp(self.scale.standard(scores), self.middles, self._weights @ self._curves)

    def best_threshold(self) -> float:
        """The score above which to tag, where the expected F1 is highest."""
        f1 = self._weights @ self._figures[2]
        return self.scale.score(float(self.edges[int(f1.argmax())]))

    def at(self, threshold: float) -> tuple[Figure, Figure]:
        """Precision and recall of the tags above a threshold on the score."""
        place = int(np.clip(np.searchsorted(self.edges, self.scale.standard(np.array(threshold))), 0, BINS - 1))
        precision, recall, _ = self._figures
        tagged, shown = float(self._counts[place:].sum()), float(self._counts @ (self._weights @ self._curves))
        return self._figure(precision[:, place], tagged), self._figure(recall[:, place], shown)

    @cached_property
    def _figures(self) -> tuple[Floats, Floats, Floats]:
        """Precision, recall and F1 of each curve for a threshold at each lower edge, each (G, BINS)."""
        shown = self._curves * self._counts
        found = shown[:, ::-1].cumsum(axis=1)[:, ::-1]
        tagged = self._counts[::-1].cumsum()[::-1]
        total = found[:, :1]
        precision = found / np.maximum(tagged, 1e-9)
        return precision, found / np.maximum(total, 1e-9), 2 * found / np.maximum(tagged + total, 1e-9)

    def _figure(self, values: Floats, photos: float) -> Figure:
        """The mean of a value per curve, (G,), and what is in the middle of its spread.

        The spread has two parts: which curve it is, and chance, as the figure is a share of so many `photos`.
        """
        order = np.argsort(values)
        below = self._weights[order].cumsum()
        bounds = [values[order[min(int(np.searchsorted(below, part)), len(order) - 1)]] for part in _TAILS]
        mean = float(self._weights @ values)
        chance = DEVIATIONS * np.sqrt(mean * (1 - mean) / max(photos, 1.0))
        low, high = (np.hypot(bound - mean, chance) for bound in bounds)
        return Figure(mean, max(0.0, mean - float(low)), min(1.0, mean + float(high)))


_TAILS = ((1 - CERTAIN) / 2, (1 + CERTAIN) / 2)


def _prior(slopes: Floats, shares: Floats, belief: Belief) -> Floats:
    """(G,) the logarithm of how probable curves are before any mark, but for a constant."""
    slope = (slopes - belief.slope) / belief.slope_deviation
    share = np.log(np.maximum(shares, 1e-9) / belief.share) / np.log(belief.share_factor)
    return np.asarray(-(slope**2 + share**2) / 2)


def _weights(logarithms: Floats) -> Floats:
    weights = np.exp(logarithms - logarithms.max())
    return np.asarray(weights / weights.sum())


def _logistic(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logits.clip(-60, 60))))
