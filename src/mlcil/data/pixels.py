"""The pixels of a data set by row number: in memory, decoded at every access, or in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.cache import CachedRows, Chunk, DiskCache, NoRoomError, Rows
from ..core.errors import UserError
from .decoding import BadImage, Decoding, decode, resized
from .images import LabelledImages

# Part of every name in the cache: raise it when decoding changes by one bit. 2: JPEGs of at least four times the
# wanted size are decoded to a fraction of theirs.
DECODING = 2


class MemoryPixels:
    """Pixels that exist only in memory, uint8 (N, H, W, 3), resized once if needed."""

    def __init__(self, pixels: NDArray[np.uint8], size: int) -> None:
        fits = pixels.shape[1:3] == (size, size)
        squares = pixels if fits else [resized(Image.fromarray(image), size) for image in pixels]
        self._pixels = np.asarray(squares, np.uint8).reshape(len(pixels), size, size, 3)

    @property
    def digest(self) -> str:
        """A name for all of the pixels."""
        return blake2b(np.ascontiguousarray(self._pixels).data, digest_size=20).hexdigest()

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._pixels[rows]


class DecodedPixels:
    """Pixels decoded from their files at every access: slow, but nothing is stored."""

    digest = None  # finding one would take decoding them all

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self.paths, self.size = tuple(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = [decode(self.paths[row], self.size) for row in rows]
        return np.asarray(images, np.uint8).reshape(len(rows), self.size, self.size, 3)


PixelStore = MemoryPixels | DecodedPixels | CachedRows  # each can be pickled for a loader's worker process


class OpenedPixels(NamedTuple):
    """The pixels of a data set, and what the user should know about them.

    Attributes:
        store: the pixels, as many rows as there were images.
        bad: row -> one line naming the file and the reason. Such a row must not be read: it is black in a
            cached store and raises `BadImage` in a decoding one.
        note: one line that says why the cache was not used although it was asked for, else None.
    """

    store: PixelStore
    bad: dict[int, str]
    note: str | None = None


def default_cache() -> Path:
    """The cache folder: `$MLCIL_CACHE`, else `$XDG_CACHE_HOME/mlcil`, else `~/.cache/mlcil`."""
    if own := os.environ.get("MLCIL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlcil"


def open_pixels(
    images: LabelledImages,
    size: int,
    *,
    cache: DiskCache | None,
    contents: object = None,
    workers: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> OpenedPixels:
    """Make the pixels of all images available at one size, and find the bad files before training does.

    Arguments:
        images: N images, in files or in memory.
        size: the side every image is resized to.
        cache: where decoded images are kept; None decodes every image now as a check and again at each access.
        workers: decoding threads.
        on_progress: called with (images done, N) while images are decoded.

    Raises:
        UserError: the cache folder cannot be written (full disk, no permission); what was done is kept.
    """
    if images.pixels is not None:
        return OpenedPixels(MemoryPixels(images.pixels, size), {})
    job = Decoding(images.paths, size, workers, on_progress)
    if cache is None:
        return _open_decoded(job)
    try:
        return _open_cached(job, cache)
    except NoRoomError as reason:
        return _open_decoded(job)._replace(note=f"{reason}; decoding at every access instead, which is slower")
    except OSError as error:
        raise UserError(
            f"cannot use the pixel cache {cache.folder}: {error.strerror or error}. Make room or choose another "
            "folder; repeating the command continues where it stopped"
        ) from error


def _open_decoded(job: Decoding) -> OpenedPixels:
    bad = {
        row: str(result)
        for chunk in job.chunks(range(len(job.paths)))
        for row, result in chunk.items()
        if isinstance(result, BadImage)
    }
    return OpenedPixels(DecodedPixels(job.paths, job.size), bad)


def _open_cached(job: Decoding, cache: DiskCache) -> OpenedPixels:
    shape = (job.size, job.size, 3)
    if len(job.paths) * job.size * job.size * 3 > cache.limit_bytes:  # before the files are read for their digests
        raise NoRoomError(cache.no_room(Rows("", len(job.paths), shape, "uint8")))
    digests = job.digests()

    def compute(rows: Sequence[int]) -> Iterator[Chunk]:
        for chunk in job.chunks(rows, digests):
            yield {row: one.reason if isinstance(one, BadImage) else one for row, one in chunk.items()}

    found = cache.open(Rows(_key(digests, job.size), len(job.paths), shape, "uint8"), compute)
    return OpenedPixels(found, {row: str(BadImage(job.paths[row], why)) for row, why in found.missing.items()})


def _key(digests: Sequence[bytes], size: int) -> str:
    whole = blake2b(f"mlcil pixels {DECODING} {size} ".encode(), digest_size=20)
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()
