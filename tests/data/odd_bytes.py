"""Makers of images that Pillow itself does not write."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def picture(width: int = 60, height: int = 40) -> Pixels:
    """A smooth picture, uint8 (height, width, 3), that looks different however it is turned."""
    x, y = np.linspace(0, 1, width)[None, :], np.linspace(0, 1, height)[:, None]
    channels = [200 * x + 0 * y, 0 * x + 200 * y, 60 * (np.sin(5 * x) + np.cos(4 * y)) + 100]
    return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)


def stored(pixels: Pixels, orientation: int) -> Pixels:
    """How a camera stores upright pixels (H, W, ...) under an EXIF orientation, written out from the standard."""
    across = pixels.swapaxes(0, 1)
    return {
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: across,
        6: across[::-1],  # its first row is the upright image's right side
        7: across[::-1, ::-1],
        8: across[:, ::-1],  # its first row is the upright image's left side, from below
    }.get(orientation, pixels)


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def png(width: int, depth: int, rows: NDArray[np.uint8], **chunks: bytes) -> bytes:
    """A PNG file, RGB if it has a row of more than width * depth bits, else grey.

    Arguments:
        rows: the packed pixels, uint8 (height, bytes of a row).
        chunks: tRNS, the colour that is transparent, and eXIf, which comes after the pixels.
    """
    colours = 2 if rows.shape[1] * 8 >= 3 * width * depth else 0
    header = struct.pack(">IIBBBBB", width, len(rows), depth, colours, 0, 0, 0)
    pixels = {"IDAT": zlib.compress(np.pad(rows, ((0, 0), (1, 0))).tobytes(), 9)}  # each row after its filter, 0
    key = {name: chunks.pop(name) for name in ("tRNS",) if name in chunks}
    chunks = {"IHDR": header, **key, **pixels, **chunks, "IEND": b""}
    parts = [(name.encode() + data, len(data)) for name, data in chunks.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", length) + part + struct.pack(">I", zlib.crc32(part)) for part, length in parts
    )


def cmyk_profile() -> bytes:
    """An ICC profile of an odd printer: black ink is black, each other ink makes a third of a neutral grey.

    No ink is L* = 100, one ink 75, two inks 50, three 25, black 0.
    """
    inks = [(c + m + y, k) for c in (0, 1) for m in (0, 1) for y in (0, 1) for k in (0, 1)]  # cyan varies slowest
    lightness = [0 if black else round(255 * (1 - 0.25 * others)) for others, black in inks]
    ramp = bytes(range(256))
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + struct.pack(">9i", *(65536 * (i % 4 == 0) for i in range(9)))
    table += ramp * 4 + b"".join(bytes([one, 128, 128]) for one in lightness) + ramp * 3
    header = struct.pack(">I4xI4s4s4s12x4s", 128 + 16 + len(table), 0x02400000, b"prtr", b"CMYK", b"Lab ", b"acsp")
    header += bytes(28) + struct.pack(">3i", 63190, 65536, 54061)  # the white of D50
    return header.ljust(128, b"\0") + struct.pack(">I4sII", 1, b"A2B0", 128 + 16, len(table)) + table


def encoded(pixels: NDArray[np.generic], form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


def with_preview(photo: bytes) -> bytes:
    """A JPEG whose header holds another JPEG, as cameras write them."""
    return photo[:2] + b"\xff\xe1" + struct.pack(">H", len(photo) + 2) + photo + photo[2:]
