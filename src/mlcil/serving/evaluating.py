"""How well a tagger does on photos whose labels are known, and its worst mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.progress import Show
from ..core.words import counted, listed
from ..data.images import ABSENT, PRESENT, UNKNOWN, Finding
from ..evaluation.metrics import Floats, Measurement, calibration_error, f1_scores, mean_ap
from ..training.prepare import Say, open_contents
from .measuring import percent, quality
from .predicting import score_readable
from .step_data import in_columns, pictures_of, read_known
from .tagger import Tagger

WORST = 8  # mistakes of each kind that a label is shown with


class LabelResult(NamedTuple):
    """How well one label is given; AP, precision and recall in percent, None where nothing can be said."""

    name: str
    positives: int  # photos with it
    negatives: int  # photos without it
    threshold: float  # the label counts as given if the score is above
    ap: float | None
    precision: float | None  # of the photos that got it, those that show it
    recall: float | None  # of the photos that show it, those that got it
    wrong: int  # photos that got it and do not show it
    missed: int  # photos that show it and did not get it


class Mistake(NamedTuple):
    """A photo that a label was wrongly given to, or that it was missed on."""

    photo: int  # its place in `Evaluation.photos`
    score: float


class LabelMistakes(NamedTuple):
    """The worst mistakes with one label."""

    result: LabelResult
    wrong: tuple[Mistake, ...]  # the highest score first
    missed: tuple[Mistake, ...]  # the lowest score first


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How well a tagger does on N photos, for the K labels that both the tagger and the table know.

    Attributes:
        tagger: what was evaluated, in words.
        source: the table, or whatever the labels came from.
        photos: the names of the photos.
        pictures: the photos themselves: their files, or pixels (H, W, 3) of those that exist only in memory.
        scores: float32 (N, K), as the tagger gives them.
        labels: int8 (N, K): 1 present, 0 absent, -1 unknown.
        results: one for each of the K labels, in the order of the columns.
        overall: "mAP", the mean AP over the labels that have one; "precision", "recall" and "F1" at the thresholds,
            from counts pooled over all labels; "ECE", the expected calibration error of the probabilities. All in
            percent, None where nothing can be said.
        unknown_labels: of the table that the tagger does not know.
        other_labels: that the tagger knows and the table does not mention.
        bad: one line for each photo that cannot be read and was left out.
        seen: the number of photos that the tagger is known to have learned from.
        findings: what the owner of the table should know.
    """

    tagger: str
    source: str
    photos: tuple[str, ...]
    pictures: Sequence[str] | Sequence[NDArray[np.uint8]]
    scores: NDArray[np.float32]
    labels: NDArray[np.int8]
    results: tuple[LabelResult, ...]
    overall: dict[str, float | None]
    unknown_labels: tuple[str, ...] = ()
    other_labels: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    seen: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def thresholds(self) -> Floats:
        """(K,) scores above which a label was given."""
        return np.array([one.threshold for one in self.results], np.float64)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per label: `pandas.DataFrame(evaluation.rows())`."""
        return [one._asdict() for one in self.results]

    def mistakes(self, most: int = WORST) -> list[LabelMistakes]:
        """The worst mistakes of each label, at most so many of each kind; the labels with most mistakes first."""
        wrong, missed = mistaken(self.scores, self.labels, self.thresholds)
        found = [
            LabelMistakes(one, self._worst(k, wrong[:, k], -1, most), self._worst(k, missed[:, k], 1, most))
            for k, one in enumerate(self.results)
            if one.wrong + one.missed
        ]
        return sorted(found, key=lambda one: -(one.result.wrong + one.result.missed))

    def _worst(self, column: int, is_mistake: NDArray[np.bool_], sign: int, most: int) -> tuple[Mistake, ...]:
        rows = np.flatnonzero(is_mistake)
        scores = self.scores[rows, column]
        order = np.argsort(sign * scores, kind="stable")[:most]
        return tuple(Mistake(int(rows[place]), float(scores[place])) for place in order)

    def __repr__(self) -> str:
        texts = (f"{name} {value:.1f}" for name, value in self.overall.items() if value is not None)
        what = f"{counted(len(self.results), 'label')} on {counted(len(self.photos), 'photo')} of {self.source}"
        return f"Evaluation of {what}: {', '.join(texts) or 'nothing measured'}"


def evaluate(
    tagger: Tagger,
    data: str,
    images: str | None = None,
    say: Say = lambda text: None,
    show: Show = lambda done, total: None,
) -> Evaluation:
    """Measure how well a tagger gives the labels of a table.

    Every row of the table was looked at for the labels of that table, whatever its split: a row without one of them
    is its negative, and `-x` denies x. Of a data set with published parts, the test images are taken. Photos that say
    nothing about a label that the tagger knows do not count, and those that cannot be read are left out.

    Arguments:
        data: the table, or any data set that `mlcil datasets` lists.
        images: the folder to which the paths in the table are relative; None for the table's own.
        say: called with a line about the reading of files.
        show: called with how many photos of how many are scored.

    Raises:
        UserError: the data cannot be read, or have none of the tagger's labels.
    """
    known = read_known(data, images, open_contents(tagger.config.settings, say))
    columns = _shared_columns(tagger, known.images.classes, data)
    names = [tagger.classes[k] for k in columns]
    photos = in_columns(known.images, names)
    photos = photos.subset(np.flatnonzero((photos.labels != UNKNOWN).any(axis=1)))
    places, scores, bad = score_readable(tagger, pictures_of(photos), show)
    photos = photos.subset(places)
    thresholds, own = tagger.thresholds[columns], scores[:, columns]
    return Evaluation(
        str(tagger.path or f"a tagger of {counted(len(tagger.labels), 'label')}"),
        Path(data).name or data,
        photos.paths,
        pictures_of(photos),
        own,
        photos.labels,
        label_results(names, own, photos.labels, thresholds),
        overall_figures(own, photos.labels, thresholds, tagger.probabilities(scores)[:, columns]),
        tuple(name for name in known.images.classes if name not in names),
        tuple(name for name in tagger.classes if name not in names),
        bad,
        tagger.count_seen(photos.fingerprints),
        known.findings,
    )


def label_results(
    names: Sequence[str], scores: NDArray[Any], labels: NDArray[np.int8], thresholds: Floats
) -> tuple[LabelResult, ...]:
    """The results of K labels.

    Arguments:
        scores: (N, K).
        labels: (N, K) of 1, 0 or -1.
        thresholds: (K,).
    """
    counts = [(labels == value).sum(axis=0).tolist() for value in (PRESENT, ABSENT)]
    shares = [[percent(value) for value in column] for column in quality(scores, labels, thresholds)]
    faults = [one.sum(axis=0).tolist() for one in mistaken(scores, labels, thresholds)]
    return tuple(LabelResult(*row) for row in zip(names, *counts, thresholds.tolist(), *shares, *faults, strict=True))


def overall_figures(
    scores: NDArray[Any], labels: NDArray[np.int8], thresholds: Floats, probabilities: Floats
) -> dict[str, float | None]:
    """The figures of all labels together, see `Evaluation.overall`.

    Arguments:
        scores, probabilities: (N, K).
        labels: (N, K) of 1, 0 or -1.
        thresholds: (K,).
    """
    ap = 100 * quality(scores, labels, thresholds)[0]
    hits = int(((scores > thresholds) & (labels == PRESENT)).sum())
    wrong, missed = (int(one.sum()) for one in mistaken(scores, labels, thresholds))
    found = dict(mean_ap(Measurement(scores, labels, ap[:, None])))
    found["precision"] = 100 * hits / (hits + wrong) if hits + wrong else None
    found["recall"] = 100 * hits / (hits + missed) if hits + missed else None
    found["F1"] = 100 * f1_scores(scores, labels, thresholds).of1 if hits + wrong + missed else None
    error = dict(calibration_error(Measurement(probabilities, labels, ap[:, None])))
    return found | {"ECE": error["ECE"] if (labels >= 0).any() else None}


def mistaken(
    scores: NDArray[Any], labels: NDArray[np.int8], thresholds: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a label was given to a photo that does not show it, and where it was missed, both bool (N, K)."""
    is_given = scores > thresholds
    return is_given & (labels == ABSENT), ~is_given & (labels == PRESENT)


def _shared_columns(tagger: Tagger, classes: Sequence[str], data: str) -> list[int]:
    columns = [k for k, name in enumerate(tagger.classes) if name in classes]
    if not columns:
        its = f"its labels are {listed(classes)}" if classes else "it has no label at all"
        raise UserError(f"{data} has no label that the tagger knows: {its}; the tagger knows {listed(tagger.classes)}")
    return columns
