"""Choosing the images whose mean feature follows the class mean (iCaRL, algorithm 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_ITERATIONS = 1000  # a repeated pick uses up an iteration; authors' code of KRT


def herd(features: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Pick up to `count` rows so that the mean of the first n picks stays near the mean of all, for every n.

    The features (N, C) are normalised here to unit length. Returns row numbers in the order of picking.
    """
    if not len(features):
        return np.empty(0, np.int64)
    points = features.astype(np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True) + 1e-8
    mean = points.mean(axis=0)
    # w.x for all rows x is kept up to date instead of w: each pick then costs one row of the Gram matrix.
    along_mean = points @ mean
    wanted, picks = along_mean.copy(), dict[int, None]()
    for _ in range(MAX_ITERATIONS):
        if len(picks) >= min(count, len(points)):
            break
        pick = int(wanted.argmax())
        picks[pick] = None
        wanted += along_mean - points @ points[pick]
    return np.fromiter(picks, np.int64, len(picks))
