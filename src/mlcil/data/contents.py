"""What image files hold, told by their content: the same photo under two names is one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .decoding import BadImage, inspect, read_content
from .images import LabelledImages


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
    megapixels: float = 50.0
    workers: int = 2
    on_progress: Callable[[int, int], None] | None = None

    def look(self, paths: Sequence[str]) -> list[FileFacts]:
        """One entry per path, in order."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self._look, paths))

    def _look(self, path: str) -> FileFacts:
        try:
            content = read_content(path)
        except BadImage as error:
            return _unusable(path, error.reason)
        digest = blake2b(content, digest_size=16).digest()
        try:
            header = inspect(path, content, self.megapixels)
        except BadImage as error:
            return FileFacts(digest, error.reason, 0, 0, "", len(content))
        return FileFacts(digest, None, header.width, header.height, header.format, len(content))


def _unusable(path: str, reason: str) -> FileFacts:
    digest = blake2b(f"{path}\0{reason}".encode(), digest_size=16, person=b"unreadable").digest()
    return FileFacts(digest, reason, 0, 0, "", 0)


def fingerprinted(images: LabelledImages, contents: Contents) -> LabelledImages:
    """The images with their digests."""
    if images.digests is not None:
        return images
    if images.pixels is not None:
        found = [blake2b(np.ascontiguousarray(one).data, digest_size=16).digest() for one in images.pixels]
    else:
        found = [one.digest for one in contents.look(images.paths)]
    return replace(images, digests=tuple(found))
