"""Tagging many photos: in batches, skipping what cannot be read, and going on where an interrupted command stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..data.decoding import BadImage
from ..training.progress import duration
from .pictures import Picture
from .predictions import Prediction
from .tagger import Tagger

Scores = NDArray[np.float32]
Photo = TypeVar("Photo")
DECODERS = 2  # threads that read photos while the network computes


class Outcome(NamedTuple):
    """What became of one photo: its tags, or why it has none."""

    prediction: Prediction
    error: str | None = None


@dataclass(frozen=True)
class Wish:
    """Which tags are wanted; see `Tagger.predict`."""

    top: int | None = None
    threshold: float | None = None
    precision: float | None = None


Show = Callable[[int, int], None]
"""Called with how many photos of how many are done."""


def tag_photos(
    tagger: Tagger, photos: Sequence[str], wish: Wish, show: Show = lambda done, total: None
) -> Iterator[Outcome]:
    """The tags of photos, one after another.

    Raises:
        UserError: the wish cannot be met.
    """
    thresholds = tagger.thresholds_for(wish.threshold, wish.precision)
    for photo, found in zip(photos, score_photos(tagger, photos, show), strict=True):
        if isinstance(found, BadImage):
            yield Outcome(Prediction(photo, ()), found.reason)
        else:
            yield Outcome(tagger.prediction(photo, found, thresholds, wish.top))


def score_photos(
    tagger: Tagger, photos: Sequence[Picture], show: Show = lambda done, total: None
) -> Iterator[Scores | BadImage]:
    """The scores (K,) of each photo, one after another, or why it cannot be read.

    While the network computes one batch, the photos of the next are read.
    """
    parts = batches(tagger, photos)

    def read(photo: Picture) -> NDArray[np.uint8] | BadImage:
        try:
            return tagger.square(photo)
        except BadImage as error:
            return error

    done = 0
    with ThreadPoolExecutor(DECODERS) as pool:
        ahead = [pool.submit(read, photo) for photo in (parts[0] if parts else ())]
        for place, part in enumerate(parts):
            squares = [one.result() for one in ahead]
            ahead = [pool.submit(read, photo) for photo in (parts[place + 1] if parts[place + 1 :] else ())]
            good = [one for one in squares if not isinstance(one, BadImage)]
            scores = iter(tagger.score_pixels(np.stack(good)) if good else ())
            yield from (one if isinstance(one, BadImage) else next(scores) for one in squares)
            done += len(part)
            show(done, len(photos))


def batches(tagger: Tagger, photos: Sequence[Photo]) -> list[Sequence[Photo]]:
    """The photos that are scored together."""
    size = tagger.config.settings.batch_size
    return [photos[start : start + size] for start in range(0, len(photos), size)]


class Readable(NamedTuple):
    """The scores of those photos that can be read."""

    places: NDArray[np.int64]  # (n,) of them among all photos
    scores: Scores  # (n, K)
    bad: tuple[str, ...]  # a line for each of the others


def score_readable(tagger: Tagger, photos: Sequence[Picture], show: Show = lambda done, total: None) -> Readable:
    """Score photos, and leave out what cannot be read; see `score_photos`."""
    places, bad = [], []
    kept = [np.empty((0, len(tagger.classes)), np.float32)]
    for place, found in enumerate(score_photos(tagger, photos, show)):
        if isinstance(found, BadImage):
            bad.append(str(found))
        else:
            places.append(place)
            kept.append(found[None])
    return Readable(np.array(places, np.int64), np.concatenate(kept), tuple(bad))


class Journal:
    """The outcomes so far, on disk after every photo, so that an interrupted command goes on from there.

    Arguments:
        out: the file that will hold the result; the journal is a neighbour of it until then.
        identity: what must be the same for the journal to be continued: the tagger and the wish.
    """

    def __init__(self, out: Path, identity: str) -> None:
        self.file = out.with_name(f".{out.name}.journal")
        self._identity = identity
        self.outcomes = self._read()

    def _read(self) -> dict[str, Outcome]:
        if not self.file.exists():
            return {}
        lines = self.file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        if not lines or lines[0] != self._identity:
            self.file.unlink()
            return {}
        found = {}
        for line in lines[1:]:
            try:
                outcome = outcome_of(json.loads(line))
            except (ValueError, KeyError, TypeError):  # a kill may have torn the last line
                break
            found[outcome.prediction.image] = outcome
        return found

    def left(self, tagger: Tagger, photos: Sequence[str]) -> list[str]:
        """The photos to tag, whole batches: the scores of a photo depend in their last bits on what goes with it."""
        parts = (part for part in batches(tagger, photos) if not self.outcomes.keys() >= set(part))
        return [photo for part in parts for photo in part]

    def record(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """Write each outcome down before it is handed on."""
        whole = [self._identity, *(json.dumps(as_record(one)) for one in self.outcomes.values())]
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text("\n".join(whole) + "\n", encoding="utf-8")
            with self.file.open("a", encoding="utf-8") as stream:
                for outcome in outcomes:
                    stream.write(json.dumps(as_record(outcome)) + "\n")
                    stream.flush()
                    yield outcome
        except OSError as error:
            raise UserError(f"cannot write {self.file}: {error.strerror or error}") from error

    def close(self) -> None:
        """Remove the journal: the result is written."""
        self.file.unlink(missing_ok=True)


def as_record(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values for JSON."""
    tags = [tag._asdict() for tag in outcome.prediction.tags]
    record: dict[str, Any] = {"image": outcome.prediction.image, "tags": tags}
    return record if outcome.error is None else record | {"error": outcome.error}


def outcome_of(record: dict[str, Any]) -> Outcome:
    """The inverse of `as_record`."""
    from .predictions import Tag

    tags = tuple(Tag(**one) for one in record["tags"])
    return Outcome(Prediction(record["image"], tags), record.get("error"))


def time_left(began: float, done: int, total: int, before: int = 0) -> str:
    """How far a pass over photos is, in words.

    Arguments:
        began: when it began, by `time.monotonic`.
        before: how many were done then.
    """
    rate = (done - before) / max(time.monotonic() - began, 1e-9)
    return f"{done}/{total} photos, {rate:.0f} a second, {duration((total - done) / max(rate, 1e-9))} left"
