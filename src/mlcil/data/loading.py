"""Batches: which images in which order, read and augmented; the same bits for any number of workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..core.randomness import Stream, stream_key
from .augmentation import Augmentation, augment, normalise
from .decoding import BadImage
from .pixels import PixelStore


@dataclass(frozen=True)
class Batch:
    """Some images of a session.

    Attributes:
        images: float32 (B, 3, H, W), normalised, with the channels last in memory; or what a frozen stem made of them.
        labels: int8 (B, K): 1 present, 0 absent, -1 unknown.
        indices: int64 (B,): each image's row in the whole training set; on the host, for what is looked up there.
        replay: further images drawn from a memory for this step, one batch per draw.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    replay: tuple[Batch, ...] = ()

    def joined(self) -> Batch:
        """The batch and all its draws as one."""
        if not self.replay:
            return self
        parts = (self, *self.replay)
        return Batch(
            torch.cat([one.images for one in parts]),
            torch.cat([one.labels for one in parts]),
            torch.cat([one.indices for one in parts]),
        )

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        images, labels = (one.to(device, non_blocking=True) for one in (self.images, self.labels))
        return Batch(images, labels, self.indices, tuple(one.to(device) for one in self.replay))


def plan_epoch(count: int, batch_size: int, seed: int, session: int, epoch: int) -> list[NDArray[np.int64]]:
    """Split the positions 0..count-1 into batches; the last one may be smaller.

    The order follows from (seed, session, epoch) alone, so that a resumed run meets the same batches.
    """
    if batch_size < 1:
        raise ValueError(f"Got {batch_size} for batch_size, expected at least 1")
    order = np.arange(count, dtype=np.int64)
    np.random.default_rng(stream_key(Stream.SHUFFLE, seed, session, epoch)).shuffle(order)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


def shard(batch: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """The part of a global batch that one of `world` processes trains on; it may be empty."""
    return batch[rank::world]


def sample_seeds(key: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """One non-negative seed per row, int64 (n,), from the key and the row number alone.

    Each part of the key, then the row, goes through the finaliser of SplitMix64 (Steele et al., 2014).
    """
    state = np.zeros(len(rows), np.uint64)
    parts = [np.full(len(rows), number & 0xFFFFFFFFFFFFFFFF, np.uint64) for number in key]
    for part in (*parts, rows.astype(np.uint64)):
        state = (state + np.uint64(0x9E3779B97F4A7C15)) ^ part
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(1)).astype(np.int64)


@dataclass(frozen=True)
class Preparation:
    """From uint8 pixels to what the trained part of a network takes.

    Attributes:
        mean, std: per channel, of pixels in 0..1.
        stem: the frozen part of a network, from normalised images (B, 3, H, W); None where there is none.
    """

    mean: Sequence[float]
    std: Sequence[float]
    stem: Callable[[Tensor], Tensor] | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 (B, 3, H, W) -> float32 (B, 3, H, W), or (B, C, h, w) from the stem."""
        images = normalise(pixels, self.mean, self.std)
        if self.stem is None:
            return images
        with torch.no_grad():  # not in inference mode: a backward pass may need what is made of it
            return self.stem(images)


class Feed(Protocol):
    """Anything that serves batches: from pixels, or from stored features. Nobody downstream asks which."""

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part.

        Arguments:
            parts: for each batch, the positions (B,) of its images in `indices` and `labels`.
            indices: (N,) rows of the data set.
            labels: (N, K).
            seed_keys: one per part; with an image's row it decides that image's augmentation. None: no augmentation.
        """
        ...


class PixelFeed:
    """Reads, augments and prepares batches.

    Created once per run: its worker processes start at the first batch and serve every later epoch and
    session.

    Arguments:
        store: the pixels of the whole data set.
        prepare: applied to each batch, on its device.
        transform: the augmentation of one uint8 (3, H, W) image, or None.
        workers: worker processes; 0 works in the calling one.
        device: where batches go; None leaves them where they were read.
    """

    def __init__(
        self,
        store: PixelStore,
        prepare: Preparation,
        transform: Augmentation | None = None,
        workers: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.prepare = prepare
        self.device = device or torch.device("cpu")
        self._agenda = _Agenda()
        pinned = self.device.type == "cuda"  # only from pinned memory does a copy not wait
        self._loader = _start(_AugmentedPixels(store, transform), self._agenda, workers, pinned)

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; see `Feed`. Only one such iteration can be under way: a new one ends the old.

        Raises:
            BadImage: a file cannot be decoded.
        """
        keys: Sequence[tuple[int, ...] | None] = seed_keys or [None] * len(parts)
        jobs = [_job(indices[part], key) for part, key in zip(parts, keys, strict=True)]
        self._agenda.jobs = jobs
        for part, job, images in zip(parts, jobs, self._loader, strict=True):
            if isinstance(images, BadImage):
                raise images
            # Moved as uint8: a quarter of the bytes.
            pixels = images.to(self.device, non_blocking=True)
            yield Batch(
                images=self.prepare(pixels),
                labels=torch.from_numpy(labels[part]).to(self.device, non_blocking=True),
                indices=torch.from_numpy(job.rows),
            )
            if self._agenda.jobs is not jobs:
                raise RuntimeError("a newer iteration of this loader began; this one cannot continue")


class _Job(NamedTuple):
    """One batch to prepare: rows (B,) of the store and a seed (B,) for each, or None."""

    rows: NDArray[np.int64]
    seeds: NDArray[np.int64] | None


def _job(rows: NDArray[np.int64], seed_key: tuple[int, ...] | None) -> _Job:
    return _Job(rows, None if seed_key is None else sample_seeds(seed_key, rows))


class _Agenda(Sampler[_Job]):
    """The jobs of the current epoch. Exchanging them keeps the worker processes of the loader alive."""

    def __init__(self) -> None:
        self.jobs: list[_Job] = []

    def __iter__(self) -> Iterator[_Job]:
        return iter(self.jobs)


class _AugmentedPixels(Dataset[Tensor | BadImage]):
    """A data set whose items are whole batches, uint8 (B, 3, H, W): a quarter of the bytes of float32."""

    def __init__(self, store: PixelStore, transform: Augmentation | None) -> None:
        self.store, self.transform = store, transform

    def __getitem__(self, job: _Job) -> Tensor | BadImage:
        try:
            pixels = self.store[job.rows]  # (B, H, W, 3)
        except BadImage as error:
            return error  # returned, for raised in a worker it would arrive as a traceback in a string
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # the channels stay last in memory
        if self.transform is None or job.seeds is None:
            return images
        return augment(images, self.transform, job.seeds.tolist())


def _start(
    data: _AugmentedPixels, agenda: _Agenda, workers: int, pinned: bool = False
) -> DataLoader[Tensor | BadImage]:
    context = None
    if workers:
        # A plain fork would copy locks held by the threads of torch and CUDA. The server
        # imports what the workers need once for all of them.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, type(data.transform).__module__])
    return DataLoader(
        data,
        sampler=agenda,
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context=context,
        pin_memory=pinned,
        generator=torch.Generator(),  # else starting to iterate would draw from the global one
    )


def _unchanged(images: Any) -> Any:
    return images
