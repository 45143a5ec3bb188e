"""The tags of a photo, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Tag(NamedTuple):
    """A label that a photo may have."""

    name: str
    score: float  # as the model gives it, in 0..1
    probability: float  # the score after calibration; the same where the model's own scores are calibrated
    threshold: float  # the label counts as present if the score is above


@dataclass(frozen=True)
class Prediction:
    """The tags of one photo, the most probable first."""

    image: str
    tags: tuple[Tag, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The labels alone."""
        return tuple(tag.name for tag in self.tags)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per tag: `pandas.DataFrame([row for one in predictions for row in one.rows()])`."""
        return [{"image": self.image, **tag._asdict()} for tag in self.tags]
