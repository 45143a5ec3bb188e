"""Scores to decide by: a threshold for each class and a temperature, from images that nothing was trained on.

A session knows the labels of its own classes alone. So each session calibrates its new classes, once, and what
earlier sessions found for theirs stays as it is, however much the model has changed since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metrics import Floats, check_scores

FEWEST_POSITIVES = 3  # a class with fewer of them takes the threshold that suits all classes of its session
NO_POSITIVE = 0.5  # the threshold of a session in whose validation part nothing is present
_EDGE = 1e-6  # a probability this close to 0 or 1 counts as no closer
_LOG_LIMIT = 3.0  # temperatures between exp(-3) and exp(3)
_PRIOR = 1.0  # how firmly a temperature is held at 1
_HALVINGS = 50  # of the interval of log temperatures, to about 1e-14


def _none() -> Floats:
    return np.empty(0, np.float64)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the sessions so far found for the K classes seen.

    Attributes:
        thresholds: (K,), a class is present if its score, as a method predicts it, is above.
        temperatures: (K,), the logit of a score is divided by it; the same for all classes of a session.
    """

    thresholds: Floats = field(default_factory=_none)
    temperatures: Floats = field(default_factory=_none)

    def extended(self, scores: NDArray[Any], labels: NDArray[Any], first: int) -> Calibration:
        """With a session's new classes, found on its validation part; older classes stay as they are.

        Arguments:
            scores: (V, K) in 0..1, after the session; V may be 0.
            labels: (V, K) of 1, 0 or -1.
            first: the first new column, as many as there are classes in this calibration.

        Raises:
            ValueError: the shapes do not fit or a score is NaN.
        """
        check_scores(scores, labels)
        if first != len(self.thresholds) or not first < scores.shape[1]:
            raise ValueError(
                f"got columns {first} to {scores.shape[1]} after {len(self.thresholds)} calibrated classes"
            )
        new, truth = scores[:, first:], labels[:, first:]
        temperature = np.full(new.shape[1], best_temperature(new, truth))
        return Calibration(
            np.concatenate([self.thresholds, class_thresholds(new, truth)]),
            np.concatenate([self.temperatures, temperature]),
        )

    def probabilities(self, scores: NDArray[Any]) -> Floats:
        """sigmoid(logit(score) / temperature), (N, K) -> (N, K); each class keeps its ranking."""
        if scores.ndim != 2 or scores.shape[1] != len(self.temperatures):
            raise ValueError(f"got scores {scores.shape}, expected (images, {len(self.temperatures)})")
        return _sigmoid(_logit(np.clip(np.asarray(scores, np.float64), 0, 1)) / self.temperatures)

    def to_values(self) -> dict[str, list[float]]:
        """As plain lists for JSON, which keeps every bit."""
        return {"thresholds": self.thresholds.tolist(), "temperatures": self.temperatures.tolist()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_values`.

        Raises:
            ValueError: they are not two lists of as many numbers, or a temperature is not above 0.
        """
        try:
            both = cls(*(np.array(values[name], np.float64) for name in ("thresholds", "temperatures")))
        except (KeyError, TypeError) as error:
            raise ValueError(f"calibration is incomplete: {error}") from error
        if both.thresholds.ndim != 1 or both.thresholds.shape != both.temperatures.shape:
            raise ValueError(f"calibration of {both.thresholds.shape} and {both.temperatures.shape} classes")
        if not (both.temperatures > 0).all():
            raise ValueError("calibration has a temperature that is not above 0")
        return both


def stored_thresholds(own: Floats | None, calibration: Calibration | None) -> Floats | None:
    """The thresholds to decide by, (K,): a method's own if it has any, else those of the calibration."""
    if own is not None:
        return np.asarray(own, np.float64)
    return None if calibration is None else calibration.thresholds


def class_thresholds(scores: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """The threshold of each class: of best F1, or with too few positives that of best F1 pooled over all classes.

    Arguments:
        scores: (V, K).
        labels: (V, K) of 1, 0 or -1.

    Returns:
        (K,), 0.5 throughout if nothing is present.
    """
    pooled = best_threshold(scores.ravel(), labels.ravel())
    has_enough = (labels == 1).sum(axis=0) >= FEWEST_POSITIVES
    own = [best_threshold(scores[:, k], labels[:, k]) if enough else pooled for k, enough in enumerate(has_enough)]
    return np.array([NO_POSITIVE if value is None else value for value in own], np.float64)


def best_threshold(scores: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """The threshold with the best F1 of `score > threshold`; of several, the highest, which claims least.

    It lies midway between two neighbouring scores of known label, or between 0 and the lowest of them.

    Arguments:
        scores: (n,).
        labels: (n,) of 1, 0 or -1; an unknown entry counts for nothing.

    Returns:
        The threshold, or None without a positive.
    """
    values, truth = np.asarray(scores[labels >= 0], np.float64), labels[labels >= 0] == 1
    if not truth.any():
        return None
    distinct, place = np.unique(values, return_inverse=True)  # (D,) rising, (n,)
    claimed = _at_least(np.bincount(place))  # (D,) entries that score so much or more
    hit = _at_least(np.bincount(place[truth], minlength=len(distinct)))
    # Equal ratios of whole numbers are equal in floating point too, so ties are exact.
    f1 = 2 * hit / (claimed + hit[0])
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))
    above, below = float(distinct[best]), float(distinct[best - 1]) if best else 0.0
    # Between neighbours of floating point there is no middle: it would round to either.
    return min(below + (above - below) / 2, math.nextafter(above, -math.inf))


def best_temperature(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """The T of least negative log-likelihood of sigmoid(logit(score) / T), held near 1 where there is little to go by.

    A few images are often separated without an error, and then the colder the better. So (1/T - 1)^2 / 2 is added
    to the negative log-likelihood, which some ten images outweigh.

    Arguments:
        scores: (V, K) in 0..1.
        labels: (V, K) of 1, 0 or -1.
    """
    known = labels >= 0
    logits, truth = _logit(np.clip(np.asarray(scores, np.float64)[known], _EDGE, 1 - _EDGE)), labels[known] == 1
    if not logits.any():
        return 1.0
    present, absent = np.sort(logits[truth]), np.sort(logits[~truth])  # sorted: a sum depends on its order

    def slope(inverse: float) -> float:
        """Of the log-likelihood's negative over 1/T, in which it is convex: this never falls."""
        of_present = present * (_sigmoid(inverse * present) - 1)
        of_absent = absent * _sigmoid(inverse * absent)
        return float(of_present.sum() + of_absent.sum() + _PRIOR * (inverse - 1))

    low, high = -_LOG_LIMIT, _LOG_LIMIT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(-middle)) > 0 else (low, middle)
    return math.exp((low + high) / 2)


def _at_least(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts[::-1].cumsum()[::-1]


def _logit(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):  # 0 and 1 are at infinity, and come back from there
        return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))  # exact for very small probabilities too
