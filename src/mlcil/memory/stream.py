"""Memories that are filled image by image from a stream, by labels alone; the plain reservoir."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.images import PRESENT, UNKNOWN

TIE = 1e-10  # distances closer than this are equal: images with the same worth have the same chance to leave


@dataclass
class StreamMemory:
    """What a streaming memory holds."""

    indices: NDArray[np.int64]  # (n,), rows of the training set, each once
    labels: NDArray[np.int8]  # (n, K): 1 present, 0 absent, -1 unknown
    counts: NDArray[np.int64]  # (K,), positives per class that the stream has shown so far, n_c
    seen: int  # images that the stream has shown so far

    def __len__(self) -> int:
        return len(self.indices)

    def show(self, labels: NDArray[np.int8]) -> None:
        """Count the images (b, K) as shown by the stream."""
        self.counts = self.counts + (labels == PRESENT).sum(axis=0)
        self.seen += len(labels)

    def add(self, index: int, labels: NDArray[np.int8]) -> None:
        """Hold one more image with its labels (K,)."""
        self.indices = np.append(self.indices, np.int64(index))
        self.labels = np.ascontiguousarray(np.concatenate([self.labels, labels[None]], dtype=np.int8))

    def keep(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> None:
        """Drop all other images; rows are positions in the memory or a mask."""
        self.indices, self.labels = self.indices[rows], np.ascontiguousarray(self.labels[rows])

    def drop(self, row: int) -> None:
        """Drop one image."""
        self.keep(np.arange(len(self)) != row)

    def complete(self, index: int, labels: NDArray[np.int8]) -> bool:
        """Fill what was unknown of an image from its labels (K,), if it is held; return whether it is."""
        rows = np.flatnonzero(self.indices == index)
        for row in rows:
            self.labels[row] = np.where(self.labels[row] == UNKNOWN, labels, self.labels[row])
        return bool(len(rows))


Policy = Callable[[StreamMemory, NDArray[np.int64], NDArray[np.int8], int, np.random.Generator], NDArray[np.int64]]
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
    stock: StreamMemory, indices: NDArray[np.int64], labels: NDArray[np.int8], capacity: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """A `Policy` that holds every image of the stream with the same probability."""
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
    return taken_of(stock, accepted)


def proportions(counts: NDArray[np.int64], rho: float, among: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """The share of each class, p_c = n_c^rho / sum_j n_j^rho, (K,).

    Arguments:
        counts: (K,), positives that the stream has shown.
        rho: the power of allocation.
        among: (K,), which classes take part; those that the stream has not shown never do, and their share is 0.
    """
    takes_part = counts > 0 if among is None else among & (counts > 0)
    powers = np.zeros(len(counts))
    powers[takes_part] = counts[takes_part].astype(np.float64) ** rho
    return powers / powers.sum() if takes_part.any() else powers


def taken_of(stock: StreamMemory, accepted: list[int]) -> NDArray[np.int64]:
    """The accepted images that are still held, each once, int64 (t,)."""
    once = np.array(list(dict.fromkeys(accepted)), np.int64)
    return once[np.isin(once, stock.indices)]


def nearest(rows: NDArray[np.int64], distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """Those of the rows (r,) whose distance (r,) is the least, ties included."""
    return np.asarray(rows[distances <= distances.min() + TIE], np.int64)
