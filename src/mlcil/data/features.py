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

from ..core.cache import DiskCache, NoRoomError, Shelf
from ..core.cached_rows import CachedRows, open_rows
from ..core.errors import UserError
from ..core.progress import progress_line
from .augmentation import augment, make_augmentation
from .loading import Batch, PixelFeed, Preparation, sample_seeds
from .pixels import DECODING, PixelStore

FORMAT = 4  # part of every name in the cache: raise it when a stored value changes
TOGETHER = 32  # images computed at once, always as many: how sums are rounded depends on it


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

    def of(self, images: Tensor, digests: Sequence[bytes]) -> list[Tensor]:
        """The views of uint8 images (n, 3, H, W), each (n, 3, H, W); an image's digest decides what is drawn for it."""
        if self.augment == "flip":
            return [images, images.flip(3)]
        if self.count == 1:
            return [images]
        transform = make_augmentation(self.augment)
        numbers = np.array([int.from_bytes(digest[:8], "little", signed=True) for digest in digests], np.int64)
        seeds = [sample_seeds((view,), numbers).tolist() for view in range(1, self.count)]
        return [images, *(augment(images, transform, one) for one in seeds)]


class FeatureFeed:
    """Serves stored features as batches, as `PixelFeed` serves images.

    Arguments:
        features: float16 (N, views, H, W, C).
        device: where the batches are wanted.
    """

    def __init__(self, features: CachedRows, device: torch.device) -> None:
        self.features, self.device = features, device
        self.views: int = features.shelf.shape[0]  # of each image

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; the seed decides between the views."""
        for place, part in enumerate(parts):
            rows = indices[part]
            views = np.zeros(len(rows), np.int64)
            if seed_keys is not None:
                views = sample_seeds(seed_keys[place], rows) % self.views
            values, known = self.pick(rows, views), torch.from_numpy(labels[part])
            yield Batch(values, known, torch.from_numpy(rows), views=torch.from_numpy(views))

    def pick(self, rows: NDArray[np.int64], views: NDArray[np.int64]) -> Tensor:
        """The features (B, C, H, W), channels last in memory, of one view (B,) of each row (B,)."""
        stored = torch.from_numpy(self.features.pick(rows, views)).to(self.device, non_blocking=True)
        return stored.float().permute(0, 3, 1, 2)


Feed = PixelFeed | FeatureFeed  # only what keeps outputs per view asks which


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
            UserError: there is no room.
        """
        source = _Features(self, pixels, views)
        shelf = Shelf(self._shelf_name(views), (views.count, *self.output_shape()), "float16")
        progress = progress_line(say, "computing features")
        try:
            return FeatureFeed(open_rows(cache, shelf, source, pixels.missing, progress), self.device)
        except NoRoomError as reason:
            raise UserError(f"keep_features: {reason}; raise it, freeze more stages, or keep fewer views") from None
        except OSError as error:
            raise UserError(f"cannot use the cache {cache.folder}: {error.strerror or error}") from error

    @torch.inference_mode()
    def compute(self, images: Tensor) -> NDArray[np.float16]:
        """The features (n, h, w, C) of at most TOGETHER images, uint8 (n, 3, H, W); each depends on its image alone."""
        whole = images.new_zeros(TOGETHER, *images.shape[1:])  # black where there is no image
        whole[: len(images)] = images
        features = self.prepare(whole.to(self.device))[: len(images)]
        return features.permute(0, 2, 3, 1).half().cpu().contiguous().numpy()

    @torch.inference_mode()
    def output_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image's features."""
        black = torch.zeros(1, 3, self.image_size, self.image_size, dtype=torch.uint8, device=self.device)
        channels, height, width = self.prepare(black).shape[1:]
        return height, width, channels

    def _shelf_name(self, views: Views) -> str:
        drawn = f"{views.augment}-{views.count}" if views.count > 1 else "plain"
        facts = [DECODING, self.digest, self.prepare.mean, self.prepare.std]
        stem = hashlib.blake2b(repr(facts).encode(), digest_size=10).hexdigest()
        return f"features-{FORMAT}-{self.image_size}-{drawn}-{stem}"


@dataclass(frozen=True)
class _Features:
    """Computes the features of images by row; lives in the main process, as its stem may be on another device."""

    stem: KeptStem
    pixels: PixelStore
    views: Views

    @property
    def digests(self) -> tuple[bytes, ...]:
        return self.pixels.digests

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float16]]]:
        for start in range(0, len(rows), TOGETHER):
            part = np.array(rows[start : start + TOGETHER], np.int64)
            images = torch.from_numpy(self.pixels[part]).permute(0, 3, 1, 2)
            seen = [self.stem.compute(view) for view in self.views.of(images, [self.digests[row] for row in part])]
            yield from zip(part.tolist(), np.stack(seen, axis=1), strict=True)
