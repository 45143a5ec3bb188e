"""OCDM: removals bring the memory's class distribution near to a target (Liang and Li, 2022)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.images import PRESENT
from .stream import StreamMemory, nearest, proportions, taken_of

TINY = 1e-12  # added to counts, so that a class without an image has a finite distance


def balanced(
    stock: StreamMemory,
    indices: NDArray[np.int64],
    labels: NDArray[np.int8],
    capacity: int,
    rng: np.random.Generator,
    rho: float = 0.0,
) -> NDArray[np.int64]:
    """A `Policy`: optimizing class distribution in memory (OCDM).

    From memory and batch together it removes, one after the other, the image without which the distribution over the
    classes is nearest to a target like n_c^rho. Images without a positive are passed over.

    Arguments:
        rho: 0 for a uniform target, 1 for that of the stream.
    """
    stock.show(labels)  # before the decision: a class that is new in this batch belongs to the target
    old = stock.indices
    accepted = indices[(labels == PRESENT).any(axis=1)]
    for index, row in zip(indices.tolist(), labels, strict=True):
        if not stock.complete(index, row) and (row == PRESENT).any():
            stock.add(index, row)
    if len(old) < capacity:
        newcomers = len(old) + rng.permutation(len(stock) - len(old))
        stock.keep(np.sort(np.concatenate([np.arange(len(old)), newcomers])[:capacity]))
    elif len(stock) > capacity:
        shown = stock.counts > 0
        returning = np.isin(stock.indices, old) & np.isin(stock.indices, accepted)
        target = proportions(stock.counts[shown], rho)
        stock.keep(greedy_selection(stock.labels[:, shown] == PRESENT, target, capacity, rng, returning))
    return taken_of(stock, accepted.tolist())


def divergences_without(
    present: NDArray[np.float64], held: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """KL(p || q) after the removal of each image, (n,).

    A removal lowers a count by one or leaves it, so that log(count) takes two values per class only, and all images
    together cost one product of matrices.

    Arguments:
        present: (n, K), 0 or 1.
        held: (K,), images per class, among them those of `present`.
        target: (K,), p, positive.
    """
    logs = np.log(held + TINY)
    rise = target * (logs - np.log(np.maximum(held - 1, 0) + TINY))
    rises, sizes = (present @ np.stack([rise, np.ones_like(rise)], axis=1)).T  # each (n,)
    totals = np.maximum(held.sum() - sizes, 0) + len(held) * TINY
    return np.asarray((target * (np.log(target) - logs)).sum() + rises + np.log(totals), np.float64)


def greedy_selection(
    present: NDArray[np.bool_],
    target: NDArray[np.float64],
    size: int,
    rng: np.random.Generator,
    fixed: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Remove the image that leaves the smallest KL(p || q), one after the other, until `size` are left.

    Arguments:
        present: (n, K).
        target: (K,), p, positive.
        size: how many images to keep.
        rng: breaks ties.
        fixed: (n,), images that are removed only when no others are left.

    Returns:
        (n,), the images that stay.
    """
    matrix, held = present.astype(np.float64), present.sum(axis=0).astype(np.float64)
    stays = np.ones(len(present), np.bool_)
    free = stays.copy() if fixed is None else ~fixed
    for _ in range(len(present) - size):
        choices = np.flatnonzero(free if free.any() else stays)
        distances = divergences_without(matrix, held, target)[choices]
        row = rng.choice(nearest(choices, distances))
        stays[row] = free[row] = False
        held -= matrix[row]
    return stays
