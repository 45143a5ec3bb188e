"""Tagging many photos, and leaving out what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.progress import Show
from ..data.decoding import BadImage
from .pictures import Picture
from .predictions import Prediction
from .tagger import Tagger

Scores = NDArray[np.float32]
DECODERS = 2  # threads that read photos while the network computes
TOGETHER = 16  # photos that are computed at once


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

    While the network computes some photos, the next are read. As many are always computed at once, so that the scores
    of a photo do not depend, even in their last bits, on what goes with it.
    """
    parts = [photos[start : start + TOGETHER] for start in range(0, len(photos), TOGETHER)]

    def read(photo: Picture) -> NDArray[np.uint8] | BadImage:
        try:
            return tagger.square(photo)
        except BadImage as error:
            return error

    done = 0
    tagger.method.tagger.backbone.ready_stem()
    with ThreadPoolExecutor(DECODERS) as pool:
        ahead = pool.map(read, parts[0] if parts else ())
        for place, part in enumerate(parts):
            squares = list(ahead)
            ahead = pool.map(read, parts[place + 1] if place + 1 < len(parts) else ())
            good = [one for one in squares if not isinstance(one, BadImage)]
            scores = iter(_scores(tagger, good) if good else ())
            yield from (one if isinstance(one, BadImage) else next(scores) for one in squares)
            done += len(part)
            show(done, len(photos))


def _scores(tagger: Tagger, squares: Sequence[NDArray[np.uint8]]) -> Scores:
    """The scores (n, K) of at most TOGETHER images, with black ones where there are fewer."""
    whole = np.zeros((TOGETHER, *squares[0].shape), np.uint8)
    whole[: len(squares)] = squares
    return tagger.score_pixels(whole)[: len(squares)]


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


def as_record(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values for JSON."""
    tags = [tag._asdict() for tag in outcome.prediction.tags]
    record: dict[str, Any] = {"image": outcome.prediction.image, "tags": tags}
    return record if outcome.error is None else record | {"error": outcome.error}


def outcome_of(record: dict[str, Any]) -> Outcome:
    """The inverse of `as_record`."""
    from .predictions import Tag

    if not isinstance(record["image"], str):
        raise TypeError("the name of an image is not text")
    tags = tuple(Tag(**one) for one in record["tags"])
    return Outcome(Prediction(record["image"], tags), record.get("error"))
