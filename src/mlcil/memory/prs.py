"""Partitioning reservoir sampling: rare classes keep their place in the memory (Kim et al., ECCV 2020)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.images import PRESENT
from .stream import TIE, StreamMemory, nearest, proportions, taken_of


def partitioning_reservoir(
    stock: StreamMemory,
    indices: NDArray[np.int64],
    labels: NDArray[np.int8],
    capacity: int,
    rng: np.random.Generator,
    rho: float = -0.03,  # the authors' value for COCOseq
) -> NDArray[np.int64]:
    """A `Policy`: partitioning reservoir sampling (PRS), which gives class c a share of the memory like n_c^rho.

    Images without a positive are passed over. Among images that are equally good to remove the choice is random;
    the authors' code removes the first of them.

    Arguments:
        rho: 1 follows the stream, 0 gives equal parts, less favours rare classes.
    """
    while len(stock) > capacity:
        stock.drop(sample_out(stock.labels, stock.counts, rho, rng))
    accepted = []
    for index, row in zip(indices.tolist(), labels, strict=True):
        is_accepted, is_held = _is_sampled_in(stock, row, capacity, rho, rng), stock.complete(index, row)
        if is_accepted:
            accepted.append(index)
        if is_accepted and not is_held:
            if len(stock) == capacity:
                stock.drop(sample_out(stock.labels, stock.counts, rho, rng))
            stock.add(index, row)
        stock.show(row[None])  # after the decision: n_c does not count the image itself
    return taken_of(stock, accepted)


def acceptance(
    labels: NDArray[np.int8],
    counts: NDArray[np.int64],
    capacity: int,
    rho: float,
    held: NDArray[np.bool_],
) -> float:
    """The probability with which PRS takes an image into a full memory, decided by its rarest class.

    A class that the stream has shown but the memory has lost competes as if it were held; with a share of zero it
    could never come back.

    Arguments:
        labels: (K,), of the image; at least one is present.
        counts: (K,), positives that the stream has shown before the image.
        capacity: how many images may be held.
        rho: the power of allocation.
        held: (K,), which classes have an image in the memory.
    """
    own = labels == PRESENT
    shares = proportions(counts, rho, held | own)[own]
    shown = counts[own].astype(np.float64)
    chances = np.full(len(shown), min(capacity, 1), np.float64)  # of a class that was never shown
    np.divide(capacity * shares, shown, out=chances, where=shown > 0)  # m_c / n_c
    return float(_softmax(-shown) @ np.minimum(chances, 1.0))


def sample_out(labels: NDArray[np.int8], counts: NDArray[np.int64], rho: float, rng: np.random.Generator) -> int:
    """The position of the image that leaves a PRS memory with labels (n, K); the stream has shown `counts` (K,)."""
    present = labels == PRESENT
    active = present.any(axis=0) & (counts > 0)
    if not active.any():
        return int(rng.integers(len(labels)))
    present, shares = present[:, active], proportions(counts[active], rho)
    column = rng.choice(len(shares), p=_softmax(overshoot(present, shares)))
    return int(rng.choice(sample_out_candidates(present, shares, int(column))))


def overshoot(present: NDArray[np.bool_], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many images each class is above its share of the memory: l_c - p_c sum_j l_j, (K,)."""
    held = present.sum(axis=0)
    return np.asarray(held - shares * held.sum(), np.float64)


def sample_out_candidates(present: NDArray[np.bool_], shares: NDArray[np.float64], column: int) -> NDArray[np.int64]:
    """The images with a class whose removal costs the classes below their share least.

    Arguments:
        present: (n, K), of the memory.
        shares: (K,), p.
        column: the class that gives an image away; the memory holds one.

    Returns:
        Positions in the memory, all equally good. A class that a removal empties stays in the distance with its share;
        the authors' code leaves it out.
    """
    needed = overshoot(present, shares) <= TIE
    rows = np.flatnonzero(present[:, column])
    spared = (needed & ~present[rows]).sum(axis=1)
    rows = rows[spared == spared.max()]
    left = present.sum(axis=0) - present[rows]  # (r, K): the counts without each of the rows
    distances = np.abs(left - shares * left.sum(axis=1, keepdims=True)).sum(axis=1)
    return nearest(rows, distances)


def _is_sampled_in(
    stock: StreamMemory, labels: NDArray[np.int8], capacity: int, rho: float, rng: np.random.Generator
) -> bool:
    if not (labels == PRESENT).any():
        return False
    if len(stock) < capacity:
        return True
    held = (stock.labels == PRESENT).any(axis=0)
    return rng.random() < acceptance(labels, stock.counts, capacity, rho, held)


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum(), np.float64)
