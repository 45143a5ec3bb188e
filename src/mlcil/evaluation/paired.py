"""Whether one run is better than another, or only luckier with the test images.

Both runs are measured on the same resamples of the test images, so that images which are hard for both cancel out
(paired bootstrap, percentile interval). Runs with several seeds are compared seed by seed, and the seeds are resampled
as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from .metrics import Floats, average_precision
from .scores import ScoredImages

Pair = tuple[ScoredImages, ScoredImages]
FEWEST_RESAMPLES = 100  # the ends of a 95 % interval are then the third values from either side
_CHUNK = 1_000_000  # images times resamples that are held in memory at once


class Interval(NamedTuple):
    """The range in which a difference lies, in percent points."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


class ClassDifference(NamedTuple):
    """One class: the AP of both runs in percent, and second minus first."""

    name: str
    first: float
    second: float
    difference: float
    interval: Interval


class Difference(NamedTuple):
    """The differences of all classes that have a positive, and of their mean."""

    classes: list[ClassDifference]
    first: float  # mAP in percent
    second: float
    difference: float  # second minus first
    interval: Interval
    level: float  # the share of such intervals that should contain the true difference
    resamples: int
    pairs: int  # the number of seeds
    images: int
    without_positives: list[str]  # classes that no test image shows, or all of them

    @property
    def is_more_than_noise(self) -> bool:
        """Whether the interval of the mAP excludes 0."""
        return self.interval.excludes_zero


class _Ranking(NamedTuple):
    """One class of one run, its images divided into steps from the best score down.

    A step ends where the tie of a positive ends, because precision is only counted there. Images below the last
    positive, and those without a known label, are in a step S of their own.
    """

    steps: NDArray[np.intp]  # (N,) step of each image, in 0..S
    positives: NDArray[np.intp]  # (P,) images that show the class, best first
    begins: NDArray[np.intp]  # (S,) where in `positives` each step begins


