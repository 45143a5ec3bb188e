"""Scores of a few images that are the same, to the last bit, whichever images go with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..serving.predicting import TOGETHER
from ..serving.tagger import Tagger

SIZES = (1, 2, 4, 8)  # images for which the stem may be computed at once, below TOGETHER


class Batches:
    """Computes the scores that `mlcil predict` gives, for 1 to TOGETHER images.

    That command always computes TOGETHER images at once, because some sums are rounded differently when there are
    fewer. Most of the work, the stem, usually is not: where a trial shows that, it is computed for the images at hand,
    and only the rest for as many as always. A single image then takes a tenth of the time.
    """

    def __init__(self, tagger: Tagger) -> None:
        self.tagger = tagger
        tagger.method.tagger.backbone.ready_stem()
        self.sizes = (*_same_sizes(tagger), TOGETHER)

    @torch.inference_mode()
    def scores(self, squares: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """The scores (n, K) of n images (size, size, 3)."""
        count = len(squares)
        size = next(one for one in self.sizes if one >= count)
        pixels = np.zeros((size, *squares[0].shape), np.uint8)
        pixels[:count] = squares
        whole = _filled(self.tagger.prepare(pixels))
        return self.tagger.method.predict(whole)[:count].numpy().copy()


def _filled(prepared: Tensor) -> Tensor:
    """The input of the model for n images, with zeros up to TOGETHER of them."""
    missing = prepared.new_zeros((TOGETHER - len(prepared), *prepared.shape[1:]))
    return torch.cat([prepared, missing]) if len(missing) else prepared


@torch.inference_mode()
def _same_sizes(tagger: Tagger) -> tuple[int, ...]:
    """The numbers of images for which the stem computes the same bits as for TOGETHER of them."""
    shape = (TOGETHER, tagger.size, tagger.size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    whole = tagger.prepare(pixels)
    return tuple(size for size in SIZES if torch.equal(tagger.prepare(pixels[:size]), whole[:size]))
