"""Sums over a shard of images, made in whatever process and kept as a file of the cache.

The file is named after all that decides its content, so a command that was interrupted finds the shards that are done,
and it does not matter who makes one, when, or how often.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.cache import Shelf, read_row, touch, write_row
from ..core.errors import UserError
from ..data.features import FeatureFeed
from ..models.analytic import AnalyticTagger
from ..models.sums import Sums

BATCH = 256  # images that are described at once


class SumShard:
    """Sums over the images of a shard and writes them.

    Arguments:
        tagger: whose features are summed.
        features: the name of these features.
    """

    def __init__(self, tagger: AnalyticTagger, features: str) -> None:
        self.tagger, self.features = tagger, features

    def __call__(self, feed: FeatureFeed, values: NDArray[np.int8]) -> str:
        """Sum over all images of a feed with values (n, K); returns the file.

        Raises:
            UserError: it cannot be written.
        """
        digest = hashlib.blake2b(repr((values.shape, values.dtype.str)).encode(), digest_size=16)
        for part in (*feed.features.digests, values.tobytes()):
            digest.update(part)
        shelf = Shelf(f"sums-{self.features}", (), "float64")
        file = feed.features.cache.path(shelf, digest.digest())
        shape = self.tagger.width, values.shape[1]
        if not touch(file) or read_row(file, _size(*shape)) is None:  # what is damaged is made again
            described = torch.cat(list(self._described(feed, len(values))))
            sums = Sums.of(described, values, self._expand, self.tagger.width)
            try:
                write_row(file, b"".join(one.numpy().tobytes() for one in (sums.gram, sums.cross)))
            except OSError as error:
                raise UserError(
                    f"cannot write {file}: {error.strerror}; make room and repeat the command to continue"
                ) from error
        return file

    def _expand(self, described: Tensor) -> Tensor:
        return self.tagger.expand(described.to(self.tagger.mean))

    @torch.inference_mode()
    def _described(self, feed: FeatureFeed, count: int) -> Any:
        rows = np.arange(count)
        parts = [rows[start : start + BATCH] for start in range(0, count, BATCH)]
        for batch in feed.batches(parts, rows, np.empty((count, 0), np.int8), None):
            yield self.tagger.describe(batch.images).cpu()


def read_sums(file: str, width: int, classes: int) -> Sums:
    """The sums that `SumShard` wrote.

    Raises:
        UserError: the file is gone or damaged.
    """
    values = read_row(file, _size(width, classes))
    if values is None:
        raise UserError(f"{file} is gone or damaged; repeat the command to make it again")
    flat = torch.frombuffer(bytearray(values), dtype=torch.float64)
    gram = width * (width + 1) // 2
    return Sums(flat[:gram].clone(), flat[gram:].reshape(width, classes).clone())


def _size(width: int, classes: int) -> int:
    """Bytes of the values in a file of sums."""
    return 8 * (width * (width + 1) // 2 + width * classes)
