"""What the frozen part of a backbone makes of images: once per batch, or once per image and view and kept.

With frozen stages most of a step is spent on work that is the same for teacher and student, and, where an image has
finitely many views, in every epoch, every session and every run. Here it is done once.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.files import PARTIAL, write_atomically
from ..data.augmentation import augment, make_augmentation, normalise
from ..data.loading import Batch, BatchSource, sample_seeds
from ..data.pixels import CachedPixels, MemoryPixels, PixelStore
from ..models.backbone import Backbone
from .inference import on_first

FORMAT = 2  # part of every file's name: raise it when a stored value changes
CHUNK = 64  # images computed at once
ABANDONED = 24 * 3600  # seconds after which a file half written is nobody's


class PrefixLoader:
    """Puts the output of a backbone's frozen part in place of the images of another source's batches."""

    def __init__(self, source: BatchSource, backbone: Backbone, fabric: Fabric) -> None:
        self.source, self.backbone, self.fabric = source, backbone, fabric

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; see `BatchLoader.batches`."""
        for batch in self.source.batches(parts, indices, labels, seed_keys):
            # Not in inference mode: a backward pass may need what is made of it.
            with torch.no_grad(), self.fabric.autocast():
                given = self.backbone.prefix(batch.images.to(self.fabric.device, non_blocking=True))
            yield replace(batch, images=given)


class ActivationLoader:
    """Serves stored activations as batches, in the manner of `data.loading.BatchLoader`.

    Arguments:
        activations: float16 (N, views, H, W, C).
        device: where the batches are wanted.
    """

    def __init__(self, activations: NDArray[np.float16], device: torch.device) -> None:
        self.activations, self.device = activations, device

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; see `BatchLoader.batches`. The seed decides between the views."""
        for place, part in enumerate(parts):
            rows = indices[part]
            views = np.zeros(len(rows), np.int64)
            if seed_keys is not None:
                views = sample_seeds(seed_keys[place], rows) % self.activations.shape[1]
            stored = torch.from_numpy(self.activations[rows, views]).to(self.device, non_blocking=True)
            values = stored.float().permute(0, 3, 1, 2)  # (B, C, H, W) in channels-last
            yield Batch(values, torch.from_numpy(labels[part]), torch.from_numpy(rows))


@dataclass(frozen=True)
class Views:
    """Which views of an image are computed: as it is first, then others.

    Attributes:
        augment: "none" has one, "flip" two; any other so many as are wanted, each drawn once for all runs.
        wanted: with a random augmentation.
    """

    augment: str
    wanted: int

    @property
    def count(self) -> int:
        """How many there are."""
        return {"none": 1, "flip": 2}.get(self.augment, self.wanted)

    def of(self, images: Tensor, rows: NDArray[np.int64]) -> list[Tensor]:
        """The views of uint8 images (n, 3, H, W), each (n, 3, H, W)."""
        if self.augment == "flip":
            return [images, images.flip(3)]
        if self.count == 1:
            return [images]
        transform = make_augmentation(self.augment)
        drawn = [sample_seeds((view,), rows).tolist() for view in range(1, self.count)]
        return [images, *(augment(images, transform, seeds) for seeds in drawn)]


@dataclass(frozen=True)
class Shelf:
    """Where activations are kept, by content.

    Attributes:
        folder: of the cache.
        limit_bytes: the most that they may take together; those used longest ago make room.
    """

    folder: Path
    limit_bytes: int

    def file(self, key: str) -> Path:
        """The file of this name."""
        return self.folder / "frozen" / f"{key}.npy"

    def open(self, file: Path, build: Callable[[], None], say: Callable[[str], None]) -> NDArray[np.float16]:
        """The activations in a file, built if it is not there; nobody removes it while they are in use.

        Raises:
            UserError: the folder cannot be used, or `build` finds something wrong.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(file.with_suffix(".lock"), os.O_RDONLY | os.O_CREAT, 0o666)
            with ExitStack() as on_failure:
                on_failure.callback(os.close, lock)
                _finish(file, lock, build, say)
                with suppress(OSError):  # another user's
                    os.utime(file)  # used just now
                values: NDArray[np.float16] = np.load(file, mmap_mode="r")
                weakref.finalize(values, on_failure.pop_all().close)
        except OSError as error:
            raise UserError(f"cannot use the frozen activations {file}: {error.strerror or error}") from error
        return values

    def make_room(self, needed: int) -> None:
        """Remove what was used longest ago, and is not now, until so many bytes fit.

        Raises:
            UserError: they cannot fit.
        """
        found = []
        for path in self.file("").parent.iterdir():
            with suppress(FileNotFoundError):  # removed by another run just now
                found.append((path.stat(), path))
        for status, path in found:
            if path.suffix == PARTIAL and status.st_mtime < time.time() - ABANDONED:
                path.unlink(missing_ok=True)
        kept = sorted((one.st_mtime_ns, one.st_size, path) for one, path in found if path.suffix == ".npy")
        used = sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if used + needed > self.limit_bytes >= needed and _removed(path):
                used -= size
        if used + needed > self.limit_bytes:
            raise UserError(
                f"the frozen activations need {needed / 1e9:.1f} GB beside {used / 1e9:.1f} GB of others and cache_gb "
                f"allows {self.limit_bytes / 1e9:.1f}; raise it, freeze more stages, or take fewer views"
            )