def paired_difference(pairs: Sequence[Pair], resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Difference:
    """How much better the second run is than the first, with intervals.

    A resample without a positive of a class is left out of that class's interval, and the class out of its mean.

    Arguments:
        pairs: the first and the second run, once per seed; rows and classes may be in any order.
        resamples: the number of resamples, at least 100.
        level: the level of the intervals, between 0 and 1.
        seed: the random seed of the resamples.

    Raises:
        UserError: classes, test images or labels differ, no class has a positive, or `resamples` is too small.

    Notes:
        With P seeds the variance between them is underestimated by the factor (P - 1) / P, as in every
        bootstrap of P values; with one seed it is not covered at all.
    """
    if resamples < FEWEST_RESAMPLES:
        raise UserError(f"resamples: got {resamples}, expected at least {FEWEST_RESAMPLES}")
    pairs, without = _comparable(pairs)
    per_pair = [[100 * average_precision(run.scores, run.labels) for run in pair] for pair in pairs]
    ap = np.mean(per_pair, axis=0)  # (pairs, 2, K) -> (2, K)
    drawn = _resampled_differences(pairs, resamples, seed)  # (R, K)
    first, second = ap.mean(axis=1).tolist()
    return Difference(
        classes=[
            ClassDifference(name, one, other, other - one, _interval(column, level))
            for name, (one, other), column in zip(pairs[0][0].classes, ap.T.tolist(), drawn.T, strict=True)
        ],
        first=first,
        second=second,
        difference=second - first,
        interval=_interval(_mean_of_present(drawn), level),
        level=level,
        resamples=resamples,
        pairs=len(pairs),
        images=len(pairs[0][0].rows),
        without_positives=without,
    )


def _comparable(pairs: Sequence[Pair]) -> tuple[list[Pair], list[str]]:
    """The pairs with rows and classes in the same order, and the classes that no test image or all of them show."""
    reference = _by_row(pairs[0][0])
    shown = (reference.labels == 1).any(axis=0) & (reference.labels == 0).any(axis=0)  # (K,)
    if not shown.any():
        raise UserError(f"no test image shows any of the {len(reference.classes)} classes")
    kept = [name for name, is_shown in zip(reference.classes, shown, strict=True) if is_shown]
    without = [name for name in reference.classes if name not in kept]
    aligned = [(_align(first, reference), _align(second, reference)) for first, second in pairs]
    return [(_columns(first, kept), _columns(second, kept)) for first, second in aligned], without


def _by_row(run: ScoredImages) -> ScoredImages:
    places = np.argsort(run.rows)
    return ScoredImages(run.scores[places], run.labels[places], run.rows[places], run.classes)


def _align(run: ScoredImages, reference: ScoredImages) -> ScoredImages:
    """`run` with its rows and classes in the order of `reference`."""
    _check_same("classes", run.classes, reference.classes)
    _check_same("test images (rows of the test set)", run.rows.tolist(), reference.rows.tolist())
    aligned = _columns(_by_row(run), reference.classes)
    differing = int((aligned.labels != reference.labels).any(axis=1).sum())
    if differing:
        raise UserError(f"the labels of {differing} of {len(run.rows)} test images differ between the runs")
    return aligned


def _check_same(what: str, one: Sequence[object], other: Sequence[object]) -> None:
    ours, theirs = set(one), set(other)
    if ours != theirs:
        sides = [_some([entry for entry in other if entry not in ours]), _some([e for e in one if e not in theirs])]
        raise UserError(f"the {what} differ between the runs: only one has {sides[0]}, only the other {sides[1]}")


def _some(entries: Sequence[object]) -> str:
    shown = ", ".join(str(entry) for entry in entries[:3])
    return (shown + (f" and {len(entries) - 3} more" if len(entries) > 3 else "")) or "none"


def _columns(run: ScoredImages, names: Sequence[str]) -> ScoredImages:
    columns = [run.classes.index(name) for name in names]
    return ScoredImages(run.scores[:, columns], run.labels[:, columns], run.rows, tuple(names))


def _resampled_differences(pairs: Sequence[Pair], resamples: int, seed: int) -> Floats:
    """(R, K) second minus first in percent points, NaN where a resample has no positive of a class."""
    count = len(pairs)
    drawn = np.random.default_rng([seed, 0]).multinomial(count, np.full(count, 1 / count), resamples)  # (R, pairs)
    differences = np.zeros((resamples, len(pairs[0][0].classes)))
    for index, pair in enumerate(pairs):
        first, second = ([*map(_rank, run.scores.T, run.labels.T)] for run in pair)  # K rankings each
        share = 100 * drawn[:, index] / count
        # Every pair gets the same resamples of the images.
        for chunk, weights in _draws(len(pair[0].rows), resamples, np.random.default_rng([seed, 1])):
            for k, (one, other) in enumerate(zip(first, second, strict=True)):
                difference = _weighted_precision(other, weights) - _weighted_precision(one, weights)  # (C,)
                # All pairs share the labels, so NaN is in the same places for each.
                differences[chunk, k] += share[chunk] * difference
    return differences


def _draws(images: int, resamples: int, rng: np.random.Generator) -> Iterator[tuple[slice, Floats]]:
    """Chunks of C resamples: their place among all, and (C, N) how often each image is drawn in each of them."""
    width = max(1, _CHUNK // images)
    for start in range(0, resamples, width):
        count = min(width, resamples - start)
        drawn = rng.integers(images, size=(count, images)) + images * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * images)
        yield slice(start, start + count), counts.reshape(count, images).astype(np.float64)


def _rank(scores: NDArray[np.float32], labels: NDArray[np.int8]) -> _Ranking:
    """The ranking of one class that has a positive; scores and labels are (N,)."""
    known = np.flatnonzero(labels >= 0)
    order = known[np.argsort(-scores[known], kind="stable")]
    ranked, is_hit = scores[order], labels[order] == 1
    tie = np.cumsum(np.append(False, ranked[1:] != ranked[:-1]))  # the number of each image's tie, increasing
    ties, begins = np.unique(tie[is_hit], return_index=True)  # (S,)
    steps = np.full(len(labels), len(ties))
    steps[order] = np.searchsorted(ties, tie)
    return _Ranking(steps, order[is_hit], begins)


def _weighted_precision(ranking: _Ranking, weights: Floats) -> Floats:
    """Average precision of resamples, equal to that of the repeated images themselves.

    Arguments:
        ranking: the ranking of all images for the class.
        weights: (C, N) how often each image occurs in each of C resamples.

    Returns:
        (C,) in 0..1, NaN for a resample without a positive.
    """
    count = len(ranking.begins)
    per_step = [np.bincount(ranking.steps, row, minlength=count)[:count] for row in weights]
    known = np.cumsum(per_step, axis=1)  # (C, S), exact because these are whole numbers
    hits = np.add.reduceat(weights[:, ranking.positives], ranking.begins, axis=1)
    found = np.cumsum(hits, axis=1)
    positives = found[:, -1]
    total = (hits * found / np.maximum(known, 1)).sum(axis=1)
    return np.where(positives > 0, total / np.maximum(positives, 1), np.nan)


def _mean_of_present(values: Floats) -> Floats:
    """(R,) mean over the classes that have a value; NaN if none has."""
    present = (~np.isnan(values)).sum(axis=1)
    return np.where(present > 0, np.nansum(values, axis=1) / np.maximum(present, 1), np.nan)


def _interval(values: Floats, level: float) -> Interval:
    outside = (1 - level) / 2
    low, high = np.quantile(values[~np.isnan(values)], [outside, 1 - outside]).tolist()
    return Interval(low, high)
