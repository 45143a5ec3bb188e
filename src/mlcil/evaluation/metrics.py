"""How well images are tagged: average precision, F1, calibration and forgetting.

The first half of this file holds the metrics of results.json. A metric is a function that yields `(name, value)` pairs
from a `Measurement`. To add one, write such a function and list it in `METRICS`: results.json, the tables and the page
then show it under its name. The second half holds the formulas, which return fractions in 0..1 in float64.

Labels are three-valued: 1 present, 0 absent, -1 unknown. An unknown entry is left out of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Array = NDArray[Any]  # scores of any floating type, or labels of any integer type
THRESHOLDS = (0.5, 0.8)  # KRT's tables use 0.8
_ROUNDING = 1e-5  # a cosine that was scaled to 0..1 may leave that range by this much


class Measurement(NamedTuple):
    """What metrics are computed from: a model after a session, seen through N test images and K classes."""

    scores: Array  # (N, K), higher means more likely present
    labels: Array  # (N, K) of 1, 0 or -1
    ap: Floats  # (K, T) AP in percent after each of T sessions, this one last; NaN where a class has none
    thresholds: Floats | None = None  # (K,), those stored with the model
    probabilities: Floats | None = None  # (N, K), the scores after calibration


NamedValues = Iterator[tuple[str, float | None]]  # percent, or percent points; None where a value is undefined


def measure(measurement: Measurement) -> dict[str, float | None]:
    """The value of every metric, by name."""
    return {name: value for metric in METRICS for name, value in metric(measurement)}


def mean_ap(found: Measurement) -> NamedValues:
    """The mean AP over the classes that have one."""
    ap = found.ap[~np.isnan(found.ap[:, -1]), -1]
    yield "mAP", float(ap.mean()) if len(ap) else None


def f1(found: Measurement) -> NamedValues:
    """F1 at the usual thresholds, and at those stored with the model if there are any; see `F1`."""
    thresholds: dict[str, float | Floats] = {str(threshold): threshold for threshold in THRESHOLDS}
    if found.thresholds is not None:
        thresholds["stored"] = found.thresholds
    for text, threshold in thresholds.items():
        values = f1_scores(found.scores, found.labels, threshold)
        yield f"CF1@{text}", 100 * values.cf1
        yield f"CF1 of means@{text}", 100 * values.cf1_of_means
        yield f"OF1@{text}", 100 * values.of1


def calibration_error(found: Measurement) -> NamedValues:
    """The expected calibration error of the scores, and of the calibrated ones if there are any."""
    probabilities = np.clip(found.scores, 0, 1)
    # A method from another package may score as it likes. That is no reason to lose a trained session.
    is_probability = np.abs(probabilities - found.scores).max(initial=0) <= _ROUNDING
    yield "ECE", 100 * expected_calibration_error(probabilities, found.labels) if is_probability else None
    if found.probabilities is not None:
        yield "ECE calibrated", 100 * expected_calibration_error(found.probabilities, found.labels)


def change_of_old_classes(found: Measurement) -> NamedValues:
    """Forgetting and backward transfer: negative values are loss, and both are 0 without old classes."""
    lost = forgetting(found.ap)
    yield "forgetting", _mean(lost[~np.isnan(lost)])
    yield "BWT", backward_transfer(found.ap)


METRICS: tuple[Callable[[Measurement], NamedValues], ...] = (mean_ap, f1, calibration_error, change_of_old_classes)


class F1(NamedTuple):
    """The two published class-wise F1 and the overall one."""

    cf1: float  # mean of per-class F1, as in KRT's code
    cf1_of_means: float  # from the mean precision and the mean recall
    of1: float  # from counts pooled over all classes


def average_precision(scores: Array, labels: Array) -> Floats:
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


def meaningful_ap(scores: Array, labels: Array) -> Floats:
    """(K,) average precision in percent; NaN unless some images show the class and some are known not to.

    Where every image shows a class, any order of them has an AP of 100.

    Arguments:
        scores, labels: (N, K), as for `average_precision`.
    """
    return np.where((labels == 0).any(axis=0), 100 * average_precision(scores, labels), np.nan)


def f1_scores(scores: Array, labels: Array, threshold: float | Floats) -> F1:
    """Class-wise and overall F1 when a class is predicted wherever `score > threshold`.

    Classes without a positive label are left out of both class-wise means; the overall F1 pools every
    column. An undefined ratio counts as 0, so the result is never NaN.

    Arguments:
        scores: (N, K). They are compared in their own precision, so a float32 0.8 is not above 0.8.
        labels: (N, K) of 1, 0 or -1.
        threshold: one for all classes, or (K,) thresholds, which are compared in double precision.
    """
    check_scores(scores, labels)
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


def expected_calibration_error(scores: Array, labels: Array, bins: int = 15) -> float:
    """How far probabilities are from frequencies: |mean score - share of positives| per bin, weighted by bin size.

    All classes are pooled. Bins are equally wide and include their lower edge; the last one also includes 1.

    Arguments:
        scores: (N, K) in 0..1.
        labels: (N, K) of 1, 0 or -1.

    Returns:
        A value in 0..1; 0 if no label is known.

    """
    check_scores(scores, labels)
    known = labels >= 0
    if not known.any():
        return 0.0
    probabilities = np.asarray(scores, np.float64)[known]
    place = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, weights=probabilities - (labels[known] == 1), minlength=bins)  # (bins,) summed
    return float(np.abs(gaps).sum() / len(probabilities))


def forgetting(matrix: Floats) -> Floats:
    """AP after the last session minus the best AP that each old class ever had; never above 0.

    Arguments:
        matrix: (K, T) AP of each class after each session, NaN where it was not seen or has no positive.

    Returns:
        (K,), NaN for a class that is not old or has no AP now.
    """
    old, lost = _old(matrix), np.full(len(matrix), np.nan)
    lost[old] = matrix[old, -1] - np.nanmax(matrix[old], axis=1)
    return lost


def backward_transfer(matrix: Floats) -> float:
    """Mean over old classes of AP now minus the AP right after the class's own session.

    Arguments:
        matrix: (K, T) as for `forgetting`.

    Returns:
        The mean, 0 without old classes.
    """
    old = matrix[_old(matrix)]
    first = np.argmin(np.isnan(old), axis=1)
    return _mean(old[:, -1] - old[np.arange(len(old)), first])


def _old(matrix: Floats) -> NDArray[np.bool_]:
    """(K,) true for a class that has an AP now and had one before the last session."""
    seen = ~np.isnan(matrix)
    return np.asarray(seen[:, :-1].any(axis=1) & seen[:, -1])


def _average_precision(known: Array, positive: Array) -> float:
    """The AP of one class.

    Images with equal scores have no order, so each positive counts the precision at the end of its tie: the share of
    positives among all images that score at least as high. Two sorted arrays are enough to compute that.

    Arguments:
        known: (n,) the scores of all images whose label is known.
        positive: (p,) the scores of those that show the class.
    """
    if not len(positive):
        return float("nan")
    known, positive = np.sort(known), np.sort(positive)
    found = len(positive) - np.searchsorted(positive, positive)  # positives that score at least as high
    claimed = len(known) - np.searchsorted(known, positive)
    return float((found / claimed).mean())


def _ratio(above: Array, below: Array) -> Floats:
    return np.where(np.asarray(below) > 0, above / np.maximum(below, 1), 0.0)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def check_scores(scores: Array, labels: Array) -> None:
    """Raise ValueError unless both are (N, K) and every score can be ranked."""
    if scores.ndim != 2 or scores.shape != labels.shape:
        raise ValueError(f"scores {scores.shape} and labels {labels.shape} must both be (images, classes)")
    if np.isnan(scores).any():
        images = int(np.isnan(scores).any(axis=1).sum())
        raise ValueError(f"the scores of {images} of {len(scores)} images contain NaN and cannot be ranked")
