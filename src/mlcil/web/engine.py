"""The engine: one thread that computes, a few that decode, and a limit on what may wait."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..serving.explanation import explain
from ..serving.predicting import DECODERS, TOGETHER
from ..serving.tagger import Tagger
from .batches import Batches
from .errors import Busy
from .metrics import Metrics
from .uploads import Decoded, Upload, decoded

QUEUE = 64  # images that may be at work at once
PATIENCE = 0.005  # seconds that an image waits for others to be computed with

Maps = dict[str, NDArray[np.float32]]  # label -> where its evidence is, (h, w)


class Seen(NamedTuple):
    """What the tagger found in an image."""

    width: int
    height: int
    scores: NDArray[np.float32]  # (K,)
    maps: Maps | None = None  # of all labels, where they were wanted


@dataclass(eq=False)
class _Job:
    upload: Upload
    wants_maps: bool
    result: Future[Seen] = field(default_factory=Future)
    image: Decoded | None = None


class Engine:
    """Scores images of many requests together.

    Decoding happens in a small pool before images get in line, so that a large picture holds up nobody. The scores of
    an image do not depend, even in their last bits, on what goes with it, and are those of `mlcil predict`.
    """

    def __init__(self, tagger: Tagger, metrics: Metrics | None = None, most: int = QUEUE) -> None:
        self.tagger, self.metrics, self.most = tagger, metrics or Metrics(), most
        self.metrics.queue_length = lambda: self.count
        self.count = 0  # images from their arrival to their result
        self._lock = Lock()
        self._line: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(DECODERS, "decoder")
        self._thread = Thread(target=self._work, name="engine", daemon=True)
        self._is_closed = False

    def start(self) -> None:
        """Begin to work."""
        self._batches = Batches(self.tagger)  # before other threads decode, as it exports the stem
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether images can be computed."""
        return self._thread.is_alive() and not self._is_closed

    def close(self) -> None:
        """Stop; what still waits is cancelled."""
        self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._line.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, uploads: Sequence[Upload], wants_maps: bool = False) -> list[Future[Seen]]:
        """Have images scored.

        Arguments:
            wants_maps: also find where in each image the evidence for the labels is; not every tagger can.

        Returns:
            One result per image, to come; one that cannot be read gets a BadImage. A cancelled one is not computed.

        Raises:
            Busy: there is no room for all of them.
        """
        self._reserve(len(uploads))
        jobs = [_Job(one, wants_maps) for one in uploads]
        for job in jobs:
            self._pool.submit(self._guarded, job, self._decode)
        return [job.result for job in jobs]

    def _reserve(self, images: int) -> None:
        with self._lock:
            if self._is_closed:
                raise Busy("the server is stopping")
            if self.count + images > self.most:
                self.metrics.add_rejected(images)
                raise Busy(f"the server is busy with {self.count} images; at most {self.most} are taken at once")
            self.count += images

    def _release(self) -> None:
        with self._lock:
            self.count -= 1

    def _guarded(self, job: _Job, step: Callable[[_Job], None]) -> None:
        """Do a step of a job unless nobody waits for it any more; whatever goes wrong goes to whoever waits."""
        if job.result.cancelled():
            return self._release()
        try:
            step(job)
        except BaseException as error:
            self._finish(job, error)

    def _decode(self, job: _Job) -> None:
        job.image = decoded(self.tagger, job.upload, job.wants_maps)
        self._line.put(job)

    def _finish(self, job: _Job, outcome: Seen | BaseException) -> None:
        self._release()
        if not job.result.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            job.result.set_exception(outcome)
        else:
            job.result.set_result(outcome)

    def _work(self) -> None:
        while (first := self._line.get()) is not None:
            waiting = []
            for job in self._gather(first):
                waiting.append(job) if not job.result.cancelled() else self._release()
            if waiting:
                self._compute(waiting)

    def _gather(self, first: _Job) -> list[_Job]:
        """The next jobs in line: as many as are computed at once, or whatever comes within PATIENCE."""
        jobs, deadline = [first], time.monotonic() + PATIENCE
        while len(jobs) < TOGETHER:
            try:
                job = self._line.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                self._line.put(None)
                break
            jobs.append(job)
        return jobs

    def _compute(self, jobs: Sequence[_Job]) -> None:
        images = [job.image for job in jobs if job.image is not None]
        try:
            scores = self._batches.scores([one.square for one in images])
        except Exception as error:
            for job in jobs:
                self._finish(job, error)
            return
        self.metrics.add_batch(len(jobs))
        for job, image, row in zip(jobs, images, scores, strict=True):
            self._guarded(job, lambda job, image=image, row=row: self._answer(job, image, row))  # type: ignore[misc]

    def _answer(self, job: _Job, image: Decoded, scores: NDArray[np.float32]) -> None:
        maps = None if image.photo is None else self._maps(image.square, image.photo)
        self._finish(job, Seen(image.width, image.height, scores, maps))

    def _maps(self, square: NDArray[np.uint8], photo: NDArray[np.uint8]) -> Maps:
        everything = explain(self.tagger, square, threshold=0.0, most=len(self.tagger.classes), photo=photo)
        return {tag.name: tag.map for tag in everything.tags}
