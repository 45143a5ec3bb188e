"""Pseudo labels: which old classes does the old model see in a new image?

Dynamic pseudo labels (DPL; KRT, section 3.2) have one threshold for all classes, moved until the mean number of labels
per image meets a target. Recall by class (HCP and KBK) has a threshold for each, read off the images that taught it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..data.images import PRESENT, UNKNOWN

TOLERANCE = 0.1  # on the mean number of pseudo labels; KRT, algorithm 1
LOWEST, HIGHEST = 1e-4, 0.999999  # bounds of the threshold; authors' code


class Threshold(NamedTuple):
    """The outcome of the search."""

    value: float  # scores above it become pseudo labels
    mean_count: float  # pseudo labels per image at this threshold
    met: bool  # whether `mean_count` is within the tolerance of the target


def find_threshold(
    scores: NDArray[np.floating],
    target: float,
    start: float = 0.8,
    step: float = 0.01,
    tolerance: float = TOLERANCE,
) -> Threshold:
    """The threshold that KRT's algorithm 1 walks to, from one pass of scores.

    The walk starts at `start` and moves by `step`, up while there are too many pseudo labels and down
    while there are too few, until their mean number per image is within `tolerance` of `target`. Its end
    is found by bisection, since counts fall as thresholds rise. Where the walk would swing for ever
    between two points or run out of bounds, the threshold whose count comes closest is taken instead.

    Arguments:
        scores: (N, K_old), the old model's probabilities.
        target: the mean number of pseudo labels per image to reach.
    """
    going_up = _mean_count(scores, start) > target

    def is_met_or_passed(threshold: float) -> bool:
        count = _mean_count(scores, threshold)
        return abs(count - target) <= tolerance or (count <= target) == going_up

    walk = _walk(start, step if going_up else -step)
    steps = min(bisect_left(walk, True, key=is_met_or_passed), len(walk) - 1)
    count = _mean_count(scores, walk[steps])
    if abs(count - target) <= tolerance:
        return Threshold(walk[steps], count, True)
    value, count = _closest(scores, target)
    return Threshold(value, count, abs(count - target) <= tolerance)


def _walk(start: float, step: float) -> list[float]:
    """All points of a walk in one direction within the bounds."""
    points = [start]
    while LOWEST <= (after := points[-1] + step) <= HIGHEST:
        points.append(after)  # summed up step by step, as the algorithm does
    return points


def _mean_count(scores: NDArray[np.floating], threshold: float) -> float:
    """Pseudo labels per image at a threshold."""
    # A plain float would be rounded to the precision of the scores before the comparison.
    return float(np.count_nonzero(scores > np.float64(threshold)) / len(scores))


def _closest(scores: NDArray[np.floating], target: float) -> tuple[float, float]:
    """The score (or bound) that, as a threshold, gives the mean count nearest to the target, and that count."""
    ranked = np.sort(scores, axis=None).astype(np.float64)
    inside = ranked[np.searchsorted(ranked, LOWEST, side="right") : np.searchsorted(ranked, HIGHEST)]
    candidates = np.concatenate([[LOWEST], inside, [HIGHEST]])

    def count_at(place: int) -> float:
        return float((len(ranked) - np.searchsorted(ranked, candidates[place], side="right")) / len(scores))

    passed = bisect_left(range(len(candidates)), True, key=lambda place: count_at(place) <= target)
    near = range(max(passed - 2, 0), min(passed + 1, len(candidates)))
    best = min(near, key=lambda place: abs(count_at(place) - target))  # of equals the lowest
    return float(candidates[best]), count_at(best)


@dataclass(frozen=True)
class ClassRecall:
    """How sure the model is of each class where it is known to be (HCP, recall enhancement; KBK adds entropy)."""

    confidence: Tensor  # (K,) mean probability over the class's positives; NaN before there was one
    entropy: Tensor  # (K,) mean binary entropy, in nats, over the same images
    count: Tensor  # (K,) how many they were

    @classmethod
    def empty(cls) -> ClassRecall:
        """Of no class yet."""
        return cls(torch.empty(0), torch.empty(0), torch.empty(0))

    def refreshed(self, scores: Tensor, positives: Tensor) -> ClassRecall:
        """With the model and images of one more session; a class without a positive there stays as it was.

        Arguments:
            scores: (N, K) probabilities of all classes seen so far.
            positives: bool (N, K), the true labels of new classes and the accepted pseudo labels of old ones.
        """
        scores, weight = scores.float(), positives.float()
        count = weight.sum(0)
        seen = count > 0
        means = [(value * weight).sum(0) / count.clamp(min=1) for value in (scores, binary_entropy(scores))]
        before = (self.confidence, self.entropy, self.count)
        found = zip((*means, count), before, (math.nan, math.nan, 0.0), strict=True)
        added = len(seen) - len(self.count)
        return ClassRecall(*(torch.where(seen, new, F.pad(old, (0, added), value=fill)) for new, old, fill in found))

    def accepts(self, scores: Tensor, gate: bool = True) -> Tensor:
        """Which classes an image is taken to show: bool (B, K) from probabilities (B, K).

        Arguments:
            gate: also ask that the entropy is not above that of the positives.
        """
        confidence, entropy = (one.to(scores.device, non_blocking=True) for one in (self.confidence, self.entropy))
        sure = scores >= confidence  # never where it is NaN
        return sure & (binary_entropy(scores) <= entropy) if gate else sure


def binary_entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of present or absent, elementwise, 0 at 0 and 1."""
    entropy: Tensor = torch.special.entr(probabilities) + torch.special.entr(1 - probabilities)
    return entropy


def fill_unknown(labels: Tensor, pseudo: Tensor) -> Tensor:
    """Fill the unknown labels of old classes, in (B, K), with pseudo labels, bool (B, K_old)."""
    old = labels[:, : pseudo.shape[1]]
    filled = torch.where(old == UNKNOWN, pseudo.to(labels.dtype), old)
    return torch.cat([filled, labels[:, pseudo.shape[1] :]], dim=1)


def rate_per_image(labels: NDArray[np.int8]) -> float | None:
    """Labels of a session's classes to expect in an image that was not collected for them; None if nothing tells.

    Where some of the session's images show none of its classes, the rate is their mean number of labels. As published,
    all of them have at least one. If labels fall independently, their number is Poisson with rate r, and given that it
    is not zero its mean is r / (1 - exp(-r)); this solves for r. A single class then always has the mean 1, which
    says nothing. Only what the session may see is used.

    Arguments:
        labels: (N, n) of the session's own classes.
    """
    mean = float((labels == PRESENT).sum() / len(labels))
    if not (labels == PRESENT).any(axis=1).all():
        return mean
    if labels.shape[1] == 1:
        return None
    low, high = 0.0, mean
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < mean * -math.expm1(-middle) else (low, middle)
    return low
