"""Memories that are filled image by image from a stream, by labels alone: reservoir, PRS and OCDM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.images import PRESENT, UNKNOWN

TIE = 1e-10  # distances closer than this are equal: images with the same worth have the same chance to leave
TINY = 1e-12  # added to the counts of OCDM, so that a class without an image has a finite distance


@dataclass
class Stock:
    """What a streaming memory holds.

    Attributes:
        indices: int64 (n,), rows of the training set, each once.
        labels: int8 (n, K): 1 present, 0 absent, -1 unknown.
        counts: int64 (K,), positives per class that the stream has shown so far, n_c.
        seen: images that the stream has shown so far.
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int8]
    counts: NDArray[np.int64]
    seen: int

    @classmethod
    def empty(cls, classes: int = 0) -> Stock:
        """A memory without images, for so many classes."""
        return cls(np.empty(0, np.int64), np.empty((0, classes), np.int8), np.zeros(classes, np.int64), 0)

    def __len__(self) -> int:
        return len(self.indices)

    def widen(self, columns: NDArray[np.int8]) -> None:
        """Append the labels (n, new) of new classes, of which the stream has shown none yet."""
        if columns.ndim != 2 or len(columns) != len(self):
            raise ValueError(f"Got label columns of shape {columns.shape}, expected ({len(self)}, new classes)")
        self.labels = np.ascontiguousarray(np.concatenate([self.labels, columns], axis=1, dtype=np.int8))
        self.counts = np.concatenate([self.counts, np.zeros(columns.shape[1], np.int64)])

    def show(self, labels: NDArray[np.int8]) -> None:
        """Count the images (b, K) as shown by the stream."""
        self.counts = self.counts + (labels == PRESENT).sum(axis=0)
        self.seen += len(labels)

    def add(self, index: int, labels: NDArray[np.int8]) -> None:
        """Hold one more image with its labels (K,)."""
        self.indices = np.append(self.indices, np.int64(index))
        self.labels = np.ascontiguousarray(np.concatenate([self.labels, labels[None]], dtype=np.int8))

    def keep(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> None:
        """Let all other images go; rows are positions in the memory or a mask of it."""
        self.indices, self.labels = self.indices[rows], np.ascontiguousarray(self.labels[rows])

    def drop(self, row: int) -> None:
        """Let one image go."""
        self.keep(np.arange(len(self)) != row)

    def complete(self, index: int, labels: NDArray[np.int8]) -> bool:
        """Fill what was unknown of an image from its labels (K,), if it is held; return whether it is."""
        rows = np.flatnonzero(self.indices == index)
        for row in rows:
            self.labels[row] = np.where(self.labels[row] == UNKNOWN, labels, self.labels[row])
        return bool(len(rows))


Policy = Callable[[Stock, NDArray[np.int64], NDArray[np.int8], int, np.random.Generator], NDArray[np.int64]]
"""Shows a batch to a memory, which is changed in place.

An image that is held already is not inserted a second time and drives none out: what was unknown of it is filled in.

Arguments:
    stock: the memory.
    indices: (b,), rows of the training set.
    labels: (b, K).
    capacity: how many images may be held.
    rng: the source of all randomness.

Returns:
    The indices that the memory took (or, of those that it held already, would have taken) and still holds at the end
    of the batch; each once.
"""


def reservoir(
    stock: Stock, indices: NDArray[np.int64], labels: NDArray[np.int8], capacity: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """A `Policy` that holds every image of the stream with the same probability."""
    _check(stock, indices, labels, capacity)
    if len(stock) > capacity:
        stock.keep(np.sort(rng.choice(len(stock), capacity, replace=False)))
    accepted = []
    for index, row in zip(indices.tolist(), labels, strict=True):
        stock.show(row[None])
        has_room = len(stock) < capacity
        place = 0 if has_room else int(rng.integers(stock.seen))
        is_accepted, is_held = has_room or place < capacity, stock.complete(index, row)
        if is_accepted:
            accepted.append(index)
        if is_accepted and not is_held:
            if not has_room:
                stock.drop(place)
            stock.add(index, row)
    return _taken(stock, accepted)


def partitioning_reservoir(
    stock: Stock,
    indices: NDArray[np.int64],
    labels: NDArray[np.int8],
    capacity: int,
    rng: np.random.Generator,
    rho: float = -0.03,  # the authors' value for COCOseq
) -> NDArray[np.int64]:
    """A `Policy`: partitioning reservoir sampling (PRS), where class c shall have a part of the memory like n_c^rho.

    Images without a positive are passed over. Among images that are equally good to remove the choice is random;
    the authors' code removes the first of them.

    Arguments:
        rho: 1 follows the stream, 0 gives equal parts, less favours rare classes.
    """
    _check(stock, indices, labels, capacity)
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
    return _taken(stock, accepted)


def balanced(
    stock: Stock,
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
    _check(stock, indices, labels, capacity)
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
    return _taken(stock, accepted.tolist())


def proportions(counts: NDArray[np.int64], rho: float, among: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """The share of each class, p_c = n_c^rho / sum_j n_j^rho.

    Arguments:
        counts: (K,), positives that the stream has shown.
        rho: the power of allocation.
        among: (K,), which classes take part; those that the stream has not shown never do.

    Returns:
        (K,), zero for the classes that do not take part.
    """
    takes_part = counts > 0 if among is None else among & (counts > 0)
    powers = np.zeros(len(counts))
    powers[takes_part] = counts[takes_part].astype(np.float64) ** rho
    return powers / powers.sum() if takes_part.any() else powers


def acceptance(
    labels: NDArray[np.int8],
    counts: NDArray[np.int64],
    capacity: int,
    rho: float,
    held: NDArray[np.bool_] | None = None,
) -> float:
    """The probability with which PRS takes an image into a full memory, decided by its rarest class.

    A class that the stream has shown but the memory has lost competes as if it were held; with a share of zero it
    could never come back.

    Arguments:
        labels: (K,), of the image; at least one is present.
        counts: (K,), positives that the stream has shown before the image.
        capacity: how many images may be held.
        rho: the power of allocation.
        held: (K,), which classes have an image in the memory; all that were shown where it is not given.
    """
    own = labels == PRESENT
    shares = proportions(counts, rho, None if held is None else held | own)[own]
    shown = counts[own].astype(np.float64)
    chances = np.full(len(shown), min(capacity, 1), np.float64)  # of a class that was never shown
    np.divide(capacity * shares, shown, out=chances, where=shown > 0)  # m_c / n_c
    return float(_softmax(-shown) @ np.minimum(chances, 1.0))


def sample_out(labels: NDArray[np.int8], counts: NDArray[np.int64], rho: float, rng: np.random.Generator) -> int:
    """The position of the image that leaves a PRS memory.

    Arguments:
        labels: (n, K), of the memory.
        counts: (K,), positives that the stream has shown.
        rho: the power of allocation.
        rng: the source of all randomness.
    """
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
        Positions in the memory, all equally good.

    Notes:
        A class that a removal empties stays in the distance with its share; the authors' code leaves it out.
    """
    needed = overshoot(present, shares) <= TIE
    rows = np.flatnonzero(present[:, column])
    spared = (needed & ~present[rows]).sum(axis=1)
    rows = rows[spared == spared.max()]
    left = present.sum(axis=0) - present[rows]  # (r, K): the counts without each of the rows
    distances = np.abs(left - shares * left.sum(axis=1, keepdims=True)).sum(axis=1)
    return _nearest(rows, distances)


def divergence(held: NDArray[np.int64], target: NDArray[np.float64]) -> float:
    """KL(p || q) of the target p from the distribution q of the counts (K,)."""
    smooth = held + TINY
    return float((target * np.log(target * smooth.sum() / smooth)).sum())


def divergences_without(
    present: NDArray[np.float64], held: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """KL(p || q) after the removal of each image.

    A removal lowers a count by one or leaves it, so that log(count) takes two values per class only, and all images
    together cost one product of matrices.

    Arguments:
        present: (n, K), 0 or 1.
        held: (K,), images per class, among them those of `present`.
        target: (K,), p, positive.

    Returns:
        (n,).
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
        size: how many shall be left.
        rng: breaks ties.
        fixed: (n,), images that stay as long as there are others.

    Returns:
        (n,), the images that stay.
    """
    matrix, held = present.astype(np.float64), present.sum(axis=0).astype(np.float64)
    stays = np.ones(len(present), np.bool_)
    free = stays.copy() if fixed is None else ~fixed
    for _ in range(len(present) - size):
        choices = np.flatnonzero(free if free.any() else stays)
        distances = divergences_without(matrix, held, target)[choices]
        row = rng.choice(_nearest(choices, distances))
        stays[row] = free[row] = False
        held -= matrix[row]
    return stays


def _is_sampled_in(stock: Stock, labels: NDArray[np.int8], capacity: int, rho: float, rng: np.random.Generator) -> bool:
    if not (labels == PRESENT).any():
        return False
    if len(stock) < capacity:
        return True
    held = (stock.labels == PRESENT).any(axis=0)
    return rng.random() < acceptance(labels, stock.counts, capacity, rho, held)


def _nearest(rows: NDArray[np.int64], distances: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(rows[distances <= distances.min() + TIE], np.int64)


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum(), np.float64)


def _check(stock: Stock, indices: NDArray[np.int64], labels: NDArray[np.int8], capacity: int) -> None:
    expected = (len(indices), len(stock.counts))
    if labels.shape != expected:
        raise ValueError(f"Got labels of shape {labels.shape} for the batch, expected {expected}")
    if capacity < 0:
        raise ValueError(f"Got a capacity of {capacity}, expected 0 or more")


def _taken(stock: Stock, accepted: list[int]) -> NDArray[np.int64]:
    once = np.array(list(dict.fromkeys(accepted)), np.int64)
    return once[np.isin(once, stock.indices)]
