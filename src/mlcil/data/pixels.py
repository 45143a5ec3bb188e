"""The pixels of a data set by row number: in memory, decoded at every access, or in the cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.cache import DiskCache, NoRoomError, Shelf
from ..core.cached_rows import CachedRows, open_rows
from ..core.errors import UserError
from ..core.progress import Show
from ..core.remote import is_url
from .contents import Contents, content_digest, pixel_digests
from .decoding import MEGAPIXELS, BadImage, decode_content, read_content, resized
from .images import LabelledImages

# Part of every name in the cache: raise it when decoding changes by one bit. 2: JPEGs of at least four times the
# wanted size are decoded to a fraction of theirs. 3: images are turned as their camera says, and more kinds are read.
DECODING = 3
CHUNK = 32  # images that are decoded before they are handed on, all that an interrupted build can lose


class ChangedImage(UserError):  # noqa: N818 - a noun, as BadImage
    """An image file that no longer has the content that it had; `path` names it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"image {self.path} changed while it was read; repeat the command"


class MemoryPixels:
    """Pixels that exist only in memory, uint8 (N, H, W, 3), resized once if needed.

    Arguments:
        digests: one per image, where they are known.
    """

    def __init__(self, pixels: NDArray[np.uint8], size: int, digests: tuple[bytes, ...] | None = None) -> None:
        fits = pixels.shape[1:3] == (size, size)
        squares = pixels if fits else [resized(Image.fromarray(image), size) for image in pixels]
        self._pixels = np.asarray(squares, np.uint8).reshape(len(pixels), size, size, 3)
        self._digests = digests
        self.missing: dict[int, str] = {}

    @property
    def digests(self) -> tuple[bytes, ...]:
        """One per row, of its pixels."""
        if self._digests is None:
            self._digests = pixel_digests(self._pixels)
        return self._digests

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._pixels[rows]

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield each of these rows with its pixels, as `DecodedPixels` does."""
        return ((row, self._pixels[row]) for row in rows)


class DecodedPixels:
    """Pixels decoded from their files at every access: slow, but nothing is stored.

    Arguments:
        digests: one per file, of its content; with another content a file is refused.
        megapixels: the largest image that is decoded.
        workers: decoding threads.

    Attributes:
        missing: row -> why it has no pixels, one line that names the file, as far as that is known.
    """

    def __init__(
        self,
        paths: Sequence[str],
        size: int,
        digests: Sequence[bytes],
        megapixels: float = MEGAPIXELS,
        workers: int = 1,
    ) -> None:
        self.paths, self.size, self.digests = tuple(paths), size, tuple(digests)
        self.megapixels, self.workers = megapixels, workers
        self.missing: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        for place, (_, image) in enumerate(self.compute(rows.tolist())):
            if isinstance(image, BadImage):
                raise image
            images[place] = image
        return images

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8] | BadImage]]:
        """Decode these rows, yielding each with its pixels (size, size, 3) or with the reason why it has none.

        Raises:
            ChangedImage: a file no longer has its digest.
        """
        chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        with ThreadPoolExecutor(self.workers) as pool:
            ahead = pool.map(self._decode, chunks[0] if chunks else ())
            for place, chunk in enumerate(chunks):
                images = list(ahead)
                if place + 1 < len(chunks):  # decoded while whoever takes these works with them
                    ahead = pool.map(self._decode, chunks[place + 1])
                yield from zip(chunk, images, strict=True)

    def part(self, rows: Sequence[int]) -> DecodedPixels:
        """Only these rows."""
        paths, digests = [self.paths[row] for row in rows], [self.digests[row] for row in rows]
        return DecodedPixels(paths, self.size, digests, self.megapixels, self.workers)

    def _decode(self, row: int) -> NDArray[np.uint8] | BadImage:
        path = self.paths[row]
        try:
            content = read_content(path)
            if content_digest(content) != self.digests[row]:
                raise ChangedImage(path)
            return decode_content(path, content, self.size, self.megapixels)
        except BadImage as error:
            return error


PixelStore = MemoryPixels | DecodedPixels | CachedRows  # each can be pickled for a loader's worker process


class OpenedPixels(NamedTuple):
    """The pixels of a data set, and what the user should know about them.

    Attributes:
        store: the pixels, as many rows as there were images.
        bad: row -> one line naming the file and the reason. Reading such a row raises `BadImage`.
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
    contents: Contents,
    workers: int = 2,
    on_progress: Show | None = None,
) -> OpenedPixels:
    """Make the pixels of all images available at one size, and find the bad files before training does.

    Arguments:
        images: N images, in files or in memory.
        size: the side every image is resized to.
        cache: where decoded images are kept; None decodes every image now as a check and again at each access.
        contents: looks into the files whose digest is not known.
        workers: decoding threads.
        on_progress: called with (images done, N) while images are decoded.

    Raises:
        UserError: the cache folder cannot be written (full disk, no permission); what was done is kept.
    """
    job = undecoded(images, size, contents, workers)
    if isinstance(job, MemoryPixels):
        return OpenedPixels(job, {})
    with forgetting_changes(contents):
        if cache is None:
            return _open_decoded(job, on_progress)
        return _open_cached(job, cache, on_progress)


