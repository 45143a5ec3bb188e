"""The pixels of a data set by row number: in memory, decoded at every access, or in the cache."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.errors import UserError
from .decoding import BadImage, Decoding, decode, resized
from .images import LabelledImages
from .pixel_cache import NoRoomError, open_entry

__all__ = [
    "BadImage",
    "CachedPixels",
    "DecodedPixels",
    "MemoryPixels",
    "OpenedPixels",
    "PixelStore",
    "decode",
    "default_cache",
    "open_pixels",
]


class PixelStore(Protocol):
    """Images of one size by row number. Every store can be pickled for a loader's worker process."""

    @property
    def size(self) -> int:
        """The side of every image."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]: ...  # (n, size, size, 3)


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


class MemoryPixels:
    """Pixels that exist only in memory, uint8 (N, H, W, 3), resized once if needed."""

    def __init__(self, pixels: NDArray[np.uint8], size: int) -> None:
        self.size = size
        fits = pixels.shape[1:3] == (size, size)
        squares = pixels if fits else [resized(Image.fromarray(image), size) for image in pixels]
        self._pixels = np.asarray(squares, np.uint8).reshape(len(pixels), size, size, 3)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._pixels[rows]


class DecodedPixels:
    """Pixels decoded from their files at every access: slow, but nothing is stored."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self.paths, self.size = tuple(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = [decode(self.paths[row], self.size) for row in rows]
        return np.asarray(images, np.uint8).reshape(len(rows), self.size, self.size, 3)


class CachedPixels:
    """Pixels in a memory-mapped file of raw uint8 (N, size, size, 3)."""

    def __init__(self, path: Path, count: int, size: int) -> None:
        self.path, self.count, self.size = path, count, size
        self._map: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if len(rows) == 0:  # an empty file cannot be mapped
            return np.empty((0, self.size, self.size, 3), np.uint8)
        if self._map is None:
            self._map = np.memmap(self.path, np.uint8, "r", shape=(self.count, self.size, self.size, 3))
        return np.asarray(self._map[rows])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}  # the other process maps the file itself


def default_cache() -> Path:
    """The cache folder: `$MLCIL_CACHE`, else `$XDG_CACHE_HOME/mlcil`, else `~/.cache/mlcil`."""
    if own := os.environ.get("MLCIL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlcil"


def open_pixels(
    images: LabelledImages,
    size: int,
    *,
    cache: Path | None,
    limit_bytes: int,
    workers: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> OpenedPixels:
    """Make the pixels of all images available at one size, and find the bad files before training does.

    Arguments:
        images: N images, in files or in memory.
        size: the side every image is resized to.
        cache: the folder of the cache; None decodes every image now as a check and again at each access.
        limit_bytes: the cache's limit; the least recently used entries make room.
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
        return _open_cached(job, cache, limit_bytes)
    except NoRoomError as reason:
        return _open_decoded(job)._replace(note=str(reason))
    except OSError as error:
        raise UserError(
            f"cannot use the pixel cache {cache}: {error.strerror or error}. Make room or choose another "
            "folder; repeating the command continues where it stopped"
        ) from error


def _open_decoded(job: Decoding) -> OpenedPixels:
    reasons = {
        row: result.reason
        for chunk in job.chunks(range(len(job.paths)))
        for row, result in chunk.items()
        if isinstance(result, BadImage)
    }
    return OpenedPixels(DecodedPixels(job.paths, job.size), job.named(reasons))


def _open_cached(job: Decoding, folder: Path, limit: int) -> OpenedPixels:
    entry = open_entry(job, folder, limit)
    store = CachedPixels(entry.path, len(job.paths), job.size)
    weakref.finalize(store, os.close, entry.lock)  # nobody removes the file while the store is alive
    return OpenedPixels(store, job.named(entry.reasons))
