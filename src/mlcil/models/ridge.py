"""Ridge regression from sums alone: the weights, their strength, and what their scores mean."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigvalsh_tridiagonal, lapack, solveh_banded
from torch import Tensor

from ..core.errors import UserError
from .sums import Sums

ASKED = 100  # classes that the choice of a strength listens to, so that it costs no more with a thousand
LADDER = 2.0  # ratio of neighbouring strengths that are tried
MOST_FREEDOM = 0.9  # parameters per image; beyond it, fitting errors vanish and say nothing about new images
LOWEST, HIGHEST = -16, 10  # rungs, as powers of the ratio times the number of images
# A strength is looked for in float32, which errs by about 1e-6 from this rung on; what is weaker, or differs by less
# than this part, is decided in float64.
WEAKEST_ROUGH, CLOSE = -4, 1e-5
LEAF = 128  # rows of a triangular matrix that is inverted at once
SMALLEST_DEVIATION = 0.1  # of a feature, as a part of the median one; what hardly ever changes is not blown up
_NO_SOLUTION = "there is no solution: more was taken away than added, or ridge is too small"


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


class _Fit(NamedTuple):
    """A `Solution` for standardised features."""

    weights: Tensor  # (d - 1, K)
    freedom: float
    error: float
    squares: Tensor


def solve(sums: Sums, ridge: float) -> Solution:
    """The weights that minimise sum |z' W - y'|^2 + ridge |D W|^2, D the deviations of the features.

    So every feature is penalised as if it had the deviation 1, whatever its scale is; the constant is free.

    Arguments:
        sums: over images whose last feature is 1.
        ridge: above 0.
    """
    return _solution(sums, _standardise(sums), ridge)


def weights_at(sums: Sums, ridge: float) -> Tensor:
    """(d, K) the weights of `solve` alone, which cost half as much."""
    standard = _standardise(sums)
    return _plain(sums, standard, torch.cholesky_solve(standard.cross, _factor(standard.gram, ridge)))


def factored(sums: Sums, ridge: float) -> Tensor:
    """(d, d) lower triangular L: L L' W = C has the weights of `solve` for any C (d, K), of the same images."""
    standard = _standardise(sums)
    penalty = ridge * torch.cat([standard.deviation, standard.deviation.new_zeros(1)]).square()
    return _factor(sums.matrix() + penalty.diag(), 0.0)


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
    standard = _standardise(sums)
    exact = standard._replace(cross=standard.cross[:, asked], spread=standard.spread[asked])
    rough = _Tridiagonal(exact, sums.images)

    @cache
    def at(rung: int, is_rough: bool) -> _Fit:
        ridge = sums.images * LADDER**rung
        return rough.fit(ridge) if is_rough else _fit(exact, ridge, sums.images)

    def freedom(rung: int) -> float:
        found = at(rung, True).freedom
        return found if abs(found - MOST_FREEDOM) > CLOSE else at(rung, False).freedom

    def is_better(one: int, other: int) -> bool:
        errors = [at(rung, min(one, other) >= WEAKEST_ROUGH).error for rung in (one, other)]
        if not abs(errors[0] - errors[1]) > CLOSE * errors[1]:  # nor where both are infinite
            errors = [at(rung, False).error for rung in (one, other)]
        return errors[0] < errors[1]

    best = 0
    while best < HIGHEST and freedom(best) > MOST_FREEDOM:
        best += 1
    for step in (-1, 1):
        while LOWEST <= best + step <= HIGHEST and is_better(best + step, best):
            best += step
    return _solution(sums, standard, sums.images * LADDER**best)


