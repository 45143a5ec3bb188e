"""Calibration: a threshold for each class and a scaling of the scores, found on images that were not trained on.

A session only knows the labels of its own classes, and each of its images shows at least one of them, which most other
images do not. So the images set aside from a session stand for a larger population: an image without a class is given
the weight that makes the session's images one part of all images seen so far. That weight grows with every session, so
the scores are kept, and the thresholds and temperatures of older classes are computed again from them. How much the
model has changed since then is not known, and not corrected for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .metrics import Array, Floats, check_scores

FEWEST_POSITIVES = 3  # a class with fewer positives takes the threshold that is best for all classes of its session
FEWEST_IMAGES = 20  # with fewer images set aside, a session's classes take the defaults below
DEFAULT_THRESHOLD = 0.8  # as in KRT's tables
DEFAULT_SCALING = (1.0, 0.0)  # temperature and shift that leave scores as they are
_EDGE = 1e-6  # probabilities are kept this far from 0 and 1
_LOG_LIMIT = 3.0  # temperatures between exp(-3) and exp(3)
MOST_IMAGES = 1000  # the scores of at most this many images are kept per session
_PRIOR = 1.0  # how strongly 1 / temperature is pulled to 1 and the shift to 0
_STEPS = 60  # of Newton's method; about ten are needed
_NUMBERS = ("thresholds", "temperatures", "shifts")


def _none() -> Floats:
    return np.empty(0, np.float64)


class Part(NamedTuple):
    """The images set aside from a session.

    Attributes:
        scores: float32 (V, n) for the session's n new classes, at its end; V is at most `MOST_IMAGES`.
        labels: int8 (V, n) of 1, 0 or -1.
        images: the number of images of the whole session.
        back: how many of them earlier sessions had as well.
    """

    scores: NDArray[np.float32]
    labels: NDArray[np.int8]
    images: int
    back: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether thresholds and a scaling found on these images mean anything."""
        return len(self.labels) >= FEWEST_IMAGES and bool((self.labels == 1).any())


