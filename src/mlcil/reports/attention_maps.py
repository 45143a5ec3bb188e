"""Drawings of attention maps: for image files, and for a few test images of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..core.errors import UserError
from ..data.decoding import BadImage, decode, inspect, read_content, resized
from ..data.images import PRESENT
from ..data.sources import load
from ..serving.explanation import MOST, check_has_maps, explain
from ..serving.loading import load as load_tagger
from ..serving.tagger import Tagger, read_images
from ..training.prepare import open_contents
from .explanation_drawing import draw
from .style import free_name, save_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def explain_files(
    run_path: Path,
    images: Sequence[Path],
    out: Path,
    session: int | None = None,
    threshold: float | None = None,
    most: int = MOST,
) -> list[Path]:
    """Draw the maps of image files, one PNG each.

    Arguments:
        out: the folder to write to; the picture of x.jpg is called x-explained.png.
        session: use the model after this session; None for the last one.
        threshold: draw tags with at least this score; None for the thresholds stored with the model, or 0.8.
        most: the maximum number of tags.

    Returns:
        The files written, in the order of `images`.

    Raises:
        UserError: the run or an image cannot be read; nothing is written then.
    """
    run = load_tagger(run_path, session)
    check_has_maps(run)
    pixels = read_images(run, images)
    taken: set[str] = set()
    files = [out / f"{free_name(image.stem, taken)}-explained.png" for image in images]
    if own := {file.resolve() for file in files} & {image.resolve() for image in images}:
        raise UserError(f"{own.pop()} is one of the images and would be overwritten; choose another --out")
    for image, picture, file in zip(images, pixels, files, strict=True):
        shown = _in_proportion(picture, image, run.config.settings.megapixels)
        explanation = replace(explain(run, picture, threshold, most), pixels=shown)
        figure = draw(explanation, f"{image.name} after session {run.session}")
        save_png(figure, file, dpi=figure.dpi)
    return files


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
        name = Path(path).name
        caption = f"{name} after session {run.session}; true labels: {', '.join(labels)}"
        drawings.append((caption, draw(explain(run, pixels), name)))
    return drawings


def _in_proportion(square: NDArray[np.uint8], file: Path, megapixels: float) -> NDArray[np.uint8]:
    """The square picture (size, size, 3), stretched to the proportions of its file unless they are extreme."""
    header = inspect(str(file), read_content(str(file)), megapixels)
    aspect = min(max(header.height / header.width, 0.5), 1.5)
    size = len(square)
    shape = (size, round(size * aspect)) if aspect < 1 else (round(size / aspect), size)  # width, height
    return np.asarray(Image.fromarray(square).resize(shape, Image.Resampling.BICUBIC))


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
