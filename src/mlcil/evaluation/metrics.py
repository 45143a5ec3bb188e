"""How well images are tagged: average precision, F1, calibration and forgetting. Fractions in 0..1, all in float64.

Labels are three-valued: 1 present, 0 absent, -1 unknown. An unknown entry is left out of its class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class F1(NamedTuple):
    """The two published class-wise F1 and the overall one."""

    cf1: float  # mean of per-class F1, as in KRT's code
    cf1_of_means: float  # from the mean precision and the mean recall
    of1: float  # from counts pooled over all classes


class Forgetting(NamedTuple):
    """AP now minus the best AP ever, never above 0."""

    per_class: Floats  # (K,), NaN for a class that is not old or has no AP now
    mean: float  # over the old classes, 0 without any


def average_precision(scores: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """Non-interpolated average precision of each class, equal to scikit-learn's, ties included.

    Arguments:
        scores: (N, K), higher means more likely present.
        labels: (N, K) of 1, 0 or -1.

    Returns:
        (K,) in 0..1, NaN for a class without a positive.

    Raises:
        ValueError: the shapes differ, or a score is NaN and cannot be ranked.
    """
    check_scores(scores, labels)
    # (K, N), so that each sort runs over adjacent memory
    by_class, truth = np.ascontiguousarray(scores.T), np.ascontiguousarray(labels.T)
    pairs = zip(by_class, truth, strict=True)
    return np.array([_average_precision(one[known >= 0], one[known == 1]) for one, known in pairs], np.float64)


def f1_scores(scores: NDArray[Any], labels: NDArray[Any], threshold: float | Floats) -> F1:
    """Class-wise and overall F1 of the prediction `score > threshold`.

    Classes without a positive label are left out of both class-wise means; the overall F1 pools every
    column. An undefined ratio is 0, so the result is never NaN.

    Arguments:
        scores: (N, K). Compared in their own precision, so a float32 0.8 is not above 0.8.
        labels: (N, K) of 1, 0 or -1.
        threshold: one for all classes, or (K,), then compared in double precision.
    """
    check_scores(scores, labels)
    if np.ndim(threshold) and np.shape(threshold) != scores.shape[1:]:
        raise ValueError(f"got thresholds {np.shape(threshold)} for scores {scores.shape}, expected one per class")
    predicted = scores > threshold
    hit = (predicted & (labels == 1)).sum(axis=0)  # (K,)
    claimed = (predicted & (labels >= 0)).sum(axis=0)
    positive = (labels == 1).sum(axis=0)
    counted = positive > 0
    precision = _ratio(hit, claimed)[counted]
    recall = _ratio(hit, positive)[counted]
    per_class = _ratio(2 * hit, claimed + positive)[counted]  # 2PR / (P + R), written in counts
    mean_p, mean_r = _mean(precision), _mean(recall)
    of_means = 2 * mean_p * mean_r / (mean_p + mean_r) if mean_p + mean_r > 0 else 0.0
    pooled = _ratio(2 * hit.sum(), claimed.sum() + positive.sum())
    return F1(cf1=_mean(per_class), cf1_of_means=of_means, of1=float(pooled))


def expected_calibration_error(scores: NDArray[Any], labels: NDArray[Any], bins: int = 15) -> float:
    """How far probabilities are from frequencies: |mean score - share of positives|, a mean over bins by their size.

    All classes are pooled. Bins are equally wide and hold their lower edge; the last one holds 1 too.

    Arguments:
        scores: (N, K) in 0..1.
        labels: (N, K) of 1, 0 or -1.

    Returns:
        In 0..1, and 0 if no label is known.

    Raises:
        ValueError: the shapes differ, or a score is NaN or not in 0..1.
    """
    check_scores(scores, labels)
    known = labels >= 0
    if not known.any():
        return 0.0
    probabilities = np.asarray(scores, np.float64)[known]
    low, high = float(probabilities.min()), float(probabilities.max())
    if low < 0 or high > 1:
        raise ValueError(f"got scores from {low:g} to {high:g}, expected probabilities in 0..1")
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, weights=probabilities - (labels[known] == 1), minlength=bins)  # (bins,) summed
    return float(np.abs(gaps).sum() / len(probabilities))


def forgetting(matrix: Floats) -> Forgetting:
    """AP after the last session minus the best AP each old class ever had.

    Arguments:
        matrix: (K, T) AP of each class after each session, NaN where it was not seen or has no positive.
    """
    old, best = _old(matrix), np.full(len(matrix), np.nan)
    best[old] = np.nanmax(matrix[old], axis=1) if old.any() else np.nan
    per_class = np.where(old, _last(matrix) - best, np.nan)
    return Forgetting(per_class, _mean(per_class[old]))


def backward_transfer(matrix: Floats) -> float:
    """Mean over old classes of AP now minus the AP right after the class's own session.

    Arguments:
        matrix: (K, T), as for `forgetting`. Without old classes the result is 0.
    """
    old = matrix[_old(matrix)]
    first = np.argmin(np.isnan(old), axis=1) if len(old) else np.zeros(0, np.intp)
    return _mean(_last(old) - old[np.arange(len(old)), first])


def _old(matrix: Floats) -> NDArray[np.bool_]:
    """(K,) true for a class that has an AP now and had one before the last session."""
    seen = ~np.isnan(matrix)
    return np.asarray(seen[:, :-1].any(axis=1) & ~np.isnan(_last(matrix)))


def _last(matrix: Floats) -> Floats:
    # Before the first session there is no last column: every class is then unseen.
    return matrix[:, -1] if matrix.shape[1] else np.full(len(matrix), np.nan)


def _average_precision(known: NDArray[Any], positive: NDArray[Any]) -> float:
    """Of one class, from the scores of the images whose label is known and of those that show it.

    Equal scores cannot be told apart: each positive counts the precision at the end of its tie, which is the share of
    positives among all that score at least as high. This takes no more of the ranking than sorted scores.
    """
    if not len(positive):
        return float("nan")
    known, positive = np.sort(known), np.sort(positive)
    found = len(positive) - np.searchsorted(positive, positive)  # positives that score at least as high
    claimed = len(known) - np.searchsorted(known, positive)
    return float((found / claimed).mean())


def _ratio(above: Any, below: Any) -> Floats:
    return np.where(np.asarray(below) > 0, above / np.maximum(below, 1), 0.0)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def check_scores(scores: NDArray[Any], labels: NDArray[Any]) -> None:
    """Raise ValueError unless both are (N, K) and every score can be ranked."""
    if scores.ndim != 2 or scores.shape != labels.shape:
        raise ValueError(f"scores {scores.shape} and labels {labels.shape} must both be (images, classes)")
    if np.isnan(scores).any():
        images = int(np.isnan(scores).any(axis=1).sum())
        raise ValueError(f"the scores of {images} of {len(scores)} images contain NaN and cannot be ranked")