@dataclass(frozen=True, eq=False)
class Calibration:
    """The calibration of the K classes seen so far.

    Attributes:
        thresholds: (K,), a class counts as present if its score, as the method predicts it, is above.
        temperatures: (K,), divide the logits of the scores; the same for all classes of a session.
        shifts: (K,), are then added to the logits; the same for all classes of a session.
        parts: one per session.
    """

    thresholds: Floats = field(default_factory=_none)
    temperatures: Floats = field(default_factory=_none)
    shifts: Floats = field(default_factory=_none)
    parts: tuple[Part, ...] = ()

    def extended(self, scores: Array, labels: Array, images: int, back: int = 0) -> Calibration:
        """The calibration after one more session, whose images make older classes rarer among all images.

        Arguments:
            scores: (V, K) in 0..1, of the images set aside, after the session; V may be 0. The columns beyond those
                calibrated so far belong to the session's classes.
            labels: (V, K) of 1, 0 or -1.
            images: the number of images of the whole session.
            back: how many of them earlier sessions had as well.

        Raises:
            ValueError: the shapes do not fit or a score is NaN.
        """
        check_scores(scores, labels)
        first = len(self.thresholds)
        some = slice(None, None, -(-len(scores) // MOST_IMAGES) or 1)
        new, truth = scores[some, first:].astype(np.float32), labels[some, first:].astype(np.int8)
        parts = (*self.parts, Part(new, truth, max(images, 1), back))
        seen = sum(part.images - part.back for part in parts)
        weights = [absence_weights(part.labels, seen / part.images) for part in parts]
        both = list(zip(parts, weights, strict=True))
        thresholds = [
            class_thresholds(part.scores, part.labels, weight)
            if part.is_enough
            else np.full(part.labels.shape[1], DEFAULT_THRESHOLD)
            for part, weight in both
        ]
        scalings = [
            best_scaling(part.scores, part.labels, weight) if part.is_enough else DEFAULT_SCALING
            for part, weight in both
        ]
        of_classes = np.repeat(np.array(scalings), [part.labels.shape[1] for part in parts], axis=0)  # (K, 2)
        return Calibration(np.concatenate(thresholds), of_classes[:, 0], of_classes[:, 1], parts)

    def probabilities(self, scores: Array) -> Floats:
        """sigmoid(logit(score) / temperature + shift), (N, K) -> (N, K); each class keeps its ranking."""
        logits = _logit(np.clip(np.asarray(scores, np.float64), 0, 1))
        return _sigmoid(logits / self.temperatures + self.shifts)

    def thresholds_for(self, precision: float) -> Floats:
        """(K,) the lowest thresholds at which so large a part of the tags was right on the images set aside.

        It is 1, which no score exceeds, where no threshold gives it.

        Arguments:
            precision: between 0 and 1.
        """
        seen = sum(part.images - part.back for part in self.parts)
        found = [
            threshold_for(precision, part.scores[:, k], part.labels[:, k], weights[:, k])
            for part in self.parts
            for weights in [absence_weights(part.labels, seen / part.images)]
            for k in range(part.labels.shape[1])
        ]
        return np.array(found, np.float64)

    def to_values(self) -> dict[str, Any]:
        """The calibration as plain lists for JSON, which keeps every bit."""
        parts = [
            [one.scores.tolist(), one.labels.tolist(), one.labels.shape[1], one.images, one.back] for one in self.parts
        ]
        return {name: getattr(self, name).tolist() for name in _NUMBERS} | {"parts": parts}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_values`."""
        parts = tuple(
            Part(np.array(scores, np.float32).reshape(-1, n), np.array(labels, np.int8).reshape(-1, n), *counts)
            for scores, labels, n, *counts in values["parts"]
        )
        thresholds, temperatures, shifts = (np.array(values[name], np.float64) for name in _NUMBERS)
        return cls(thresholds, temperatures, shifts, parts)


def stored_thresholds(own: Floats | None, calibration: Calibration | None) -> Floats | None:
    """The thresholds to decide by, (K,): those of the method if it has any, otherwise those of the calibration."""
    if own is not None:
        return np.asarray(own, np.float64)
    return None if calibration is None else calibration.thresholds


def absence_weights(labels: Array, rarity: float) -> Floats:
    """The weight of each entry, (V, K): 1 where the class is present, more where it is absent.

    Among the session's images a share r is positive. Among all images, which are `rarity` times as many, the share
    should be r / rarity. Weighting each image without the class by (rarity - r) / (1 - r) gives that share.

    Arguments:
        labels: (V, K) of 1, 0 or -1.
        rarity: the number of all images divided by that of the session's; at least 1.
    """
    known = np.maximum((labels >= 0).sum(axis=0), 1)
    share = np.minimum((labels == 1).sum(axis=0) / known, 1 - 1 / (known + 1))
    return np.where(labels == 1, 1.0, (rarity - share) / (1 - share))


def class_thresholds(scores: Array, labels: Array, weights: Floats) -> Floats:
    """The threshold of each class with the best F1; with too few positives, the best for all classes together.

    Arguments:
        scores: (V, K).
        labels: (V, K) of 1, 0 or -1.
        weights: (V, K), how often each entry counts.

    Returns:
        (K,); all have the default if no class is present.
    """
    pooled = best_threshold(scores.ravel(), labels.ravel(), weights.ravel())
    has_enough = (labels == 1).sum(axis=0) >= FEWEST_POSITIVES
    own = [
        best_threshold(scores[:, k], labels[:, k], weights[:, k]) if enough else pooled
        for k, enough in enumerate(has_enough)
    ]
    return np.array([DEFAULT_THRESHOLD if value is None else value for value in own], np.float64)


def best_threshold(scores: Array, labels: Array, weights: Floats) -> float | None:
    """The threshold at which `score > threshold` has the best F1; the highest of them if there are several.

    It lies midway between two neighbouring scores of known label, or between 0 and the lowest such score.

    Arguments:
        scores: (n,).
        labels: (n,) of 1, 0 or -1; unknown entries are ignored.
        weights: (n,), how often each entry counts.

    Returns:
        The threshold, or None without a positive.
    """
    known = labels >= 0
    values, truth, counts = np.asarray(scores[known], np.float64), labels[known] == 1, weights[known]
    if not truth.any():
        return None
    distinct, place = np.unique(values, return_inverse=True)  # (D,) rising, (n,)
    claimed = _at_least(place, counts, len(distinct))  # (D,) entries that score at least as high
    hit = _at_least(place[truth], counts[truth], len(distinct))
    # Equal ratios of whole numbers are equal in floating point too, so without weights ties are exact.
    f1 = 2 * hit / (claimed + hit[0])
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))
    above, below = float(distinct[best]), float(distinct[best - 1]) if best else 0.0
    # Two neighbouring floating point numbers have no middle: it would round to one of them.
    return min(below + (above - below) / 2, math.nextafter(above, -math.inf))


def threshold_for(precision: float, scores: Array, labels: Array, weights: Floats) -> float:
    """The lowest threshold at which `score > threshold` has this precision; 1 if none has.

    Arguments:
        precision: between 0 and 1.
        scores, labels, weights: as for `best_threshold`.
    """
    known = labels >= 0
    values, truth, counts = np.asarray(scores[known], np.float64), labels[known] == 1, weights[known]
    if not truth.any():
        return 1.0
    distinct, place = np.unique(values, return_inverse=True)  # (D,) rising
    claimed = _at_least(place, counts, len(distinct))
    hit = _at_least(place[truth], counts[truth], len(distinct))
    enough = np.flatnonzero(hit >= precision * claimed)
    return 1.0 if not len(enough) else math.nextafter(float(distinct[enough[0]]), -math.inf)


def best_scaling(scores: Array, labels: Array, weights: Floats) -> tuple[float, float]:
    """The temperature and shift with the least negative log-likelihood, kept near 1 and 0 where there are few images.

    A few images can often be separated without an error, and then the likelihood asks for a temperature of 0. So half
    the squares of 1 / temperature - 1 and of the shift are added, which about ten images outweigh. The sum is convex,
    and Newton's method, with steps of at most 1, finds its minimum.

    Arguments:
        scores: (V, K) in 0..1.
        labels: (V, K) of 1, 0 or -1.
        weights: (V, K), how often each entry counts.
    """
    known = labels >= 0
    counts = weights[known]
    logits, truth = _logit(np.clip(np.asarray(scores, np.float64)[known], _EDGE, 1 - _EDGE)), labels[known] == 1
    order = np.lexsort((counts, truth, logits))  # so that rounding does not depend on the order of the images
    counts, truth = counts[order], truth[order]
    inputs = np.stack([logits[order], np.ones(len(logits))])  # (2, n)
    start = np.array([1.0, 0.0])
    found = start
    for _ in range(_STEPS):
        probabilities = _sigmoid(found @ inputs)
        gradient = inputs @ (counts * (probabilities - truth)) + _PRIOR * (found - start)
        curvature = (inputs * (counts * probabilities * (1 - probabilities))) @ inputs.T + _PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        found = found - step / max(1.0, float(np.abs(step).max()))
        found[0] = min(max(found[0], math.exp(-_LOG_LIMIT)), math.exp(_LOG_LIMIT))
    # A temperature at its limit means that the images say nothing about it.
    is_found = abs(math.log(found[0])) < _LOG_LIMIT * (1 - 1e-9)
    return (1 / float(found[0]), float(found[1])) if is_found else DEFAULT_SCALING


def _at_least(place: NDArray[np.intp], counts: Floats, length: int) -> Floats:
    """(length,) the sum of the counts at each place and beyond it."""
    return np.asarray(np.bincount(place, counts, minlength=length)[::-1].cumsum()[::-1], np.float64)


def _logit(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):  # 0 and 1 become infinite logits, which _sigmoid turns back
        return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def _sigmoid(logits: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))  # exact for very small probabilities too
