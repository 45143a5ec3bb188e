"""Ridge regression from sums alone: the weights, their strength, and what their scores mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import UserError
from .statistics import Statistics

ASKED = 100  # classes that the choice of a strength listens to, so that it costs no more with a thousand
LADDER = 2.0  # ratio of neighbouring strengths that are tried
MOST_FREEDOM = 0.9  # parameters per image; beyond it, fitting errors vanish and say nothing about new images
LOWEST, HIGHEST = -16, 10  # rungs, as powers of the ratio times the mean squared feature
LEAF = 128  # rows of a triangular matrix that is inverted at once
SMALLEST_VARIANCE = 1e-12
ABSENT = -30.0  # the logit of a class that nothing is known of
SMALLEST_GAP = 0.1  # between images with a class and without, in deviations; little known, scores still keep an order


class Solution(NamedTuple):
    """Weights, and how much they lean on single images."""

    weights: Tensor  # (d, K) float64
    ridge: float  # their strength
    freedom: float  # parameters per image in effect, in 0..1: how much an image's own label moves its own score
    error: float  # of generalised cross-validation, mean over classes, relative to guessing the mean


def solve(statistics: Statistics, ridge: float) -> Solution:
    """The weights that minimise sum w |z' Theta - y'|^2 + ridge |Theta|^2; the last feature, a constant, is free.

    Arguments:
        statistics: sums over images whose last feature is 1.
        ridge: above 0.
    """
    factor = _factor(statistics, ridge)
    weights = torch.cholesky_solve(statistics.cross, factor)
    trace = _diagonal_of_inverse(factor)[:-1].sum()
    freedom = float((statistics.width - ridge * trace) / statistics.images)
    return Solution(weights, ridge, freedom, _error(statistics, weights, ridge, freedom))


def choose_ridge(statistics: Statistics) -> Solution:
    """The weights at the strength of least generalised cross-validation error (Golub, Heath and Wahba, 1979).

    The error of leaving each image out, estimated from the sums alone, is computed on a ladder of strengths, from the
    middle in the direction in which it falls. Where images are few, the estimate fails at weak strengths, which fit
    them without an error: those do not count. All classes count alike; of very many, only some are used.
    The outcome depends on the sums and on nothing else, such as the order in which they came about.
    """
    unit = float(statistics.matrix().diagonal()[:-1].mean())
    names = sorted(statistics.classes)[:: -(-len(statistics.classes) // ASKED) or 1]
    asked = statistics if len(names) == len(statistics.classes) else statistics.with_classes(names)
    tried: dict[int, Solution] = {}

    def at(rung: int) -> Solution:
        if rung not in tried:
            tried[rung] = solve(asked, max(unit, 1e-12) * LADDER**rung)
        return tried[rung]

    best = 0
    while best < HIGHEST and at(best).freedom > MOST_FREEDOM:
        best += 1
    for step in (-1, 1):
        while LOWEST <= best + step <= HIGHEST and at(best + step).error < at(best).error:
            best += step
    return at(best) if asked is statistics else solve(statistics, at(best).ridge)


def score_calibration(statistics: Statistics, solution: Solution) -> tuple[Tensor, Tensor, Tensor]:
    """What scores mean, from the sums alone: two Gaussians of one variance, images with the class and without.

    An image of the sums had a part in its own score, `Solution.freedom`, which a new image has not; the means are
    corrected for it. The threshold is where the F1 of the two Gaussians is highest. A class without any positive is
    never present.

    Returns:
        slope, offset and threshold, each (K,) float64: sigmoid(slope s + offset) is the probability of a class with
        score s, and s > threshold says that it is present.
    """
    weights, count = solution.weights, statistics.weight
    mean = weights.T @ statistics.total / count
    variance = _squares(statistics, weights, solution.ridge) / count - mean**2
    share = (statistics.positives / count).clamp(1e-12, 1 - 1e-9)
    present = (weights * statistics.cross).sum(0) / statistics.positives.clamp(min=1e-12)
    absent = (mean - share * present) / (1 - share)
    within = variance - share * (1 - share) * (present - absent) ** 2
    others = 1 - min(solution.freedom, 0.99)  # what a score owes to other images
    high, low = 1 - (1 - present) / others, absent / others
    spread = (within / others**2).clamp(min=SMALLEST_VARIANCE)
    high = torch.maximum(high, low + SMALLEST_GAP * spread.sqrt())
    slope = (high - low) / spread
    offset = torch.log(share / (1 - share)) - slope * (high + low) / 2
    threshold = _best_threshold(high, low, spread.sqrt(), share)
    seen = statistics.positives > 0
    return torch.where(seen, slope, 1.0), torch.where(seen, offset, ABSENT), torch.where(seen, threshold, math.inf)


def _best_threshold(high: Tensor, low: Tensor, deviation: Tensor, share: Tensor) -> Tensor:
    """(K,) where F1 = 2 P R / (P + R) is highest, for normal scores around `high` (present) and `low` (absent)."""
    steps = torch.linspace(0, 1, 801, dtype=torch.float64)[:, None]
    lowest, highest = low - 4 * deviation, high + 4 * deviation
    tried = lowest + (highest - lowest) * steps  # (801, K)
    found = share * torch.special.ndtr((high - tried) / deviation)
    claimed = found + (1 - share) * torch.special.ndtr((low - tried) / deviation)
    f1 = 2 * found / (share + claimed)
    is_best = (f1 >= f1.amax(0) - 1e-9).double()  # of a plateau, as between scores far apart, the middle
    middle: Tensor = (tried * is_best).sum(0) / is_best.sum(0)
    return middle


def _factor(statistics: Statistics, ridge: float) -> Tensor:
    matrix = statistics.matrix()  # a Cholesky factorisation reads the lower triangle only
    matrix.diagonal()[:-1] += ridge
    if not torch.isfinite(matrix.sum() + statistics.cross.sum()):  # one NaN or infinity is in the sum, too
        raise UserError("the features are not finite; the backbone's weights or the images are damaged")
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise UserError(
            "there is no solution: the learner has seen no image, more was taken away than added, or ridge is too small"
        )
    return factor


def _diagonal_of_inverse(factor: Tensor) -> Tensor:
    """(d,) the diagonal of (L L')^-1 from the lower triangular L: the squared lengths of the columns of L^-1.

    By halves: the inverse of [[A, 0], [B, C]] is [[A^-1, 0], [-C^-1 B A^-1, C^-1]]. Nothing else of (L L')^-1 is
    computed, which takes half the work of all of it.
    """
    width, half = len(factor), len(factor) // 2
    if width <= LEAF:
        identity = torch.eye(width, dtype=factor.dtype)
        inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
        return inverse.square().sum(0)
    first, last = factor[:half, :half], factor[half:, half:]
    corner = torch.linalg.solve_triangular(last, factor[half:, :half], upper=False)
    corner = torch.linalg.solve_triangular(first, corner, upper=False, left=False)
    return torch.cat([_diagonal_of_inverse(first) + corner.square().sum(0), _diagonal_of_inverse(last)])


def _squares(statistics: Statistics, weights: Tensor, ridge: float) -> Tensor:
    """(K,) weighted sums of squared scores, w' A w; the normal equations spare the product with the matrix A."""
    return (weights * statistics.cross).sum(0) - ridge * weights[:-1].square().sum(0)


def _error(statistics: Statistics, weights: Tensor, ridge: float, freedom: float) -> float:
    fit = 2 * (weights * statistics.cross).sum(0) - _squares(statistics, weights, ridge)
    residual = statistics.positives - fit  # y is 0 or 1, so the sum of its squares is that of y
    spread = statistics.positives * (1 - statistics.positives / statistics.weight)
    known = spread > 1e-9 * statistics.weight
    if not known.any() or freedom > MOST_FREEDOM:
        return math.inf
    return float((residual[known] / spread[known]).mean()) / max(1 - freedom, 1e-9) ** 2
