"""From an image file to uint8 pixels of one size, or to the reason why not."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..core.errors import UserError

ROOM = 2  # a JPEG may be decoded to a fraction of its size that is at least this many times the wanted one
MEGAPIXELS = 50.0  # the largest image that is decoded


class BadImage(UserError):  # noqa: N818 - a noun, as it is also returned and collected
    """An image file that cannot be decoded; `reason` says why without naming the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives pickling
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read image {self.path}: {self.reason}"


def decode(path: str, size: int) -> NDArray[np.uint8]:
    """Decode one image file to RGB, squashed to a square.

    Returns:
        uint8 (size, size, 3).

    Raises:
        BadImage: the file is missing, truncated, not an image, ...
    """
    with warnings.catch_warnings(action="ignore"):
        return decode_content(path, read_content(path), size)


def resized(image: Image.Image, size: int, box: tuple[float, float, float, float] | None = None) -> NDArray[np.uint8]:
    """An RGB image, or a box (left, top, right, bottom) of it, squashed to a square, uint8 (size, size, 3)."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box))


def read_content(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        BadImage: it is missing, a folder, ...
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise BadImage(path, "missing") from None
    except IsADirectoryError:
        raise BadImage(path, "not an image but a folder") from None
    except OSError as error:
        raise BadImage(path, f"unreadable ({error.strerror})") from None


class Header(NamedTuple):
    """What the first bytes of an image file say."""

    width: int  # as a person sees the image
    height: int
    format: str  # such as JPEG


def inspect(path: str, content: bytes, megapixels: float = MEGAPIXELS) -> Header:
    """Read the header of an image file, without decoding it.

    Raises:
        BadImage: it is not an image, or too large.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            return Header(image.width, image.height, image.format or "")
    except UnidentifiedImageError:
        raise BadImage(path, "not an image" if content else "empty") from None


def decode_content(path: str, content: bytes, size: int, megapixels: float = MEGAPIXELS) -> NDArray[np.uint8]:
    """Decode the content of an image file, uint8 (size, size, 3); the path is for the error."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            box = _scale_down(image, size)
            return resized(_rgb(image), size, box)
    except UnidentifiedImageError:
        raise BadImage(path, "not an image" if content else "empty") from None
    except Image.DecompressionBombError:
        raise BadImage(path, "too many pixels to decode safely") from None
    except MemoryError:
        raise  # the machine's fault, not the file's
    except Exception as error:  # decoders of broken files raise almost anything
        what = " ".join(str(error).split()) or type(error).__name__
        reason = "truncated" if "truncated" in what.lower() or isinstance(error, EOFError) else f"damaged ({what})"
        raise BadImage(path, reason) from None


def _scale_down(image: Image.Image, size: int) -> tuple[float, float, float, float] | None:
    """Have a large JPEG decoded to 1/2, 1/4 or 1/8 of its size, in half the time; returns the box that it fills.

    It keeps at least ROOM times the wanted size in both dimensions and is resized from there. Against resizing from
    the full image, photographs have a median PSNR of 43 to 51 dB (38 at worst). A ROOM of 1 is faster but changes
    them visibly, 34 to 41 dB (28 at worst): libjpeg's scaling keeps more detail than the bilinear one.
    """
    scaled = image.draft(None, (ROOM * size, ROOM * size))
    # Not all of the last column and row where the fraction of the size is not whole.
    return None if scaled is None else scaled[1]


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white
        return Image.fromarray((np.asarray(image) / 257).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")
