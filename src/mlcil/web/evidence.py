"""Where the evidence for a tag is, as a picture to lay over the photo."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from ..serving.places import place_of

LONGEST = 480  # pixels of the longer side
TINT, EDGE = (214, 40, 160), (255, 255, 255)  # rare in photos, for the evidence; and a line around its main part
COVER = 0.62  # how much of the photo the tint may cover


def overlay(values: NDArray[np.float32], width: int, height: int) -> bytes | None:
    """A PNG with transparency in the proportions of a photo; None where the evidence is the same everywhere.

    Arguments:
        values: (h, w), the map of a tag, at least 0.
        width, height: of the photo.
    """
    place = place_of(values)
    if place is None:
        return None
    scale = LONGEST / max(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    evidence = _enlarged(place.evidence, size).clip(0, 1)
    inside = _enlarged(place.region.astype(np.float32), size) > 0.5
    line = ndimage.binary_dilation(inside, iterations=2) & ~ndimage.binary_erosion(inside, iterations=1)
    pixels = np.empty((size[1], size[0], 4), np.uint8)
    pixels[..., :3] = np.where(line[..., None], EDGE, TINT)
    pixels[..., 3] = np.where(line, 230, 255 * COVER * evidence**2)
    return _png(pixels)


def data_url(png: bytes) -> str:
    """A PNG as text that can stand in an answer and as the source of an image."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _enlarged(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC))


def _png(pixels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()
