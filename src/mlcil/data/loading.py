"""Batches: which images in which order, read and augmented; the same bits for any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..core.errors import UserError
from ..core.randomness import Stream, stream_key
from .augmentation import Augmentation, augment, normalise
from .pixels import PixelStore

_Job = tuple[NDArray[np.int64], NDArray[np.int64] | None]  # a batch to prepare: rows (B,) and perhaps their seeds (B,)


@dataclass(frozen=True)
class Batch:
    """Some images of a session.

    Attributes:
        images: float32 (B, 3, H, W), normalised, with the channels last in memory; or what a frozen stem made of them.
        labels: int8 (B, K): 1 present, 0 absent, -1 unknown.
        indices: int64 (B,): each image's row in the whole training set; on the host, for what is looked up there.
        replay: further images drawn from a memory for this step, one batch per draw.
        views: int64 (B,): which of an image's views each one is, on the host; None where they are drawn anew each time.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    replay: tuple[Batch, ...] = ()
    views: Tensor | None = None

    def joined(self) -> Batch:
        """The batch and all its draws as one."""
        if not self.replay:
            return self
        parts = (self, *self.replay)
        return Batch(
            torch.cat([one.images for one in parts]),
            torch.cat([one.labels for one in parts]),
            torch.cat([one.indices for one in parts]),
            views=None if self.views is None else torch.cat([one.views for one in parts if one.views is not None]),
        )

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        images, labels = (one.to(device, non_blocking=True) for one in (self.images, self.labels))
        return Batch(images, labels, self.indices, tuple(one.to(device) for one in self.replay), self.views)


def plan_epoch(count: int, batch_size: int, seed: int, session: int, epoch: int) -> list[NDArray[np.int64]]:
    """Split the positions 0..count-1 into batches; the last one may be smaller.

    The order follows from (seed, session, epoch) alone, so that a resumed run meets the same batches.
    """
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
        self._jobs: list[_Job] = []  # of the current epoch; exchanging them keeps the worker processes alive
        self._iteration = 0
        context = None
        if workers:
            # A plain fork would copy locks held by the threads of torch and CUDA. The server
            # imports what the workers need once for all of them.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__, type(transform).__module__])
            _start_the_server()
        self._loader = DataLoader(
            _AugmentedPixels(store, transform),
            sampler=self._jobs,
            batch_size=None,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context=context,
            worker_init_fn=_live_with_the_run,
            pin_memory=self.device.type == "cuda",  # only from pinned memory does a copy not wait
            generator=torch.Generator(),  # else starting to iterate would draw from the global one
        )

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part. Only one such iteration can be under way: a new one ends the old.

        Arguments:
            parts: for each batch, the positions (B,) of its images in `indices` and `labels`.
            indices: (N,) rows of the data set.
            labels: (N, K).
            seed_keys: one per part; with an image's row it decides that image's augmentation. None: no augmentation.

        Raises:
            UserError: a file cannot be decoded.
        """
        rows = [indices[part] for part in parts]
        seeds = [None] * len(parts) if seed_keys is None else list(map(sample_seeds, seed_keys, rows))
        self._jobs[:] = zip(rows, seeds, strict=True)
        self._iteration += 1
        iteration = self._iteration
        for place, images in enumerate(self._loader):
            if isinstance(images, UserError):
                raise images
            # Moved as uint8: a quarter of the bytes.
            pixels = images.to(self.device, non_blocking=True)
            yield Batch(
                images=self.prepare(pixels),
                labels=torch.from_numpy(labels[parts[place]]).to(self.device, non_blocking=True),
                indices=torch.from_numpy(rows[place]),
            )
            if self._iteration != iteration:
                raise RuntimeError("a newer iteration of this loader began; this one cannot continue")


def _start_the_server() -> None:
    """Start the process that forks workers, deaf to a SIGTERM that is for all processes of the run, as to Ctrl-C."""
    resource_tracker.ensure_running()  # first, as starting it lets signals through
    if threading.current_thread() is not threading.main_thread():  # nobody else may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGTERM, before)


def _live_with_the_run(worker: int) -> None:
    """Let a worker end when the process of the run does, however that ends, and not before.

    PyTorch watches the parent of a worker, which here is the server that forks workers; the server lives as long as
    they do, so both would stay for ever. And a terminal sends Ctrl-C to all processes, a batch system SIGTERM: the
    first one may still need the others to finish a step. Only from that one is a SIGTERM meant for the worker.
    """
    run = multiprocessing.parent_process()
    assert run is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_when_told, args=[run.pid], daemon=True).start()
    threading.Thread(target=_end_after, args=[run], daemon=True).start()


def _end_when_told(by: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != by:
        pass
    os._exit(0)


def _end_after(run: multiprocessing.process.BaseProcess) -> None:
    run.join()
    os._exit(0)


class _AugmentedPixels(Dataset[Tensor | UserError]):
    """A data set whose items are whole batches, uint8 (B, 3, H, W): a quarter of the bytes of float32."""

    def __init__(self, store: PixelStore, transform: Augmentation | None) -> None:
        self.store, self.transform = store, transform

    def __getitem__(self, job: _Job) -> Tensor | UserError:
        rows, seeds = job
        try:
            pixels = self.store[rows]  # (B, H, W, 3)
        except UserError as error:
            return error  # returned, for raised in a worker it would arrive as a traceback in a string
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)  # the channels stay last in memory
        if self.transform is None or seeds is None:
            return images
        return augment(images, self.transform, seeds.tolist())
