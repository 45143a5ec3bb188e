"""Ridge regression from sums alone: the weights, their strength, and what their scores mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import UserError
from .sums import Sums

ASKED = 100  # classes that the choice of a strength listens to, so that it costs no more with a thousand
LADDER = 2.0  # ratio of neighbouring strengths that are tried
MOST_FREEDOM = 0.9  # parameters per image; beyond it, fitting errors vanish and say nothing about new images
LOWEST, HIGHEST = -16, 10  # rungs, as powers of the ratio times the number of images
LEAF = 128  # rows of a triangular matrix that is inverted at once
SMALLEST_DEVIATION = 0.1  # of a feature, as a part of the median one; what hardly ever changes is not blown up


class Solution(NamedTuple):
    """Weights, and how much they lean on single images."""

    weights: Tensor  # (d, K) float64, the last row for the constant
    ridge: float  # their strength
    freedom: float  # parameters per image in effect, in 0..1: how much an image's own label moves its own score
    error: float  # of generalised cross-validation, mean over classes, relative to guessing the mean
    squares: Tensor  # (K,) sum over images of the squared distance of a score from the mean score


class _Standardised(NamedTuple):
    """The sums as if every feature but the constant had mean 0 and deviation 1 over all images."""

    gram: Tensor  # (d - 1, d - 1), of which only the lower triangle counts
    cross: Tensor  # (d - 1, K)
    mean: Tensor  # (d - 1,) of the features as they are
    deviation: Tensor  # (d - 1,)
    spread: Tensor  # (K,) sum of the squared distances of labels from their mean


def solve(sums: Sums, ridge: float) -> Solution:
    """The weights that minimise sum |z' W - y'|^2 + ridge |D W|^2, D the deviations of the features.

    So every feature is penalised as if it had the deviation 1, whatever its scale is; the constant is free.

    Arguments:
        sums: over images whose last feature is 1.
        ridge: above 0.
    """
    return _solve(sums, _standardise(sums), ridge)


def choose_ridge(sums: Sums, names: tuple[str, ...]) -> Solution:
    """The weights at the strength of least generalised cross-validation error (Golub, Heath and Wahba, 1979).

    The error of leaving each image out, estimated from the sums alone, is computed on a ladder of strengths, from the
    middle in the direction in which it falls. Where images are few, the estimate fails at weak strengths, which fit
    them without an error: those do not count. All classes count alike; of very many, only some are used.
    The outcome depends on the sums and on nothing else, such as the order in which they came about.

    Arguments:
        names: of the K classes; they decide which of very many are used.
    """
    asked = sorted(range(len(names)), key=lambda column: names[column])[:: -(-len(names) // ASKED) or 1]
    some = sums if len(asked) == len(names) else sums.with_columns(asked)
    standard = _standardise(some)
    tried: dict[int, Solution] = {}

    def at(rung: int) -> Solution:
        if rung not in tried:
            tried[rung] = _solve(some, standard, sums.images * LADDER**rung)
        return tried[rung]

    best = 0
    while best < HIGHEST and at(best).freedom > MOST_FREEDOM:
        best += 1
    for step in (-1, 1):
        while LOWEST <= best + step <= HIGHEST and at(best + step).error < at(best).error:
            best += step
    return at(best) if some is sums else solve(sums, at(best).ridge)


def _standardise(sums: Sums) -> _Standardised:
    count = sums.images
    if count < 1:
        raise UserError("there is no solution: the learner has seen no image, or more was taken away than added")
    mean, share = sums.total[:-1] / count, sums.positives / count
    gram = sums.matrix()[:-1, :-1] - count * torch.outer(mean, mean)
    if not torch.isfinite(gram.diagonal().sum() + sums.cross.sum()):  # one NaN or infinity is in the sum, too
        raise UserError("the features are not finite; the backbone's weights or the images are damaged")
    # Rounding leaves about 1e-16 of the squares where a feature never changes, and a deviation is their root.
    deviation = (gram.diagonal() / count).clamp(min=0).sqrt()
    moves = deviation > 1e-6 * (1 + mean.abs())
    if not moves.any():
        raise UserError(f"the {count:.0f} image(s) all look the same to the backbone; it needs different ones")
    deviation = deviation.clamp(min=SMALLEST_DEVIATION * float(deviation[moves].median()))
    cross = (sums.cross[:-1] - torch.outer(mean, sums.positives)) / deviation[:, None]
    return _Standardised(gram / deviation[:, None] / deviation, cross, mean, deviation, count * share * (1 - share))


def _solve(sums: Sums, standard: _Standardised, ridge: float) -> Solution:
    matrix = standard.gram.clone()
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)  # reads the lower triangle only
    if failed:
        raise UserError("there is no solution: more was taken away than added, or ridge is too small")
    weights = torch.cholesky_solve(standard.cross, factor)
    freedom = float(len(matrix) - ridge * _diagonal_of_inverse(factor).sum() + 1) / sums.images
    fit = (weights * standard.cross).sum(0)
    squares = fit - ridge * weights.square().sum(0)  # W'AW; the normal equations spare the product with the matrix
    plain = weights / standard.deviation[:, None]
    constant = sums.positives / sums.images - standard.mean @ plain
    error = _error(standard.spread, standard.spread - 2 * fit + squares, freedom, sums.images)
    return Solution(torch.cat([plain, constant[None]]), ridge, freedom, error, squares)


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


def _error(spread: Tensor, residual: Tensor, freedom: float, images: float) -> float:
    known = spread > 1e-9 * images
    if not known.any() or freedom > MOST_FREEDOM:
        return math.inf
    return float((residual[known] / spread[known]).mean()) / max(1 - freedom, 1e-9) ** 2
