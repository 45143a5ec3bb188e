"""From the bytes of an upload to pixels, in memory and with limits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.decoding import BadImage, TooLarge, UnknownFormat, content_to_fit, decode_content, inspect
from ..serving.tagger import PHOTO_SIDE, Tagger

# Other decoders of Pillow are old, seldom used, or run other programs. MPO is a JPEG with more pictures behind it.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")


class Upload(NamedTuple):
    """The bytes of one image and the name that its sender gave it."""

    name: str
    content: bytes


class Decoded(NamedTuple):
    """An upload as pixels."""

    width: int  # as a person sees the image
    height: int
    square: NDArray[np.uint8]  # (size, size, 3), as the tagger wants it
    photo: NDArray[np.uint8] | None  # (H, W, 3) in its own proportions, where it is to be explained


def decoded(tagger: Tagger, upload: Upload, has_photo: bool = False) -> Decoded:
    """Decode an upload as `Tagger.predict` decodes a file of the same bytes.

    Raises:
        BadImage: it is not an image of an allowed format, damaged, or too large.
    """
    limits = (tagger.config.settings.megapixels, FORMATS)
    header = inspect(upload.name, upload.content, *limits)
    square = decode_content(upload.name, upload.content, tagger.size, *limits)
    photo = np.asarray(content_to_fit(upload.name, upload.content, PHOTO_SIDE, *limits)) if has_photo else None
    return Decoded(header.width, header.height, square, photo)


def status_of(error: BadImage) -> int:
    """The status that answers a bad image."""
    if isinstance(error, TooLarge):
        return 413
    return 415 if isinstance(error, UnknownFormat) else 400
