"""What the frozen stages of a backbone make of each image, computed once and kept.

With frozen early stages most of a step is spent on work that gives the same result every epoch, every
session, and for teacher and student alike. Here it is done once per image and view.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..data.augmentation import normalise
from ..data.loading import Batch, sample_seeds
from ..data.pixels import CachedPixels, MemoryPixels, PixelStore
from ..models.backbone import Backbone

FORMAT = 1
VIEWS = {"none": 1, "flip": 2}  # augmentations that make finitely many views of an image
CHUNK = 64  # images computed at once


class ActivationLoader:
    """Serves stored activations as batches, in the manner of `data.loading.BatchLoader`.

    Arguments:
        activations: float16 (N, views, C, H, W).
    """

    def __init__(self, activations: NDArray[np.float16]) -> None:
        self.activations = activations

    def batches(
        self,
        parts: Sequence[NDArray[np.int64]],
        indices: NDArray[np.int64],
        labels: NDArray[np.int8],
        seed_key: tuple[int, ...] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; see `BatchLoader.batches`. The seed decides between the views."""
        for part in parts:
            rows = indices[part]
            views = np.zeros(len(rows), np.int64)
            if seed_key is not None:
                views = sample_seeds(seed_key, rows) % self.activations.shape[1]
            values = torch.from_numpy(self.activations[rows, views].astype(np.float32))
            yield Batch(values, torch.from_numpy(labels[part]), torch.from_numpy(rows))


def open_activations(
    backbone: Backbone,
    pixels: PixelStore,
    augment: str,
    folder: Path,
    fabric: Fabric,
    say: Callable[[str], None],
) -> ActivationLoader:
    """Compute the frozen stages on every image and view, or find that done.

    Arguments:
        pixels: all images of a split.
        augment: "none" for one view, "flip" for two.
        folder: where the activations are kept, by content.

    Raises:
        UserError: the backbone has no frozen part to cut off, or the augmentation has no finite set of views.
    """
    if not backbone.prefix_length:
        raise UserError(
            f"reuse_frozen: nothing to reuse; set freeze_stages, with a convolutional backbone (got {backbone.name})"
        )
    if augment not in VIEWS:
        raise UserError(f"reuse_frozen: got augment {augment!r}, expected one of {', '.join(VIEWS)}")
    file = folder / f"{_key(backbone, pixels, VIEWS[augment])}.f16.npy"
    if fabric.global_rank == 0 and not file.exists():
        _build(backbone.to(fabric.device).eval(), pixels, VIEWS[augment], file, fabric.device, say)
    fabric.barrier()
    return ActivationLoader(np.load(file, mmap_mode="r"))


def _build(
    backbone: Backbone,
    pixels: PixelStore,
    views: int,
    file: Path,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.partial")
    kept: np.memmap[tuple[int, ...], np.dtype[np.float16]] | None = None
    try:
        for start in range(0, len(pixels), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(pixels)), dtype=np.int64)
            values = _compute(backbone, pixels[rows], views, device)  # (n, views, C, H, W)
            if kept is None:
                shape = (len(pixels), *values.shape[1:])
                kept = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=shape)
            kept[rows] = values
            if start // CHUNK % 20 == 0:
                say(f"frozen stages: {rows[-1] + 1}/{len(pixels)} images")
        if kept is not None:
            kept.flush()
        partial.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


@torch.inference_mode()
def _compute(backbone: Backbone, pixels: NDArray[np.uint8], views: int, device: torch.device) -> NDArray[np.float16]:
    images = normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), backbone.mean, backbone.std).to(device)
    seen: list[Tensor] = [images, images.flip(3)][:views]
    return torch.stack([backbone.prefix(one) for one in seen], dim=1).half().cpu().numpy()


def _key(backbone: Backbone, pixels: PixelStore, views: int) -> str:
    digest = hashlib.blake2b(f"{FORMAT} {backbone.name} {backbone.prefix_length} {views}".encode(), digest_size=16)
    for name, value in backbone.net.state_dict().items():
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    if isinstance(pixels, CachedPixels):
        digest.update(pixels.path.name.encode())  # named by content
    elif isinstance(pixels, MemoryPixels):
        digest.update(pixels[np.arange(len(pixels), dtype=np.int64)].tobytes())
    else:
        raise UserError("reuse_frozen needs the cache of decoded images; leave cache at auto and raise cache_gb")
    return digest.hexdigest()
