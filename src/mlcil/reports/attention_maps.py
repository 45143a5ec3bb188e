"""Drawings of attention maps: for image files, and for a few test images of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.errors import UserError
from ..data.decoding import BadImage, decode, decode_to_fit, resized
from ..data.images import PRESENT
from ..data.sources import load
from ..serving.explanation import MOST, ExplainedTag, Explanation, check_has_maps, explain
from ..serving.loading import load as load_tagger
from ..serving.places import place_of
from ..serving.tagger import Tagger
from ..training.prepare import open_contents
from .explanation_drawing import LONGEST, draw
from .style import free_name, save_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ON_PAGE = 720  # pixels of the longer side of a photo on a report page


class Explained(NamedTuple):
    """What came of one image file: its explanation and the drawing of it, or why it cannot be read."""

    image: Path | str
    explanation: Explanation | None
    drawing: Path
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The tags and their places as plain values; coordinates are parts of the photo's width and height."""
        assert self.explanation is not None
        return {
            "path": str(self.image),
            "drawing": str(self.drawing),
            "tags": [_tag_values(tag) for tag in self.explanation.tags],
        }


def explain_files(
    run_path: str | Path,
    images: Sequence[Path | str],
    out: Path,
    session: int | None = None,
    threshold: float | None = None,
    most: int = MOST,
) -> Iterator[Explained]:
    """Explain image files one after another and draw each to a PNG. A file that cannot be read stops no other.

    Arguments:
        run_path, images: paths or URLs.
        out: the folder to write to; the drawing of x.jpg is called x-explained.png.
        session: use the model after this session; None for the last one.
        threshold: take tags with at least this score; None for the thresholds stored with the model, or 0.8.
        most: the maximum number of tags.

    Returns:
        What came of each file, in the order of `images`.

    Raises:
        UserError: the run cannot be read, or a drawing not written.
    """
    run = load_tagger(run_path, session)
    check_has_maps(run)
    taken: set[str] = set()
    files = [out / f"{free_name(Path(image).stem, taken)}-explained.png" for image in images]
    if own := {file.resolve() for file in files} & {Path(image).resolve() for image in images}:
        raise UserError(f"{own.pop()} is one of the images and would be overwritten; choose another --out")
    return (_explain_file(run, image, file, threshold, most) for image, file in zip(images, files, strict=True))


def _explain_file(run: Tagger, image: Path | str, drawing: Path, threshold: float | None, most: int) -> Explained:
    settings = run.config.settings
    try:
        pixels = decode(str(image), settings.image_size, settings.megapixels)
        photo = np.asarray(decode_to_fit(str(image), LONGEST, settings.megapixels))
    except BadImage as error:
        return Explained(image, None, drawing, str(error))
    explanation = explain(run, pixels, threshold, most, photo)
    figure = draw(explanation)
    save_png(figure, drawing, dpi=figure.dpi)
    return Explained(image, explanation, drawing)


def _tag_values(tag: ExplainedTag) -> dict[str, Any]:
    place = place_of(tag.map)
    return {
        "name": tag.name,
        "score": round(tag.score, 4),
        "threshold": round(tag.threshold, 4),
        "present": tag.is_present,
        "box": None if place is None else [round(value, 4) for value in place.box],
        "peak": None if place is None else [round(value, 4) for value in place.peak],
    }


def pick_test_images(run: Tagger, count: int) -> list[tuple[str, NDArray[np.uint8], tuple[str, ...]]]:
    """A few test images of the run's own data. The choice does not depend on the model.

    Images with two to four labels from several sessions come first, and each image shows as many classes as possible
    that the ones before it did not show.

    Returns:
        For each image its path, its pixels uint8 (size, size, 3) and its true labels among the run's classes.

    Raises:
        UserError: the data cannot be read, or no test image shows a class of the run.
    """
    settings = run.config.settings
    contents = open_contents(settings, say=lambda text: None)  # the index of the run, which knows the files
    test = load(settings.data, settings.images, contents).test.with_classes(run.classes)
    present = test.labels == PRESENT  # (N, K)
    sessions = np.array([run.session_of(column) for column in range(len(run.classes))])
    chosen: list[tuple[str, NDArray[np.uint8], tuple[str, ...]]] = []
    for row in _by_variety(present, sessions):
        try:
            if test.pixels is None:
                picture = decode(test.paths[row], settings.image_size, settings.megapixels)
            else:
                picture = resized(Image.fromarray(test.pixels[row]), settings.image_size)
        except BadImage:
            continue  # the run may have skipped it too
        chosen.append((test.paths[row], picture, tuple(run.classes[column] for column in np.flatnonzero(present[row]))))
        if len(chosen) == count:
            return chosen
    if not chosen:
        raise UserError(f"run {run.path}: no test image of {settings.data} can be read and shows a class of the run")
    return chosen


def maps_for_report(run_path: Path, count: int) -> list[tuple[str, Figure]]:
    """Drawings of a few test images of a run, each with a caption.

    Raises:
        UserError: the run has no maps, or its data cannot be read.
    """
    run = load_tagger(run_path)
    check_has_maps(run)
    drawings = []
    for path, pixels, labels in pick_test_images(run, count):
        caption = f"{Path(path).name} after session {run.session}; true labels: {', '.join(labels)}"
        has_file = Path(path).is_file()  # images of a built-in data set have none
        photo = np.asarray(decode_to_fit(path, ON_PAGE, run.config.settings.megapixels)) if has_file else None
        drawings.append((caption, draw(explain(run, pixels, photo=photo), ON_PAGE)))
    return drawings


def _by_variety(present: NDArray[np.bool_], sessions: NDArray[np.int64]) -> Iterator[int]:
    """Rows of `present` (N, K), the most varied first; classes that an earlier row shows count less."""
    labels = present.sum(axis=1)
    spread = np.array([len(set(sessions[row])) for row in present])  # (N,) sessions whose classes an image shows
    rank = 100 * ((labels >= 2) & (labels <= 4)) + 100 * np.minimum(spread, 2)
    left, shown = np.flatnonzero(labels), np.zeros(present.shape[1], bool)
    while len(left):
        fresh = (present[left] & ~shown).sum(axis=1).clip(max=4)
        best = int(left[np.argmax(rank[left] + fresh)])  # the first of equals
        yield best
        shown |= present[best]
        left = left[left != best]
