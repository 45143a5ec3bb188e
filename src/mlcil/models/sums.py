"""All that a ridge regression needs of its images: two sums, which can be added and taken away exactly."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.threads import one_thread

CHUNK = 4096  # images whose features are in memory at once
SHARD = 16_384  # images that are summed on their own before all sums are added, in order: how they round depends on it

Expand = Callable[[Tensor], Tensor]
"""From what is known of images, (n, p), to their features (n, d), the last of which is 1."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over images with features z (d,), the last of which is 1, and labels y (K,) of 0 and 1; float64, on the CPU.

    Attributes:
        gram: (d (d + 1) / 2,), the lower triangle of the sum of z z', row by row; see `matrix`.
        cross: (d, K), the sum of z y'.
    """

    gram: Tensor
    cross: Tensor

    @classmethod
    def empty(cls, width: int, classes: int = 0) -> Sums:
        """Of no image, for `width` features."""
        return cls(_own_memory(width * (width + 1) // 2), torch.zeros(width, classes, dtype=torch.float64))

    @classmethod
    def of(cls, described: Tensor, values: NDArray[Any], expand: Expand, width: int) -> Sums:
        """Of images.

        Arguments:
            described: (n, p), what `expand` makes features of.
            values: (n, K), y: whether each image shows a class, or by how much that has changed.
            width: d, the number of features.
        """
        gram = _own_memory(width, width)
        cross = torch.zeros(width, values.shape[1], dtype=torch.float64)
        labels = torch.from_numpy(np.ascontiguousarray(values))
        with one_thread():
            for start in range(0, len(described), CHUNK):
                part = slice(start, start + CHUNK)
                z = expand(described[part]).cpu().double()  # (c, d)
                gram.addmm_(z.T, z)
                cross.addmm_(z.T, labels[part].double())
        return cls(packed(gram), cross)

    def __add__(self, other: Sums) -> Sums:
        return Sums(combined(np.add, self.gram, other.gram), self.cross + other.cross)

    def __sub__(self, other: Sums) -> Sums:
        return Sums(combined(np.subtract, self.gram, other.gram), self.cross - other.cross)

    @property
    def width(self) -> int:
        """d, the number of features."""
        return self.cross.shape[0]

    @property
    def images(self) -> float:
        """How many there are: the sum of 1 * 1."""
        return float(self.gram[-1])

    @property
    def total(self) -> Tensor:
        """(d,), the sum of z: the last row of the gram matrix."""
        return self.gram[-self.width :]

    @property
    def positives(self) -> Tensor:
        """(K,), how many images show each class: the sum of 1 * y."""
        return self.cross[-1]

    def matrix(self) -> Tensor:
        """(d, d), the lower triangle of the sum of z z', zeros above it."""
        return unpacked(self.gram, self.width)

    def with_columns(self, source: Sequence[int | None]) -> Sums:
        """With these columns of the labels, in this order; None is a column of zeros."""
        cross, count = self.cross.new_zeros(self.width, len(source)), self.cross.shape[1]
        if [*source] == [*range(count), *[None] * (len(source) - count)]:  # as it mostly is, and much faster
            cross[:, :count] = self.cross
            return Sums(self.gram, cross)
        kept = [place for place, column in enumerate(source) if column is not None]
        cross[:, kept] = self.cross[:, [column for column in source if column is not None]]
        return Sums(self.gram, cross)


class SummedImages(Protocol):
    """Images that can be summed over, however many there are."""

    def sums(self, chosen: NDArray[np.int64], values: NDArray[Any]) -> Sums:
        """The sums over some of them.

        Arguments:
            chosen: (n,) places among the images; the sums depend on their order in the last bits.
            values: (n, K), see `Sums.of`.
        """
        ...


SumShards = Callable[[Sequence[NDArray[np.int64]], Sequence[NDArray[Any]]], "Iterator[Sums] | None"]
"""Lets other processes sum over shards, the places (n,) and values (n, K) of each; None where there are no others."""


@dataclass(frozen=True)
class DescribedImages:
    """Images of which something is known, of one shard at a time.

    Attributes:
        describe: from places (n,) to what is known of these images, (n, p).
        expand: makes features of it.
        width: d, the number of features.
        spread: who sums over several shards instead of this process.
    """

    describe: Callable[[NDArray[np.int64]], Tensor]
    expand: Expand
    width: int
    spread: SumShards = lambda shards, values: None

    def sums(self, chosen: NDArray[np.int64], values: NDArray[Any]) -> Sums:
        """See `SummedImages`."""
        parts = [slice(start, start + SHARD) for start in range(0, len(chosen), SHARD)]
        shards, their_values = [chosen[part] for part in parts], [values[part] for part in parts]
        found = self.spread(shards, their_values) if len(shards) > 1 else None
        if found is None:
            found = (
                Sums.of(self.describe(shard), one, self.expand, self.width)
                for shard, one in zip(shards, their_values, strict=True)
            )
        return sum(found, Sums.empty(self.width, values.shape[1]))


def combined(how: np.ufunc, one: Tensor, other: Tensor) -> Tensor:
    """The sum or the difference of two matrices."""
    result = _own_memory(len(one))
    how(one.numpy(), other.numpy(), out=result.numpy())
    return result


def packed(matrix: Tensor) -> Tensor:
    """(d, d) -> (d (d + 1) / 2,), its lower triangle row by row."""
    rows = _own_memory(len(matrix) * (len(matrix) + 1) // 2)
    torch.cat([matrix[row, : row + 1] for row in range(len(matrix))], out=rows)
    return rows


def unpacked(rows: Tensor, width: int) -> Tensor:
    """The inverse of `packed`, for d = `width`, with zeros above the diagonal."""
    matrix = rows.new_zeros(width, width)
    for row, values in enumerate(torch.split_with_sizes(rows, [*range(1, width + 1)])):
        matrix[row, : row + 1] = values
    return matrix


def _own_memory(*shape: int) -> Tensor:
    """Zeros, float64, which go back to the system when they are not needed any more.

    Between matrices that come and go, the allocator puts small arrays that stay; a process that learns a thousand steps
    would grow by gigabytes.
    """
    memory = mmap.mmap(-1, 8 * max(math.prod(shape), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.float64, count=math.prod(shape)).view(shape)
