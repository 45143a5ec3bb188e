"""What image files hold, told by their content: the same photo under two names is one image."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .decoding import MEGAPIXELS, BadImage, inspect, read_content
from .file_index import Entry, FileIndex, Stamp
from .images import LabelledImages

CHUNK = 64  # files that a thread reads before it hands them on
SAVED_TOGETHER = 8192  # files after which the index is written, all that an interrupted look can lose
FRESH = 2 * 10**9  # nanoseconds: a file as young as this could change without a change of its time


class FileFacts(NamedTuple):
    """What is known about an image file without decoding it."""

    digest: bytes  # 16 bytes that stand for its content; of an unreadable file, for its path and the reason
    problem: str | None  # why it cannot be used, without naming the file
    width: int  # of the image as a person sees it, 0 where unknown
    height: int
    format: str  # such as JPEG, "" where unknown
    bytes: int


@dataclass(frozen=True)
class Contents:
    """Looks into image files.

    Attributes:
        index: a file that remembers what was found, so that an unchanged file is not read again; None for none.
        megapixels: the largest image that is taken.
        workers: reading threads.
        on_progress: called with (files done, all) while files are read.
    """

    index: Path | None = None
    megapixels: float = MEGAPIXELS
    workers: int = 2
    on_progress: Callable[[int, int], None] | None = None

    def look(self, paths: Sequence[str]) -> list[FileFacts]:
        """One entry per path, in order."""
        stamps = {path: Stamp.of(path) for path in paths} if self.index else dict.fromkeys(paths)
        found = self._remembered({path: stamp for path, stamp in stamps.items() if stamp})
        unread = [path for path in stamps if path not in found]
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(unread), SAVED_TOGETHER):
                began, part = time.time_ns(), unread[start : start + SAVED_TOGETHER]
                chunks = [part[at : at + CHUNK] for at in range(0, len(part), CHUNK)]
                for chunk, facts in zip(chunks, pool.map(self._look_at, chunks), strict=True):
                    found.update(zip(chunk, facts, strict=True))
                    if self.on_progress:
                        self.on_progress(len(found), len(stamps))
                self._remember({path: stamps[path] for path in part}, found, began)
        return [found[path] for path in paths]

    def forget(self, path: str) -> None:
        """Read a file the next time, whatever the index says."""
        FileIndex(self.index).forget(path)

    def _remembered(self, stamps: Mapping[str, Stamp]) -> dict[str, FileFacts]:
        # Where a larger image was allowed before, it is read again, to be refused in the usual words.
        return {
            path: FileFacts(one.digest, None, one.width, one.height, one.format, stamps[path].size)
            for path, one in FileIndex(self.index).find(stamps).items()
            if one.width * one.height <= self.megapixels * 1e6
        }

    def _remember(self, stamps: Mapping[str, Stamp | None], found: Mapping[str, FileFacts], began: int) -> None:
        """Keep what was found in files that have these stamps; not problems, which may depend on what is installed."""
        entries = {
            path: (stamp, Entry(facts.digest, facts.width, facts.height, facts.format))
            for path, stamp in stamps.items()
            if stamp and abs(began - stamp.changed) > FRESH and not (facts := found[path]).problem
        }
        if entries:
            FileIndex(self.index).add(entries)

    def _look_at(self, paths: Sequence[str]) -> list[FileFacts]:
        return [self._look(path) for path in paths]

    def _look(self, path: str) -> FileFacts:
        try:
            content = read_content(path)
        except BadImage as error:
            return _unusable(path, error.reason)
        digest = content_digest(content)
        try:
            header = inspect(path, content, self.megapixels)
        except BadImage as error:
            return FileFacts(digest, error.reason, 0, 0, "", len(content))
        return FileFacts(digest, None, header.width, header.height, header.format, len(content))


def index_file(cache: Path) -> Path:
    """Where the index is in a cache folder."""
    return cache / "files.sqlite"


def fingerprinted(images: LabelledImages, contents: Contents) -> LabelledImages:
    """The same images with a digest of each one's content; of its pixels where it exists only in memory."""
    if images.digests is not None:
        return images
    if images.pixels is not None:
        return replace(images, digests=pixel_digests(images.pixels))
    return replace(images, digests=tuple(facts.digest for facts in contents.look(images.paths)))


def content_digest(content: bytes) -> bytes:
    """16 bytes that stand for the content of a file."""
    return blake2b(content, digest_size=16).digest()


def pixel_digests(pixels: NDArray[np.uint8]) -> tuple[bytes, ...]:
    """16 bytes for each of the images (N, H, W, 3)."""
    shape = repr(pixels.shape[1:]).encode()  # images of other shapes may have the same bytes
    return tuple(blake2b(shape + image.tobytes(), digest_size=16, person=b"pixels").digest() for image in pixels)


def _unusable(path: str, reason: str) -> FileFacts:
    digest = blake2b(
        f"{path}\0{reason}".encode(errors="surrogateescape"), digest_size=16, person=b"unreadable"
    ).digest()
    return FileFacts(digest, reason, 0, 0, "", 0)
