"""What the frozen stages of a backbone make of each image, computed once and kept.

With frozen early stages most of a step is spent on work that gives the same result every epoch, every
session, and for teacher and student alike. Here it is done once per image and view.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.files import write_atomically
from ..data.augmentation import normalise
from ..data.loading import Batch, sample_seeds
from ..data.pixels import CachedPixels, MemoryPixels, PixelStore
from ..models.backbone import Backbone
from .inference import on_first

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
        seed_keys: Sequence[tuple[int, ...]] | None,
    ) -> Iterator[Batch]:
        """Yield one batch per part; see `BatchLoader.batches`. The seed decides between the views."""
        for place, part in enumerate(parts):
            rows = indices[part]
            views = np.zeros(len(rows), np.int64)
            if seed_keys is not None:
                views = sample_seeds(seed_keys[place], rows) % self.activations.shape[1]
            values = torch.from_numpy(self.activations[rows, views].astype(np.float32))
            yield Batch(values, torch.from_numpy(labels[part]), torch.from_numpy(rows))


def open_activations(
    backbone: Backbone,
    pixels: PixelStore,
    augment: str,
    folder: Path,
    limit_bytes: int,
    fabric: Fabric,
    say: Callable[[str], None],
) -> ActivationLoader:
    """Compute the frozen stages on every image and view, or find that done.

    Arguments:
        pixels: all images of a split.
        augment: "none" for one view, "flip" for two.
        folder: where the activations are kept, by content.
        limit_bytes: the most that they may take.

    Raises:
        UserError: the backbone has no frozen part to cut off, or the augmentation has no finite set of views.
    """
    if not backbone.prefix_length:
        raise UserError(
            f"reuse_frozen: nothing to reuse; set freeze_stages, with a convolutional backbone (got {backbone.name})"
        )
    if augment not in VIEWS:
        raise UserError(f"reuse_frozen: got augment {augment!r}, expected one of {', '.join(VIEWS)}")
    file = folder / "frozen" / f"{_key(backbone, pixels, VIEWS[augment])}.npy"

    def build() -> None:
        if not file.exists():
            _build(backbone.to(fabric.device).eval(), pixels, VIEWS[augment], file, limit_bytes, say)

    on_first(fabric, build)
    return ActivationLoader(np.load(file, mmap_mode="r"))


def _build(
    backbone: Backbone, pixels: PixelStore, views: int, file: Path, limit_bytes: int, say: Callable[[str], None]
) -> None:
    chunks = (
        np.arange(start, min(start + CHUNK, len(pixels)), dtype=np.int64) for start in range(0, len(pixels), CHUNK)
    )

    def write(partial: Path) -> None:
        with partial.open("wb") as stream:
            for rows in chunks:
                values = _compute(backbone, pixels[rows], views)  # (n, views, C, H, W)
                if rows[0] == 0:
                    shape = (len(pixels), *values.shape[1:])
                    _check_size(math.prod(shape) * values.itemsize, limit_bytes)
                    header = {
                        "descr": np.lib.format.dtype_to_descr(values.dtype),
                        "fortran_order": False,
                        "shape": shape,
                    }
                    np.lib.format.write_array_header_2_0(stream, header)
                stream.write(values.tobytes())
                if rows[0] // CHUNK % 20 == 0:
                    say(f"frozen stages: {rows[-1] + 1}/{len(pixels)} images")

    write_atomically(file, write)


def _check_size(needed: int, limit_bytes: int) -> None:
    if needed > limit_bytes:
        raise UserError(
            f"reuse_frozen would keep {needed / 1e9:.1f} GB and cache_gb allows {limit_bytes / 1e9:.1f}; "
            "raise it, freeze more stages, or leave reuse_frozen out"
        )


@torch.inference_mode()
def _compute(backbone: Backbone, pixels: NDArray[np.uint8], views: int) -> NDArray[np.float16]:
    device = next(backbone.parameters()).device
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
