"""Pictures in whatever form a program has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.errors import UserError

# A file, a PIL image of any mode, or pixels (H, W), (H, W, 3) or (H, W, 4) as bytes, bools or numbers from 0 to 1.
Picture = str | Path | Image.Image | NDArray[Any]


def as_list(images: Picture | Sequence[Picture]) -> Sequence[Picture]:
    """One picture or several, as a list of pictures."""
    if isinstance(images, str | Path | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        return [images] if images.ndim < 4 else list(images)
    return list(images) if isinstance(images, Iterator) else images


def picture_of(array: NDArray[Any]) -> Image.Image:
    """An array as a PIL image: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of bytes, bools or numbers from 0 to 1.

    Raises:
        UserError: it is anything else.
    """
    array = np.asarray(array)
    pixels = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    fits = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))
    if pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    elif np.issubdtype(pixels.dtype, np.floating) and pixels.size and pixels.min() >= 0 and pixels.max() <= 1:
        pixels = (pixels * 255).round().astype(np.uint8)
    if not fits or pixels.dtype != np.uint8 or not pixels.size:
        raise UserError(
            f"got an array of {array.dtype} {array.shape}, expected an image (H, W), (H, W, 3) or (H, W, 4) of bytes, "
            "or of numbers from 0 to 1"
        )
    return Image.fromarray(pixels)