def _standardise(sums: Sums) -> _Standardised:
    count = sums.images
    if count < 1:
        raise UserError("there is no solution: the learner has seen no image, or more was taken away than added")
    mean, share = sums.total[:-1] / count, sums.positives / count
    gram = sums.matrix()[:-1, :-1].addr_(mean, mean, alpha=-count)
    if not torch.isfinite(gram.diagonal().sum() + sums.cross.sum()):  # one NaN or infinity is in the sum, too
        raise UserError("the features are not finite; the backbone's weights or the images are damaged")
    # Rounding leaves about 1e-16 of the squares where a feature never changes, and a deviation is their root.
    deviation = (gram.diagonal() / count).clamp(min=0).sqrt()
    moves = deviation > 1e-6 * (1 + mean.abs())
    if not moves.any():
        raise UserError(f"the {count:.0f} image(s) all look the same to the backbone; it needs different ones")
    deviation = deviation.clamp(min=SMALLEST_DEVIATION * float(deviation[moves].median()))
    cross = (sums.cross[:-1] - torch.outer(mean, sums.positives)) / deviation[:, None]
    return _Standardised(
        gram.div_(deviation[:, None]).div_(deviation), cross, mean, deviation, count * share * (1 - share)
    )


def _solution(sums: Sums, standard: _Standardised, ridge: float) -> Solution:
    weights, freedom, error, squares = _fit(standard, ridge, sums.images)
    return Solution(_plain(sums, standard, weights), ridge, freedom, error, squares)


class _Tridiagonal:
    """The sums in an orthonormal basis in which their matrix is tridiagonal, found in float32.

    That takes less than two solutions in float32, and then every strength is nearly free.
    """

    def __init__(self, standard: _Standardised, images: float) -> None:
        self._spread, self._images = standard.spread, images
        matrix = np.asfortranarray(standard.gram.float().numpy())
        size = int(lapack.ssytrd_lwork(len(matrix), lower=1)[0])
        vectors, diagonal, beside, scales, _ = lapack.ssytrd(matrix, lower=1, lwork=size, overwrite_a=1)
        self._bands = np.zeros((3, len(diagonal)))  # the third is empty; with two, SciPy refuses a single feature
        self._bands[0], self._bands[1, :-1] = diagonal, beside
        self._eigenvalues = torch.from_numpy(eigvalsh_tridiagonal(self._bands[0], self._bands[1, :-1]))
        self._cross = standard.cross.clone()  # (d - 1, K); the first axis is the same in both bases
        if self._cross[1:].numel():
            reflectors, rest = torch.from_numpy(vectors)[1:, :-1], self._cross[1:].float()
            self._cross[1:] = torch.ormqr(reflectors, torch.from_numpy(scales), rest, transpose=True)

    def fit(self, ridge: float) -> _Fit:
        """At one strength; its weights are in this basis."""
        if self._eigenvalues[0] + ridge <= 0:
            raise UserError(_NO_SOLUTION)
        bands = self._bands + ridge * np.eye(3, 1)
        weights = torch.from_numpy(solveh_banded(bands, self._cross.numpy(), lower=True))
        freedom = float((self._eigenvalues / (self._eigenvalues + ridge)).sum() + 1) / self._images
        return _measured(weights, self._cross, self._spread, freedom, ridge, self._images)


def _fit(standard: _Standardised, ridge: float, images: float) -> _Fit:
    factor = _factor(standard.gram, ridge)
    weights = torch.cholesky_solve(standard.cross, factor)
    freedom = float(len(factor) - ridge * _diagonal_of_inverse(factor).sum() + 1) / images
    return _measured(weights, standard.cross, standard.spread, freedom, ridge, images)


def _measured(weights: Tensor, cross: Tensor, spread: Tensor, freedom: float, ridge: float, images: float) -> _Fit:
    """Weights (d - 1, K) in any orthonormal basis, with their error."""
    fit = (weights * cross).sum(0)
    squares = fit - ridge * weights.square().sum(0)  # W'AW; the normal equations spare the product with the matrix
    return _Fit(weights, freedom, _error(spread, spread - 2 * fit + squares, freedom, images), squares)


def _factor(gram: Tensor, ridge: float) -> Tensor:
    """Lower triangular, of the matrix with `ridge` on its diagonal; only its lower triangle is read."""
    matrix = gram.clone()
    matrix.diagonal().add_(ridge)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise UserError(_NO_SOLUTION)
    return factor


def _plain(sums: Sums, standard: _Standardised, weights: Tensor) -> Tensor:
    """(d, K) the weights of the features as they are and of the constant."""
    plain = weights / standard.deviation[:, None]
    constant = sums.positives / sums.images - standard.mean @ plain
    return torch.cat([plain, constant[None]])


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