def undecoded(images: LabelledImages, size: int, contents: Contents, workers: int = 2) -> MemoryPixels | DecodedPixels:
    """The pixels of images, for somebody who computes something of each of them once; arguments as of `open_pixels`.

    Files that cannot be used by what their first bytes say are among the missing ones.
    """
    if images.pixels is not None:
        return MemoryPixels(images.pixels, size, images.digests)
    digests, bad = _looked_at(images, contents)
    job = DecodedPixels(images.paths, size, digests, contents.megapixels, workers)
    job.missing |= bad
    return job


@contextmanager
def forgetting_changes(contents: Contents) -> Iterator[None]:
    """Let a file that changed be looked into when the command is repeated, or a deceived index would say the same."""
    try:
        yield
    except ChangedImage as error:
        contents.forget(error.path)
        raise


def _looked_at(images: LabelledImages, contents: Contents) -> tuple[tuple[bytes, ...], dict[int, str]]:
    """The digest of each file, and row -> one line for those that cannot be used."""
    if images.digests is not None and (contents.index is None or any(map(is_url, images.paths))):
        return images.digests, {}  # looking again would take reading them again
    facts = contents.look(images.paths)
    bad = {row: str(BadImage(images.paths[row], one.problem)) for row, one in enumerate(facts) if one.problem}
    return images.digests or tuple(one.digest for one in facts), bad


def _open_decoded(job: DecodedPixels, on_progress: Show | None) -> OpenedPixels:
    rows = [row for row in range(len(job)) if row not in job.missing]
    for done, (row, image) in enumerate(job.compute(rows), start=len(job.missing) + 1):
        if isinstance(image, BadImage):
            job.missing[row] = str(image)
        if on_progress:
            on_progress(done, len(job))
    return OpenedPixels(job, dict(sorted(job.missing.items())))


def _open_cached(job: DecodedPixels, cache: DiskCache, on_progress: Show | None) -> OpenedPixels:
    shelf = Shelf(f"pixels-{DECODING}-{job.size}", (job.size, job.size, 3), "uint8")
    try:
        found = open_rows(cache, shelf, job, job.missing, on_progress)
    except NoRoomError as reason:
        opened = _open_decoded(job, on_progress)
        return opened._replace(note=f"{reason}; decoding at every access instead, which is slower")
    except OSError as error:
        raise UserError(
            f"cannot use the pixel cache {cache.folder}: {error.strerror or error}. Make room or choose another "
            "folder; repeating the command continues where it stopped"
        ) from error
    return OpenedPixels(found, dict(sorted(found.missing.items())))
