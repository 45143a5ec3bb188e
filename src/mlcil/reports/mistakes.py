"""An evaluation as files: its figures, and a page that shows the worst mistakes as pictures."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.escaping import csv_line
from ..core.files import write_folder, write_json, write_text
from ..core.words import counted, listed
from ..data.decoding import BadImage, decode_to_fit, made_to_fit
from ..serving.evaluating import WORST, Evaluation, LabelMistakes, LabelResult, Mistake
from .page import template

LABELS = 20  # labels whose mistakes are shown
PICTURES = 160  # on a page, at about 20 kB each
LONGEST = 320  # pixels on the longer side of a picture
QUALITY = 72  # of the JPEG
FIGURES = {  # what to call the overall figures, and what they say
    "mAP": ("Mean AP", "how well photos with a label are ranked before those without, averaged over the labels"),
    "precision": ("Precision", "of the tags that were given, so many are right"),
    "recall": ("Recall", "of the labels that the photos show, so many were found"),
    "F1": ("F1", "precision and recall in one number"),
    "ECE": ("Calibration error", "how far the probabilities are from the true shares, on average"),
}


HEADINGS = ("photos with it", "without it", "threshold", "AP", "precision", "recall", "wrong tags", "missed")


class Embedded(NamedTuple):
    """A picture inside a page; without a source if it cannot be shown."""

    source: str
    width: int
    height: int


class Shown(NamedTuple):
    """A mistake on the page."""

    name: str  # of the file
    path: str
    score: float
    picture: Embedded


class Shelf(NamedTuple):
    """The mistakes of a label on the page."""

    result: LabelResult
    wrong: list[Shown]
    missed: list[Shown]


def write_evaluation(evaluation: Evaluation, out: Path) -> Path:
    """Write a new folder with metrics.json, labels.csv and the page index.html, whole or not at all.

    Returns:
        The page.

    Raises:
        UserError: something is there already, or it cannot be written.
    """
    page = page_of(evaluation)

    def fill(folder: Path) -> None:
        write_json(folder / "metrics.json", as_values(evaluation))
        write_text(folder / "labels.csv", labels_csv(evaluation))
        write_text(folder / "index.html", page)

    write_folder(out, fill)
    return out / "index.html"


def as_values(evaluation: Evaluation) -> dict[str, object]:
    """The figures of an evaluation for JSON; all but counts, scores and thresholds are in percent."""
    return {
        "tagger": evaluation.tagger,
        "data": evaluation.source,
        "photos": len(evaluation.photos),
        "seen_before": evaluation.seen,
        "left_out": list(evaluation.bad),
        "labels_unknown_to_the_tagger": list(evaluation.unknown_labels),
        "labels_not_in_the_data": list(evaluation.other_labels),
        "overall": evaluation.overall,
        "labels": evaluation.rows(),
    }


def labels_csv(evaluation: Evaluation) -> str:
    """The results as CSV, a label per line."""
    return "".join([csv_line(LabelResult._fields), *(csv_line(one) for one in evaluation.results)])


def remarks(evaluation: Evaluation) -> Iterator[str]:
    """What a reader of the figures must know about them, in whole sentences without a full stop."""
    if evaluation.seen:
        yield f"{_are(evaluation.seen, evaluation)} among those that the tagger learned from, which flatters it"
    if evaluation.unknown_labels:
        yield f"not measured, as the tagger does not know them: {listed(evaluation.unknown_labels, 12)}"
    if evaluation.other_labels:
        yield f"not measured, as {evaluation.source} does not mention them: {listed(evaluation.other_labels, 12)}"


def _are(number: int, evaluation: Evaluation) -> str:
    return f"{number} of the {counted(len(evaluation.photos), 'photo')} {'is' if number == 1 else 'are'}"


def page_of(evaluation: Evaluation) -> str:
    """The page: HTML that needs no other file."""
    mistakes = evaluation.mistakes(WORST)
    shown = mistakes[:LABELS]
    return template("mistakes.html").render(
        evaluation=evaluation,
        title=f"{Path(evaluation.tagger).name} on {evaluation.source}",
        headings=HEADINGS,
        shown_of=_shown_of,
        lead=f"Measured on {counted(len(evaluation.photos), 'photo')} of {evaluation.source}, "
        f"for {counted(len(evaluation.results), 'label')}.",
        remarks=list(remarks(evaluation)),
        figures=[(*FIGURES[name], value) for name, value in evaluation.overall.items()],
        shelves=_shelves(evaluation, shown, most_shown(shown)),
        unshown=[one.result for one in mistakes[LABELS:]],
    )


def _shown_of(shown: int, all_of_them: int) -> str:
    return str(shown) if shown == all_of_them else f"{shown} of {all_of_them}"


def most_shown(mistakes: Sequence[LabelMistakes]) -> int:
    """How many mistakes of each kind a label is shown with, so that the page does not grow too large."""
    kinds = [len(kind) for one in mistakes for kind in (one.wrong, one.missed)]
    fitting = (most for most in range(WORST, 1, -1) if sum(min(most, kind) for kind in kinds) <= PICTURES)
    return next(fitting, 1)


def _shelves(evaluation: Evaluation, mistakes: Sequence[LabelMistakes], most: int) -> list[Shelf]:
    made: dict[int, Embedded] = {}  # a photo may be wrong for several labels

    def show(mistake: Mistake) -> Shown:
        if mistake.photo not in made:
            made[mistake.photo] = embedded(evaluation.pictures[mistake.photo])
        path = evaluation.photos[mistake.photo]
        return Shown(Path(path).name or path, path, mistake.score, made[mistake.photo])

    return [Shelf(one.result, *([*map(show, kind[:most])] for kind in one[1:])) for one in mistakes]


def embedded(picture: str | NDArray[np.uint8]) -> Embedded:
    """A small copy of a picture, a file or pixels (H, W, 3), as a data URI; empty if the file is gone by now."""
    try:  # whatever its size: it has been scored
        small = decode_to_fit(picture, LONGEST, math.inf) if isinstance(picture, str) else _fitting(picture)
    except BadImage:
        return Embedded("", 0, 0)
    small.info.clear()  # a comment in the file is nobody's business
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=QUALITY, optimize=True)
    text = base64.b64encode(stream.getvalue()).decode()
    return Embedded(f"data:image/jpeg;base64,{text}", small.width, small.height)


def _fitting(pixels: NDArray[np.uint8]) -> Image.Image:
    return made_to_fit(Image.fromarray(pixels), LONGEST)
