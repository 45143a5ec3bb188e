"""From an image file to uint8 pixels of one size, or to the reason why not."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import Base as ExifTag

from ..core.errors import UserError, one_line
from ..core.remote import RemoteError, is_url, read_bytes
from .colours import to_rgb
from .truncation import is_cut_short

ROOM = 2  # a JPEG may be decoded to a fraction of its size that is at least this many times the wanted one
MEGAPIXELS = 50.0  # the largest image that is decoded
HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")  # brands of what Pillow cannot read

PROGRAMS = ("EPS",)  # what Pillow has another program run to get an image

TURNS = {  # EXIF orientation -> what makes the stored image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
Box = tuple[float, float, float, float]  # left, top, right, bottom
Formats = tuple[str, ...] | None  # that are read, by the names that Pillow gives them; None for all


class BadImage(UserError):  # noqa: N818 - a noun, as it is also returned and collected
    """An image file that cannot be decoded; `reason` says why without naming the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives pickling
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return one_line(f"cannot read image {self.path}: {self.reason}")


class TooLarge(BadImage):
    """An image with more pixels than are decoded."""


class UnknownFormat(BadImage):
    """A file that is no image, or not of a format that is read."""


def decode(path: str, size: int, megapixels: float = MEGAPIXELS) -> NDArray[np.uint8]:
    """Decode one image file to RGB as a person sees it, squashed to a square.

    Returns:
        uint8 (size, size, 3).

    Raises:
        BadImage: the file is missing, truncated, not an image, too large, ...
    """
    return decode_content(path, read_content(path), size, megapixels)


def resized(image: Image.Image, size: int, box: Box | None = None) -> NDArray[np.uint8]:
    """An RGB image, or a box (left, top, right, bottom) of it, squashed to a square, uint8 (size, size, 3)."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box))


def read_content(path: str) -> bytes:
    """The bytes of a file, named by its path or URL.

    Raises:
        BadImage: it is missing, a folder, ...
    """
    try:
        return read_bytes(path) if is_url(path) else Path(path).read_bytes()
    except RemoteError as error:
        raise BadImage(path, error.reason) from None
    except FileNotFoundError:
        raise BadImage(path, "missing") from None
    except IsADirectoryError:
        raise BadImage(path, "not an image but a folder") from None
    except OSError as error:
        raise BadImage(path, f"unreadable ({error.strerror})") from None
    except ValueError as error:  # a name that no file can have
        raise BadImage(path, f"unreadable ({error})") from None


class Header(NamedTuple):
    """What the first bytes of an image file say."""

    width: int  # as a person sees the image
    height: int
    format: str  # such as JPEG


def inspect(path: str, content: bytes, megapixels: float = MEGAPIXELS, formats: Formats = None) -> Header:
    """Read the header of an image file, without decoding it.

    Raises:
        BadImage: it is not an image, obviously truncated, or too large.
    """
    with _opened(path, content, megapixels, formats) as image:
        if image.format == "PNG" and "exif" not in image.info and b"eXIf" in content:
            image.load()  # its EXIF may come after the pixels
        turned = image.format != "TIFF" and _orientation(image) >= 5  # Pillow gives the size of an upright TIFF
        width, height = image.size[::-1] if turned else image.size
        return Header(width, height, image.format or "")


def decode_content(
    path: str, content: bytes, size: int, megapixels: float = MEGAPIXELS, formats: Formats = None
) -> NDArray[np.uint8]:
    """Decode the content of an image file, uint8 (size, size, 3); the path is for the error."""
    with _opened(path, content, megapixels, formats) as image:
        box = _scale_down(image, size)
        upright = upright_rgb(image)
        return resized(upright, size, None if box is None else _turned(box, upright.size, _orientation(image)))


def decode_to_fit(path: str, longest: int, megapixels: float = MEGAPIXELS) -> Image.Image:
    """Decode one image file to RGB as a person sees it, made smaller where a side has more than `longest` pixels.

    Raises:
        BadImage: the file is missing, truncated, not an image, too large, ...
    """
    return content_to_fit(path, read_content(path), longest, megapixels)


def content_to_fit(
    path: str, content: bytes, longest: int, megapixels: float = MEGAPIXELS, formats: Formats = None
) -> Image.Image:
    """The same for the content of an image file; the path is for the error."""
    with _opened(path, content, megapixels, formats) as image:
        _scale_down(image, longest)
        return made_to_fit(upright_rgb(image), longest)


def made_to_fit(image: Image.Image, longest: int) -> Image.Image:
    """A copy of an image, made smaller where a side has more than `longest` pixels."""
    small = image.copy()
    small.thumbnail((longest, longest))
    return small


def upright_rgb(image: Image.Image) -> Image.Image:
    """The current frame of an image in RGB as a person sees it: turned by its EXIF orientation, on white."""
    image.load()  # a PNG may have its EXIF after the pixels; a TIFF is turned by Pillow here
    turn = TURNS.get(_orientation(image))
    return to_rgb(image) if turn is None else to_rgb(image).transpose(turn)


class _Undisturbed:
    """Keeps Pillow's warnings and its own limit on pixels out of the way while any thread is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:  # both are shared by all threads
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
                self._filters = warnings.catch_warnings(action="ignore")
                self._filters.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._filters.__exit__(None, None, None)
                Image.MAX_IMAGE_PIXELS = self._limit


