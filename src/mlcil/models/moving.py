"""Sums that move with the features: what the sums over images would be if the network were the one of today.

A network that has been trained gives other features of the images that were summed over before, and these are gone. On
the images at hand both are known, the features before and after, and a linear map between them can be fitted. Sums are
linear in the features, so the map carries them over. What it does not explain is known as well, by its covariance: it
is added to the sum of squares, so that no feature looks more certain than it is. (For means of classes this is the
drift compensation of Yu et al., CVPR 2020; here it is done for all second moments.)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .ledger import FORGOTTEN, SEVERAL, Ledger
from .ridge import MOST_FREEDOM, SMALLEST_DEVIATION
from .sums import CHUNK, combined, packed, unpacked

LADDER = 4.0  # ratio of neighbouring strengths that are tried, per image and for features of deviation 1
LOWEST, START, HIGHEST = -5, -2, 5  # rungs, as powers of the ratio


class Move(NamedTuple):
    """A change of some features of z (d,): their new values are the old ones + change' [x, 1] + something unexplained.

    Here [x, 1] are the last p + 1 features of z, and those that change are the first c of x.
    """

    change: Tensor  # (p + 1, c) float64
    noise: Tensor  # (c, c) float64, the covariance of what is unexplained
    explained: float  # R^2 of the map: the part of the variance of the new features that the old ones tell

    def gram(self, rows: Tensor, width: int) -> Tensor:
        """The sum of z z' over images, packed as in `Sums`, with the new features."""
        matrix = unpacked(rows, width)
        matrix += matrix.tril(-1).T
        images = float(matrix[-1, -1])
        given, moved = self._places(width)
        matrix[moved] += self.change.T @ matrix[given]
        matrix[:, moved] += matrix[:, given] @ self.change
        matrix[moved, moved] += images * self.noise
        return packed(matrix)

    def cross(self, cross: Tensor) -> Tensor:
        """The sum of z y' (d, K) over images with the new features."""
        given, moved = self._places(len(cross))
        cross = cross.clone()
        cross[moved] += self.change.T @ cross[given]
        return cross

    def _places(self, width: int) -> tuple[slice, slice]:
        inputs, outputs = self.change.shape
        return slice(width - inputs, width), slice(width - inputs, width - inputs + outputs)


def moved(ledger: Ledger, move: Move, features: str) -> Ledger:
    """A ledger as if its images had been summed with the new features, whose name is `features`.

    The matrices of single steps become one: what a backbone has learned from cannot be taken back anyway.
    """
    grams: dict[int, Tensor] = {}
    for group, gram in ledger.by_group().items():
        place = FORGOTTEN if group == FORGOTTEN else SEVERAL
        grams[place] = combined(np.add, grams[place], gram) if place in grams else gram
    return replace(
        ledger,
        features=features,
        group_of=np.full_like(ledger.group_of, SEVERAL),
        groups=tuple(grams),
        grams=tuple(move.gram(gram, ledger.width) for gram in grams.values()),
        forgotten=None if ledger.forgotten is None else move.cross(ledger.forgotten),
        crosses=tuple(move.cross(cross) for cross in ledger.crosses),
    )


def fit_move(before: Tensor, after: Tensor) -> Move:
    """The move between the features of the same images, (n, p) before and (n, c) after.

    What is fitted is the difference, by ridge regression at the strength of least generalised cross-validation error:
    where few images tell little, features stay where they are.
    """
    fits = _Fits(before, after)
    start = START
    while math.isinf((best := fits.at(start)).error) and start < HIGHEST:
        start += 1
    for step in (-1, 1):
        rung = start + step
        while LOWEST <= rung <= HIGHEST and (tried := fits.at(rung)).error < best.error:
            best, rung = tried, rung + step
    return fits.move(best)


class _Fit(NamedTuple):
    """A ridge regression of the difference."""

    weights: Tensor  # (p, c), on standardised features
    freedom: float  # parameters per image in effect, the constant included
    error: float  # of generalised cross-validation; infinite where it says nothing


class _Fits:
    """Regressions of the difference between features (n, p) and (n, c), one for each strength LADDER ** rung.

    They need sums over the images alone, so that memory does not grow with their number.
    """

    def __init__(self, before: Tensor, after: Tensor) -> None:
        (self.count, inputs), self.outputs = before.shape, after.shape[1]
        sums = torch.zeros(inputs + self.outputs + 1, inputs + self.outputs + 1, dtype=torch.float64)
        for start in range(0, self.count, CHUNK):
            x, y = (values[start : start + CHUNK].double() for values in (before, after))
            both = torch.cat([x, y - x[:, : self.outputs], x.new_ones(len(x), 1)], dim=1)
            sums.addmm_(both.T, both)
        mean = sums[-1, :-1] / self.count
        spread = sums[:-1, :-1] - self.count * torch.outer(mean, mean)
        self.mean, self.shift = mean[:inputs], mean[inputs:]
        deviation = (spread.diagonal()[:inputs] / self.count).clamp(min=0).sqrt()
        known = deviation[deviation > 0]
        self.scale = deviation.clamp(min=SMALLEST_DEVIATION * float(known.median()) if len(known) else 1.0)
        self.gram = spread[:inputs, :inputs] / self.scale / self.scale[:, None]
        self.cross = spread[:inputs, inputs:] / self.scale[:, None]
        self.difference = spread[inputs:, inputs:]  # the sum of squares of what is to be explained

    def at(self, rung: int) -> _Fit:
        strength = self.count * LADDER**rung * torch.eye(len(self.gram), dtype=torch.float64)
        factor = torch.linalg.cholesky(self.gram + strength)
        weights = torch.cholesky_solve(self.cross, factor)
        freedom = (1 + float(torch.cholesky_solve(self.gram, factor).diagonal().sum())) / self.count
        left = float(self._left(weights).diagonal().sum())
        return _Fit(weights, freedom, left / (1 - freedom) ** 2 if freedom <= MOST_FREEDOM else math.inf)

    def move(self, fit: _Fit) -> Move:
        if math.isinf(fit.error):  # too few images to tell anything: all that changed is uncertain
            change = self.cross.new_zeros(len(self.gram) + 1, self.outputs)
            return Move(change, self.difference / self.count + torch.outer(self.shift, self.shift), 0.0)
        weights, scale = fit.weights / self.scale[:, None], self.scale[: self.outputs]
        noise = self._left(fit.weights) / self.count / (1 - fit.freedom) ** 2  # as expected of other images
        before = self.gram.diagonal()[: self.outputs] * scale**2
        total = float((before + 2 * self.cross.diagonal() * scale + self.difference.diagonal()).sum())
        explained = 1 - self.count * float(noise.diagonal().sum()) / total if total else 1.0
        return Move(torch.cat([weights, (self.shift - self.mean @ weights)[None]]), noise, explained)

    def _left(self, weights: Tensor) -> Tensor:
        """(c, c), the sum of squares of what these weights leave unexplained."""
        fitted = weights.T @ self.cross
        return self.difference - fitted - fitted.T + weights.T @ (self.gram @ weights)
