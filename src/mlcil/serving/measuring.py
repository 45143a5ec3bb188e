"""How well each label is given, on photos whose labels are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation.metrics import Floats, average_precision
from .records import LabelFacts
from .tagger import Tagger

FEWEST = 5  # photos with and without a label


def measured(tagger: Tagger, scores: NDArray[Any], labels: NDArray[np.int8], words: str) -> list[LabelFacts]:
    """The facts about the labels that can be measured on these photos, with what was measured.

    Figures from a handful of photos say little, so they do not replace any that the label has already.

    Arguments:
        scores: (N, K), as the tagger gives them.
        labels: int8 (N, K): 1 present, 0 absent, -1 unknown.
        words: what the photos are.
    """
    ap, precision, recall = quality(scores, labels, tagger.thresholds)
    return [
        one.with_figures(percent(ap[k]), percent(precision[k]), percent(recall[k]), words)
        for k, one in enumerate(tagger.labels)
        if not np.isnan(ap[k]) and (one.ap is None or _fewest(labels[:, k]) >= FEWEST)
    ]


def _fewest(labels: NDArray[np.int8]) -> int:
    """The photos that show a label or those that do not, whichever are fewer."""
    return min(int((labels == 1).sum()), int((labels == 0).sum()))


def quality(scores: NDArray[Any], labels: NDArray[np.int8], thresholds: Floats) -> tuple[Floats, Floats, Floats]:
    """AP, precision and recall of each label, each (K,) in 0..1.

    NaN where nothing can be said: without a photo that shows the label and one that does not, and the precision of a
    label that was given to no photo.
    """
    is_known, is_present = labels >= 0, labels == 1
    claimed = (scores > thresholds) & is_known
    hit = (claimed & is_present).sum(axis=0)
    tells = is_present.any(axis=0) & (labels == 0).any(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, which is meant
        precision, recall = hit / claimed.sum(axis=0), hit / is_present.sum(axis=0)
    ap = average_precision(scores, labels)
    made = (np.where(tells, value, np.nan) for value in (ap, precision, recall))
    return next(made), next(made), next(made)


def expected_quality(scores: NDArray[Any], probabilities: Floats, thresholds: Floats) -> tuple[Floats, Floats, Floats]:
    """AP, precision and recall to expect of each label, each (K,) in 0..1, where only probabilities are known.

    Arguments:
        scores: (N, K), which rank the photos and are compared with the thresholds (K,).
        probabilities: (N, K), of each label on each photo.
    """
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=0)
    above = np.cumsum(ranked, axis=0) - ranked  # positives to expect among those that rank higher
    places = np.arange(1, len(scores) + 1)[:, None]
    given, total = scores > thresholds, np.maximum(probabilities.sum(axis=0), 1e-300)
    hit = (probabilities * given).sum(axis=0)
    ap = (ranked * (above + 1) / places).sum(axis=0) / total  # if a photo shows the label, it is one of the hits
    with np.errstate(invalid="ignore"):  # the precision of a label that no photo gets
        return ap, hit / given.sum(axis=0), hit / total


def percent(value: float) -> float | None:
    """A share in percent, None for NaN."""
    return None if np.isnan(value) else 100 * float(value)
