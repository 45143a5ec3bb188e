"""The features that a frozen stem computes, once per image and view, and kept on disk.

With frozen stages most of a step is spent on work that is the same for teacher and student and, where an image has
finitely many views, in every epoch, every session and every run. Here it is done once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.cache import CachedRows, Chunk, DiskCache, NoRoomError, Rows
from ..core.errors import UserError
from .augmentation import augment, make_augmentation
from .loading import Batch, PixelFeed, Preparation, sample_seeds
from .pixels import PixelStore

FORMAT = 3  # part of every name in the cache: raise it when a stored value changes
CHUNK = 64  # images computed at once


@dataclass(frozen=True)
class Views:
    """Which views of an image are kept: the unaugmented one first, then augmented ones.

    Attributes:
        augment: "none" has one view and "flip" has two; others have as many as are wanted, drawn once for all runs.
        wanted: number of views with a random augmentation.
    """

    augment: str
    wanted: int = 1

    @property
    def count(self) -> int:
        """How many views there are."""
        return {"none": 1, "flip": 2}.get(self.augment, self.wanted)

    def of(self, images: Tensor, rows: NDArray[np.int64]) -> list[Tensor]:
        """The views of uint8 images (n, 3, H, W), each (n, 3, H, W)."""
        if self.augment == "flip":
            return [images, images.flip(3)]
        if self.count == 1:
            return [images]
        transform = make_augmentation(self.augment)
        seeds = [sample_seeds((view,), rows).tolist() for view in range(1, self.count)]
        return [images, *(augment(images, transform, one) for one in seeds)]


class FeatureFeed:
    """Serves stored features as batches, as `PixelFeed` serves images.

    Arguments:
        features: float16 (N, views, H, W, C).
        device: where the batches are wanted.
    """

    def __init__(self, features: CachedRows, device: torch.device) -> None:
        self.features, self.device = features, device

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; the seed decides between the views."""
        views_each = self.features.rows.shape[0]
        for place, part in enumerate(parts):
            rows = indices[part]
            views = np.zeros(len(rows), np.int64)
            if seed_keys is not None:
                views = sample_seeds(seed_keys[place], rows) % views_each
            stored = torch.from_numpy(self.features[rows, views]).to(self.device, non_blocking=True)
            values = stored.float().permute(0, 3, 1, 2)  # (B, C, H, W) in channels-last
            yield Batch(values, torch.from_numpy(labels[part]), torch.from_numpy(rows))


Feed = PixelFeed | FeatureFeed  # nobody downstream asks which


@dataclass(frozen=True)
class KeptStem:
    """A frozen stem whose output is kept.

    Attributes:
        prepare: from uint8 pixels to the stem's output (B, C, H, W).
        digest: a name for the stem: network, cut and weights.
        image_size: side of the images.
        device: where it computes.
    """

    prepare: Preparation
    digest: str
    image_size: int
    device: torch.device

    def open(self, pixels: PixelStore, views: Views, cache: DiskCache, say: Callable[[str], None]) -> FeatureFeed:
        """Compute the features of every image and view, or find them in the cache.

        Arguments:
            pixels: all images of a split.

        Raises:
            UserError: there is no room, or the pixels have no name by which to find their features again.
        """
        if pixels.digest is None:
            raise UserError(
                "keep_features: features are kept only beside decoded images; leave cache at auto or raise cache_gb"
            )
        black = torch.zeros(1, 3, self.image_size, self.image_size, dtype=torch.uint8)
        height, width, channels = self._compute(black).shape[1:]
        key = self._key(pixels.digest, views)
        rows = Rows(key, len(pixels), (views.count, height, width, channels), "float16")
        try:
            found = cache.open(
                rows,
                lambda missing: self._chunks(pixels, views, missing, say),
                lambda: say("waiting for features that another run is computing"),
            )
        except NoRoomError as reason:
            raise UserError(f"keep_features: {reason}; raise it, freeze more stages, or keep fewer views") from None
        except OSError as error:
            raise UserError(f"cannot use the cache {cache.folder}: {error.strerror or error}") from error
        return FeatureFeed(found, self.device)

    def _chunks(
        self, pixels: PixelStore, views: Views, missing: Sequence[int], say: Callable[[str], None]
    ) -> Iterator[Chunk]:
        for start in range(0, len(missing), CHUNK):
            rows = np.array(missing[start : start + CHUNK], np.int64)
            images = torch.from_numpy(pixels[rows]).permute(0, 3, 1, 2)
            seen = [self._compute(view) for view in views.of(images, rows)]
            yield dict(zip(rows.tolist(), np.stack(seen, axis=1), strict=True))
            if start // CHUNK % 20 == 0:
                say(f"frozen stages: {start + len(rows)}/{len(missing)} images")

    @torch.inference_mode()
    def _compute(self, images: Tensor) -> NDArray[np.float16]:
        """uint8 (n, 3, H, W) -> (n, h, w, C)."""
        return self.prepare(images.to(self.device)).permute(0, 2, 3, 1).half().cpu().contiguous().numpy()

    def _key(self, pixels: str, views: Views) -> str:
        drawn = [views.augment, views.count] if views.count > 1 else []
        facts = [FORMAT, self.digest, self.prepare.mean, self.prepare.std, pixels, *drawn]
        return hashlib.blake2b(repr(facts).encode(), digest_size=20).hexdigest()
