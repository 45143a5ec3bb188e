"""Looking at the photos of a folder, in the background and once for each content."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.contents import content_digest
from ..data.decoding import BadImage, content_to_fit, decode_content, inspect, read_content
from ..data.file_index import Stamp
from ..models.analytic import AnalyticTagger
from ..serving.predicting import DECODERS, TOGETHER
from ..serving.tagger import Tagger
from .photo_index import KnownFile, LookedAt, PhotoIndex
from .photos import Photos

THUMBNAIL = 256  # pixels of the longer side
QUALITY = 82  # of a thumbnail, as JPEG


class Indexer:
    """Looks at photos in a thread of its own; what is done is kept, so that the next start goes on from there.

    Arguments:
        paths: files that may be photos.
        photos: takes them in.
    """

    def __init__(self, tagger: Tagger, paths: Sequence[str], index: PhotoIndex, photos: Photos) -> None:
        self.tagger, self.paths, self.index, self.photos = tagger, paths, index, photos
        assert isinstance(tagger.method.tagger, AnalyticTagger)
        self.net = tagger.method.tagger
        self.net.backbone.ready_stem()  # while no other thread changes which warnings are shown
        self.is_done = False
        self.failure: str | None = None
        self._stop, self._thread = Event(), Thread(target=self._run, daemon=True, name="indexing")
        self._began, self._before = time.monotonic(), 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon, and wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def wait(self) -> None:
        """Until everything was looked at."""
        self._thread.join()

    @property
    def per_second(self) -> float:
        """Photos that were looked at in a second so far, those not counted that were known before."""
        return max(0, self.photos.looked_at - self._before) / max(time.monotonic() - self._began, 1e-3)

    def _run(self) -> None:
        try:
            unknown = self._take_known()
            self._began, self._before = time.monotonic(), self.photos.looked_at
            for part in self._read(unknown):
                self._look_at(part)
                if self._stop.is_set():
                    return
            self.is_done = True
        except Exception as error:
            self.failure = f"looking at photos stopped: {type(error).__name__}: {error}"
            raise

    def _take_known(self) -> list[str]:
        """Take in the photos that are remembered; returns the files that have to be read."""
        remembered = self.index.files()
        same: dict[str, KnownFile] = {}
        for path in self.paths:
            known = remembered.get(os.fsencode(os.path.abspath(path)))
            if known is not None and Stamp.of(path) == known.stamp:
                same[path] = known
        found = dict(self.index.find(list({one.digest for one in same.values() if one.problem is None})))
        unknown = []
        for path in self.paths:
            one = same.get(path)
            if one is not None and one.problem is not None:
                self.photos.add_problem(path, one.problem)
            elif one is not None and (known_photo := found.get(one.digest)) is not None:
                size = (known_photo.width, known_photo.height)
                self.photos.add(path, one.digest, size, self._expanded(known_photo.vector[None])[0])
            else:
                unknown.append(path)
        return unknown

    def _read(self, paths: Sequence[str]) -> Iterator[list[tuple[LookedAt, NDArray[np.uint8] | None]]]:
        """Read files, as many at once as the network takes; the next ones are read meanwhile."""
        parts = [paths[start : start + TOGETHER] for start in range(0, len(paths), TOGETHER)]
        with ThreadPoolExecutor(DECODERS) as pool:
            ahead = pool.map(self._open, parts[0] if parts else ())
            for place in range(len(parts)):
                now = list(ahead)
                ahead = pool.map(self._open, parts[place + 1] if place + 1 < len(parts) else ())
                yield now

    def _open(self, path: str) -> tuple[LookedAt, NDArray[np.uint8] | None]:
        """A file with its thumbnail, and its pixels as the network wants them."""
        limit, stamp = self.tagger.config.settings.megapixels, Stamp.of(path)
        try:
            content = read_content(path)
        except BadImage as error:
            return LookedAt(path, stamp, b"", error.reason), None
        digest = content_digest(content)
        try:
            header = inspect(path, content, limit)
            square = decode_content(path, content, self.tagger.size, limit)
            stream = io.BytesIO()
            content_to_fit(path, content, THUMBNAIL, limit).save(stream, "JPEG", quality=QUALITY)
        except BadImage as error:
            return LookedAt(path, stamp, digest, error.reason), None
        return LookedAt(path, stamp, digest, None, header.width, header.height, stream.getvalue()), square

    def _look_at(self, part: Sequence[tuple[LookedAt, NDArray[np.uint8] | None]]) -> None:
        """Compute the features of at most TOGETHER files, keep them, and take the photos in."""
        squares = [square for _, square in part if square is not None]
        vectors = iter(self._describe(squares) if squares else ())
        looked = [one if square is None else one._replace(vector=next(vectors)) for one, square in part]
        self.index.add(looked, [os.fsencode(os.path.abspath(one.path)) for one in looked])
        for one in looked:
            if one.vector is None:
                self.photos.add_problem(one.path, one.problem or "unreadable")
            else:
                self.photos.add(one.path, one.digest, (one.width, one.height), self._expanded(one.vector[None])[0])

    @torch.inference_mode()
    def _describe(self, squares: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """(n, p) of at most TOGETHER images; as many are always computed at once, so that each depends on itself."""
        whole = np.zeros((TOGETHER, *squares[0].shape), np.uint8)
        whole[: len(squares)] = squares
        found: NDArray[np.float32] = self.net.describe(self.tagger.prepare(whole)).numpy()
        return found[: len(squares)]

    @torch.inference_mode()
    def _expanded(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, p) -> (n, d), the features that the sums are over."""
        found: NDArray[np.float32] = self.net.expand(torch.from_numpy(vectors.copy())).numpy()
        return found
