"""The features that a frozen stem computes, once per image and view, and kept on disk.

With frozen stages most of a step is spent on work that is the same for teacher and student and, where an image has
finitely many views, in every epoch, every session and every run. Here it is done once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.cache import DiskCache, NoRoomError, Shelf
from ..core.cached_rows import CachedRows, open_rows
from ..core.errors import UserError
from ..core.pools import Pool
from ..core.progress import progress_line
from .augmentation import augment, make_augmentation
from .loading import Batch, PixelFeed, Preparation, sample_seeds
from .pixels import DECODING, DecodedPixels, MemoryPixels

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
        features: (N, views, H, W, C).
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
        digest: a name for the stem: network, cut, weights and runtime.
        image_size: side of the images.
        device: where it computes.
        cache: where its output is kept.
        averages: whether only the mean of its output over all places is kept, (B, C, 1, 1), which takes a 25th of the
            room; it is kept in full precision, and maps in half.
    """

    prepare: Preparation
    digest: str
    image_size: int
    device: torch.device
    cache: DiskCache
    averages: bool = False

    def open(
        self,
        pixels: MemoryPixels | DecodedPixels,
        views: Views,
        say: Callable[[str], None],
        pool: Pool | None = None,
    ) -> CachedRows:
        """Compute the features of every image and view, or find them in the cache.

        Arguments:
            pixels: all images of a split.
            pool: the processes that compute them; None for this one.

        Returns:
            (N, views, H, W, C), and which images have none because they cannot be read.

        Raises:
            UserError: there is no room.
        """
        cache, source = self.cache, _Features(self, pixels, views)
        kind = "float32" if self.averages else "float16"
        shelf = Shelf(self._shelf_name(views), (views.count, *self.output_shape()), kind)
        progress = progress_line(say, "computing features")
        spread = (
            partial(_spread, pool, pixels, partial(_Filler, self, views, shelf))
            if pool and isinstance(pixels, DecodedPixels)
            else None
        )
        try:
            return open_rows(cache, shelf, source, pixels.missing, progress, spread)
        except NoRoomError as reason:
            raise UserError(f"keep_features: {reason}; raise it, freeze more stages, or keep fewer views") from None
        except OSError as error:
            raise UserError(f"cannot use the cache {cache.folder}: {error.strerror or error}") from error

    @torch.inference_mode()
    def compute(self, images: Tensor) -> NDArray[np.float32]:
        """The features (n, h, w, C) of at most TOGETHER images, uint8 (n, 3, H, W); each depends on its image alone."""
        whole = images.new_zeros(TOGETHER, *images.shape[1:])  # black where there is no image
        whole[: len(images)] = images
        return self._features(whole)[: len(images)].permute(0, 2, 3, 1).float().cpu().contiguous().numpy()

    @torch.inference_mode()
    def output_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image's features."""
        black = torch.zeros(1, 3, self.image_size, self.image_size, dtype=torch.uint8)
        channels, height, width = self._features(black).shape[1:]
        return height, width, channels

    def _features(self, images: Tensor) -> Tensor:
        features = self.prepare(images.to(self.device))
        return features.mean(dim=(2, 3), keepdim=True) if self.averages else features

    def _shelf_name(self, views: Views) -> str:
        drawn = f"{views.augment}-{views.count}" if views.count > 1 else "plain"
        drawn = f"mean-{drawn}" if self.averages else drawn
        facts = [DECODING, self.digest, self.prepare.mean, self.prepare.std]
        stem = hashlib.blake2b(repr(facts).encode(), digest_size=10).hexdigest()
        return f"features-{FORMAT}-{self.image_size}-{drawn}-{stem}"


@dataclass(frozen=True)
class _Features:
    """Computes the features of images by row, in whatever process."""

    stem: KeptStem
    pixels: MemoryPixels | DecodedPixels
    views: Views

    @property
    def digests(self) -> tuple[bytes, ...]:
        return self.pixels.digests

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32] | UserError]]:
        squares = self.pixels.compute(rows)
        while part := list(itertools.islice(squares, TOGETHER)):
            good = [(row, image) for row, image in part if not isinstance(image, UserError)]
            yield from ((row, image) for row, image in part if isinstance(image, UserError))
            if good:
                images = torch.from_numpy(np.stack([image for _, image in good])).permute(0, 3, 1, 2)
                views = self.views.of(images, [self.digests[row] for row, _ in good])
                seen = np.stack([self.stem.compute(view) for view in views], axis=1)
                yield from zip((row for row, _ in good), seen, strict=True)


class _Filler:
    """Computes features in a process of its own and writes them to the cache."""

    def __init__(self, stem: KeptStem, views: Views, shelf: Shelf) -> None:
        self.stem, self.views, self.shelf = stem, views, shelf

    def __call__(self, pixels: DecodedPixels) -> dict[int, str]:
        source = _Features(self.stem, pixels, self.views)
        return CachedRows(self.stem.cache, self.shelf, source, {}).write_absent()


Payload = TypeVar("Payload")
Outcome = TypeVar("Outcome")
ShardWork = Callable[[FeatureFeed, Payload], Outcome]
"""Does something with the features of some images, whose rows are 0 to n - 1, and with what belongs to them."""


def over_shards(
    features: CachedRows,
    pool: Pool,
    work: ShardWork[Payload, Outcome],
    shards: Sequence[NDArray[np.int64]],
    payloads: Sequence[Payload],
) -> Iterator[Outcome] | None:
    """Let the processes of a pool work on shards of features, rows (n,) each; yields the outcomes in their order.

    None where the images are in memory only, and not in files that every process can read.
    """
    source = features.source
    if not (isinstance(source, _Features) and isinstance(source.pixels, DecodedPixels)):
        return None
    make = partial(_ShardWorker, source.stem, source.views, features.shelf, work)
    parts = [source.pixels.part(rows.tolist()) for rows in shards]
    return _in_order(pool.map(make, list(zip(parts, payloads, strict=True))))


class _ShardWorker:
    """Does the work on a shard in a process of its own."""

    def __init__(self, stem: KeptStem, views: Views, shelf: Shelf, work: ShardWork[Any, Any]) -> None:
        self.stem, self.views, self.shelf, self.work = stem, views, shelf, work

    def __call__(self, item: tuple[DecodedPixels, Any]) -> Any:
        pixels, payload = item
        rows = CachedRows(self.stem.cache, self.shelf, _Features(self.stem, pixels, self.views), {})
        return self.work(FeatureFeed(rows, self.stem.device), payload)


def _in_order(found: Iterator[tuple[int, Outcome]]) -> Iterator[Outcome]:
    waiting, place = dict[int, Outcome](), 0
    for done, outcome in found:
        waiting[done] = outcome
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def _spread(
    pool: Pool, pixels: DecodedPixels, make: Callable[[], _Filler], blocks: Sequence[Sequence[int]]
) -> Iterator[tuple[int, dict[int, str]]]:
    """See `core.cached_rows.Spread`."""
    for place, missing in pool.map(make, [pixels.part(rows) for rows in blocks]):
        yield place, {blocks[place][row]: reason for row, reason in missing.items()}