def _finish(file: Path, lock: int, build: Callable[[], None], say: Callable[[str], None]) -> None:
    """Hold the lock shared, with the file in place; build it first unless another run did."""
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Looked at again after each change of the lock: changing it lets go of it for a moment.
        if file.exists():
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for frozen activations, which another run is computing")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            build()


def _removed(file: Path) -> bool:
    """Remove activations unless a run reads them."""
    with file.with_suffix(".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink(missing_ok=True)
    return True


def open_activations(
    backbone: Backbone, pixels: PixelStore, views: Views, shelf: Shelf, fabric: Fabric, say: Callable[[str], None]
) -> ActivationLoader:
    """Compute the frozen part on every image and view, or find that done.

    Arguments:
        pixels: all images of a split.

    Raises:
        UserError: the backbone has no frozen part to cut off, or there is no room.
    """
    if not backbone.has_prefix:
        raise UserError(
            f"reuse_frozen: nothing to reuse; set backbone_mode=frozen, or freeze_stages with a convolutional backbone "
            f"(got {backbone.name})"
        )
    file = shelf.file(_key(backbone, pixels, views))
    opened: list[NDArray[np.float16]] = []

    def build() -> None:
        _build(backbone.to(fabric.device), pixels, views, file, shelf, say)

    on_first(fabric, lambda: opened.append(shelf.open(file, build, say)))  # it keeps the others' file as well
    return ActivationLoader(opened[0] if opened else np.load(file, mmap_mode="r"), fabric.device)


def _build(
    backbone: Backbone, pixels: PixelStore, views: Views, file: Path, shelf: Shelf, say: Callable[[str], None]
) -> None:
    chunks = (
        np.arange(start, min(start + CHUNK, len(pixels)), dtype=np.int64) for start in range(0, len(pixels), CHUNK)
    )

    def write(path: Path) -> None:
        with path.open("wb") as stream:
            for rows in chunks:
                values = _compute(backbone, pixels[rows], rows, views)  # (n, views, H, W, C)
                if rows[0] == 0:
                    shape = (len(pixels), *values.shape[1:])
                    shelf.make_room(math.prod(shape) * values.itemsize)
                    header = {
                        "descr": np.lib.format.dtype_to_descr(values.dtype),
                        "fortran_order": False,
                        "shape": shape,
                    }
                    np.lib.format.write_array_header_2_0(stream, header)
                stream.write(values.tobytes())
                if rows[0] // CHUNK % 20 == 0:
                    say(f"frozen stages: {rows[-1] + 1}/{len(pixels)} images")

    was_training = backbone.training
    backbone.eval()
    try:
        write_atomically(file, write)
    finally:
        backbone.train(was_training)


@torch.inference_mode()
def _compute(
    backbone: Backbone, pixels: NDArray[np.uint8], rows: NDArray[np.int64], views: Views
) -> NDArray[np.float16]:
    device = next(backbone.parameters()).device
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    seen = [normalise(one.to(device), backbone.mean, backbone.std) for one in views.of(images, rows)]
    given = [backbone.prefix(one).permute(0, 2, 3, 1) for one in seen]
    return torch.stack(given, dim=1).half().cpu().contiguous().numpy()


def _key(backbone: Backbone, pixels: PixelStore, views: Views) -> str:
    facts = [FORMAT, backbone.name, backbone.prefix_name, backbone.mean, backbone.std]
    facts += [views.augment, views.count] if views.count > 1 else []
    digest = hashlib.blake2b(" ".join(map(str, facts)).encode(), digest_size=16)
    for name, value in backbone.net.state_dict().items():
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    if isinstance(pixels, CachedPixels):
        digest.update(pixels.path.name.encode())  # named by content
    elif isinstance(pixels, MemoryPixels):
        digest.update(pixels[np.arange(len(pixels), dtype=np.int64)].tobytes())
    else:
        raise UserError(
            "features are kept only beside the cache of decoded images; leave cache at auto, raise cache_gb"
        )
    return digest.hexdigest()
