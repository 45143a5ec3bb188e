"""What scores mean, from sums alone: two Gaussians of one variance, images with a class and without."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .ridge import Solution
from .sums import Sums

ABSENT = -30.0  # the logit of a class that nothing is known of
SMALLEST_VARIANCE = 1e-12
SMALLEST_GAP = 0.1  # between images with a class and without, in deviations; little known, scores still keep an order
REACH = 4.0  # deviations beyond the means within which thresholds are looked for
STEPS = 801


class ScoreModel(NamedTuple):
    """How the scores of new images are expected to lie, for each of K classes; all (K,) float64."""

    high: Tensor  # mean score of images that show the class
    low: Tensor  # of those that do not
    deviation: Tensor  # of both
    share: Tensor  # of images that show it
    seen: Tensor  # bool, whether there was any

    @classmethod
    def empty(cls) -> ScoreModel:
        """Of no class."""
        nothing = torch.empty(0, dtype=torch.float64)
        return cls(nothing, nothing, nothing, nothing, torch.empty(0, dtype=torch.bool))

    @property
    def slope(self) -> Tensor:
        """sigmoid(slope s + offset) is the probability of a class with score s."""
        return torch.where(self.seen, (self.high - self.low) / self.deviation**2, 1.0)

    @property
    def offset(self) -> Tensor:
        """See `slope`."""
        prior = torch.log(self.share / (1 - self.share))
        return torch.where(self.seen, prior - self.slope * (self.high + self.low) / 2, ABSENT)

    def best_thresholds(self) -> Tensor:
        """Scores above which a class counts as present: where the expected F1 is highest; infinite if never seen."""
        tried = self._ladder()
        recall, precision = self.expected(tried)
        f1 = 2 * recall * precision / (recall + precision).clamp(min=1e-300)
        is_best = (f1 >= f1.amax(0) - 1e-9).double()  # of a plateau, as between scores far apart, the middle
        return torch.where(self.seen, (tried * is_best).sum(0) / is_best.sum(0), math.inf)

    def thresholds_for(self, precision: float) -> Tensor:
        """The lowest scores above which so large a part of the tags is expected to be right; infinite if there is none.

        Arguments:
            precision: between 0 and 1.
        """
        tried = self._ladder()
        is_enough = self.expected(tried)[1] >= precision  # precision rises with the threshold
        found = torch.where(is_enough, tried, math.inf).amin(0)
        return torch.where(self.seen, found, math.inf)

    def expected(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Recall and precision to expect at thresholds (..., K), each (..., K)."""
        # Beyond 30 deviations nothing changes but the time: numbers near the smallest of float64 take long.
        recall = torch.special.ndtr(((self.high - thresholds) / self.deviation).clamp(max=30))
        wrong = torch.special.ndtr(((self.low - thresholds) / self.deviation).clamp(min=-30))
        found = self.share * recall
        return recall, found / (found + (1 - self.share) * wrong).clamp(min=1e-300)

    def expected_ap(self) -> Tensor:
        """(K,) the average precision to expect, in 0..1: the area below precision over recall; NaN if never seen."""
        recall, precision = self.expected(self._ladder())  # recall falls along the ladder
        area = ((precision[1:] + precision[:-1]) / 2 * (recall[:-1] - recall[1:])).sum(0)
        return torch.where(self.seen, area.clamp(max=1.0), math.nan)

    def _ladder(self) -> Tensor:
        """(STEPS, K) thresholds from where everything is above to where nothing is."""
        steps = torch.linspace(0, 1, STEPS, dtype=torch.float64)[:, None]
        lowest, highest = self.low - REACH * self.deviation, self.high + REACH * self.deviation
        return lowest + (highest - lowest) * steps


def score_model(sums: Sums, solution: Solution) -> ScoreModel:
    """How new images will score.

    An image of the sums had a part in its own score, `Solution.freedom`, which a new image has not; the means are
    corrected for it.
    """
    count = sums.images
    share = (sums.positives / count).clamp(1e-12, 1 - 1e-9)
    # The mean of all scores is the share of positives, because the constant is free.
    present = (solution.weights * sums.cross).sum(0) / sums.positives.clamp(min=1e-12)
    absent = (share - share * present) / (1 - share)
    within = solution.squares / count - share * (1 - share) * (present - absent) ** 2
    others = 1 - min(solution.freedom, 0.99)  # what a score owes to other images
    high, low = 1 - (1 - present) / others, absent / others
    deviation = (within / others**2).clamp(min=SMALLEST_VARIANCE).sqrt()
    high = torch.maximum(high, low + SMALLEST_GAP * deviation)
    return ScoreModel(high, low, deviation, share, sums.positives > 0)
