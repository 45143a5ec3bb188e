"""All that a ridge regression needs of its images: two sums, which can be added and taken away exactly."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 4096  # images whose features are in memory at once

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
        sizes = (width * (width + 1) // 2,), (width, classes)
        return cls(*(torch.zeros(size, dtype=torch.float64) for size in sizes))

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
        for start in range(0, len(described), CHUNK):
            part = slice(start, start + CHUNK)
            z = expand(described[part]).cpu().double()  # (c, d)
            gram.addmm_(z.T, z)
            cross.addmm_(z.T, labels[part].double())
        packed = _own_memory(width * (width + 1) // 2)
        torch.cat([gram[row, : row + 1] for row in range(width)], out=packed)
        return cls(packed, cross)

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
        matrix = self.gram.new_zeros(self.width, self.width)
        for row, values in enumerate(torch.split_with_sizes(self.gram, [*range(1, self.width + 1)])):
            matrix[row, : row + 1] = values
        return matrix

    def with_columns(self, source: Sequence[int | None]) -> Sums:
        """With these columns of the labels, in this order; None is a column of zeros."""
        cross, count = self.cross.new_zeros(self.width, len(source)), self.cross.shape[1]
        if [*source] == [*range(count), *[None] * (len(source) - count)]:  # as it mostly is, and much faster
            cross[:, :count] = self.cross
            return Sums(self.gram, cross)
        kept = [place for place, column in enumerate(source) if column is not None]
        cross[:, kept] = self.cross[:, [column for column in source if column is not None]]
        return Sums(self.gram, cross)


def combined(how: np.ufunc, one: Tensor, other: Tensor) -> Tensor:
    """The sum or the difference of two matrices."""
    result = _own_memory(len(one))
    how(one.numpy(), other.numpy(), out=result.numpy())
    return result


def _own_memory(*shape: int) -> Tensor:
    """Zeros, float64, which go back to the system when they are not needed any more.

    Between matrices that come and go, the allocator puts small arrays that stay; a process that learns a thousand steps
    would grow by gigabytes.
    """
    memory = mmap.mmap(-1, 8 * max(math.prod(shape), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.float64, count=math.prod(shape)).view(shape)
