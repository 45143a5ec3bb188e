"""Which photos to ask about: likely ones, unsure ones that differ from each other, and what does not fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .scoring import LabelScores

ROW = 12  # photos in a row
LEAST = 4  # photos that a row of likely ones has, however unlikely they are
UNLIKELY = 0.2  # a probability below which photos are not called likely if there are enough others
NEAR = 60  # photos nearest to the threshold from which the unsure ones are taken
SURPRISE = 0.15  # how far a probability must be on the wrong side of the threshold to be a surprise

Rows = NDArray[np.int64]


class Suggestions(NamedTuple):
    """Rows of photos, each (n,) with at most ROW."""

    likely: Rows
    unsure: Rows
    surprising: Rows


def suggest(found: LabelScores, told: NDArray[np.int8], features: NDArray[np.float32]) -> Suggestions:
    """What to show for a label.

    Arguments:
        told: (N,) what is known about each photo: 1 it shows the label, 0 it does not, -1 nothing.
        features: (N, d).
    """
    open_ = np.flatnonzero(told < 0)
    order = open_[np.argsort(-found.scores[open_], kind="stable")]
    is_likely = found.probabilities[order] >= min(UNLIKELY, found.threshold)
    likely = order[: max(LEAST, min(ROW, int(is_likely.sum())))]
    rest = np.setdiff1d(open_, likely)
    distance = np.abs(found.scores[rest] - found.score_threshold)
    nearest = rest[np.argsort(distance, kind="stable")][:NEAR]
    return Suggestions(likely, _spread(nearest, features), _surprising(found, told))


def _spread(candidates: Rows, features: NDArray[np.float32]) -> Rows:
    """At most ROW of the candidates (n,), the first one and then always the one that differs most from those taken."""
    if len(candidates) <= ROW:
        return candidates
    z = features[candidates, :-1]
    z = z - z.mean(axis=0)
    z /= np.linalg.norm(z, axis=1, keepdims=True) + 1e-9
    taken = [0]
    nearest = z @ z[0]
    while len(taken) < ROW:
        nearest[taken] = np.inf
        taken.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, z @ z[taken[-1]])
    return np.asarray(candidates[np.sort(taken)])


def _surprising(found: LabelScores, told: NDArray[np.int8]) -> Rows:
    """Photos whose label is known and does not fit their score, the worst first."""
    probability = found.probabilities.copy()
    probability[found.marked] = found.left_out
    excess = np.where(told == 1, found.threshold - probability, probability - found.threshold)
    known = np.flatnonzero((told >= 0) & (excess > SURPRISE))
    return known[np.argsort(-excess[known], kind="stable")][:ROW]
