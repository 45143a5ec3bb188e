"""How a step is divided among processes, and within a process into parts that are computed one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.loading import shard

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """What a process computes at once.

    Attributes:
        positions: of its images in the training set, (b,).
        draws: of the images drawn beside them, one array per draw.
        weight: of its mean loss in the mean over the whole batch and all processes.
    """

    positions: Positions
    draws: tuple[Positions, ...]
    weight: float


def divide(batch: Positions, draws: tuple[Positions, ...], rank: int, world: int, size: int | None) -> list[MicroBatch]:
    """The part of a batch that process `rank` of `world` computes, in pieces of at most `size` images.

    Every process gets as many pieces: a method may let them exchange something within each.
    """
    count = -(-len(batch) // (world * size)) if size else 1
    chunks = np.array_split(shard(batch, rank, world), count)
    shares = [np.array_split(shard(one, rank, world), count) for one in draws]
    parts = []
    for place, chunk in enumerate(chunks):
        # A draw of fewer images than there are pieces repeats its first one.
        drawn = tuple(share[place] if len(share[place]) else one[:1] for share, one in zip(shares, draws, strict=True))
        # Gradients are averaged over processes, hence the factor. Without an image of its own a process takes part in
        # the exchange with weight 0.
        weight = len(chunk) * world / len(batch)
        parts.append(MicroBatch(chunk if len(chunk) else batch[:1], drawn, weight))
    return parts