_undisturbed = _Undisturbed()


@contextmanager
def _opened(path: str, content: bytes, megapixels: float, formats: Formats) -> Iterator[Image.Image]:
    """An image whose header is fine; whatever goes wrong with it is a BadImage."""
    try:
        if is_cut_short(content):
            raise BadImage(path, "truncated")
        with _undisturbed, _open(path, content, formats) as image:
            if (pixels := image.width * image.height) > megapixels * 1e6:
                own = math.ceil(pixels / 1e5) / 10  # not 50.0 where 50 are allowed
                raise TooLarge(path, f"{own} megapixels, more than the limit of {megapixels:g} (megapixels)")
            yield image
    except (BadImage, MemoryError):
        raise  # the latter is the machine's fault, not the file's
    except UnidentifiedImageError:
        if not content:
            raise BadImage(path, "empty") from None
        allowed = "" if formats is None else f" of an allowed format ({', '.join(formats)})"
        raise UnknownFormat(path, f"not an image{allowed}") from None
    except Exception as error:  # decoders of broken files raise almost anything
        what = " ".join(str(error).split())[:100] or type(error).__name__
        ended = isinstance(error, EOFError) or "truncated" in what.lower() or "end of file" in what.lower()
        reason = "truncated" if ended else f"damaged ({what})"
        raise BadImage(path, reason) from None


def _open(path: str, content: bytes, formats: Formats) -> Image.Image:
    try:
        # Pillow has no HEIF, and fails where it is asked for a format that it does not have.
        image = Image.open(io.BytesIO(content), formats=formats and tuple(one for one in formats if one != "HEIF"))
        if image.format in PROGRAMS:
            raise UnknownFormat(path, f"not an image but a program ({image.format})")
        if image.format == "PNG":
            _scale_colour_key(image, depth=content[24])
        return image
    except UnidentifiedImageError:
        brands = content[8 : int.from_bytes(content[:4], "big")] if content[4:8] == b"ftyp" else b""
        if not any(brand in brands for brand in HEIF) or (formats is not None and "HEIF" not in formats):
            raise
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise BadImage(path, "HEIC, which needs the extra: pip install 'mlcil[heic]'") from None
    heif: Image.Image = HeifImageFile(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return heif  # upright, and its EXIF says so


def _scale_colour_key(image: Image.Image, depth: int) -> None:
    """Give the transparent colour of a PNG the 8 bits that Pillow gives its pixels."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int):
        image.info["transparency"] = key * 255 // (2**depth - 1)
    elif image.mode == "RGB" and depth == 16 and isinstance(key, tuple):
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _scale_down(image: Image.Image, size: int) -> Box | None:
    """Have a large JPEG decoded to 1/2, 1/4 or 1/8 of its size, in half the time; returns the box that it fills.

    It keeps at least ROOM times the wanted size in both dimensions and is resized from there. Against resizing from
    the full image, photographs have a median PSNR of 43 to 51 dB (38 at worst). A ROOM of 1 is faster but changes
    them visibly, 34 to 41 dB (28 at worst): libjpeg's scaling keeps more detail than the bilinear one.
    """
    if image.format not in {"JPEG", "MPO"}:  # a HEIC would be replaced by its preview
        return None
    scaled = image.draft(None, (ROOM * size, ROOM * size))
    # Not all of the last column and row where the fraction of the size is not whole.
    return None if scaled is None else scaled[1]


def _turned(box: Box, size: tuple[int, int], orientation: int) -> Box:
    """Where the box from the top left corner of a stored image is in the upright one of this size."""
    width, height = box[2:] if orientation < 5 else box[:1:-1]
    left = size[0] - width if orientation in {2, 3, 6, 7} else 0
    top = size[1] - height if orientation in {3, 4, 7, 8} else 0
    return left, top, left + width, top + height


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if there is none that makes sense."""
    try:
        found = Image.Image.getexif(image).get(ExifTag.Orientation)  # a PNG's own method would decode it
        return int(found) if found in TURNS else 1
    except MemoryError:
        raise
    except Exception:  # damaged EXIF raises almost anything
        return 1
