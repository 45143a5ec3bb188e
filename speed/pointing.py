"""Does the peak of a tag's map fall on what the tag names? The pointing game, against chance.

    python speed/pointing.py RUN DATA [--images 300] [--threshold SCORE]

DATA is the run's data set, such as coco:PATH, or an annotation file in COCO's layout with boxes, whose images lie
where `mlcil` would look for them. With boxes, a hit is a peak inside a box of the class. Without, four test images
make a mosaic, and a hit is a peak in the one quarter that shows the class; classes in several quarters do not count.
Only tags that are right and reach the threshold (the stored ones, unless a score is given) are asked for. "Mass" is
the share of the map on the right place.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mlcil.core.errors import UserError
from mlcil.data.images import PRESENT, LabelledImages
from mlcil.data.pixels import MemoryPixels
from mlcil.data.sources import load
from mlcil.serving.explanation import explain
from mlcil.serving.loading import load as load_tagger
from mlcil.serving.places import enlarged, place_of
from mlcil.serving.tagger import Tagger, read_images

Masks = dict[str, NDArray[np.bool_]]  # by class name, (H, W), true where it is


class Scene(NamedTuple):
    """A picture uint8 (H, W, 3), and where each class of it is."""

    pixels: NDArray[np.uint8]
    places: Masks


class Outcome(NamedTuple):
    """What came of one tag."""

    session: int
    hit: bool
    mass: float
    chance: float  # share of the picture that is right


def mosaics(run: Tagger, test: LabelledImages, count: int) -> Iterator[Scene]:
    """Four test images to a picture, drawn without repetition by a fixed seed."""
    order = np.random.default_rng(0).permutation(len(test))[: 4 * count]
    size = run.config.settings.image_size
    for rows in order[: len(order) // 4 * 4].reshape(-1, 4):
        whole = test.pixels[rows] if test.pixels is not None else read_images(run, [Path(test.paths[n]) for n in rows])
        quarter = MemoryPixels(whole, size)[np.arange(4)]
        pixels = np.vstack([np.hstack([*quarter[:2]]), np.hstack([*quarter[2:]])])  # twice as large as it is scored
        present = test.labels[rows] == PRESENT  # (4, K)
        alone = np.flatnonzero(present.sum(axis=0) == 1)
        yield Scene(pixels, {test.classes[k]: _quarter(int(present[:, k].argmax()), size) for k in alone})


def _quarter(place: int, size: int) -> NDArray[np.bool_]:
    mask = np.zeros((2, size, 2, size), bool)
    mask[place // 2, :, place % 2] = True
    return mask.reshape(2 * size, 2 * size)


def boxed(run: Tagger, file: Path, count: int) -> Iterator[Scene]:
    """The first images, by name, of an annotation file whose entries have boxes."""
    content = json.loads(file.read_text())
    if not all("bbox" in entry for entry in content["annotations"]):
        raise UserError(f"{file} has annotations without bbox; give the data set instead, for mosaics")
    names = {entry["id"]: entry["name"] for entry in content["categories"]}
    folder = file.parent.parent / file.stem.removeprefix("instances_")
    for entry in sorted(content["images"], key=lambda one: one["file_name"])[:count]:
        pixels = read_images(run, [folder / entry["file_name"]])[0]
        scale, places = len(pixels) / np.array([entry["width"], entry["height"]] * 2), Masks()
        for one in (one for one in content["annotations"] if one["image_id"] == entry["id"]):
            left, top, width, height = np.array(one["bbox"]) * scale
            mask = places.setdefault(names[one["category_id"]], np.zeros(pixels.shape[:2], bool))
            mask[int(top) : int(np.ceil(top + height)), int(left) : int(np.ceil(left + width))] = True
        yield Scene(pixels, places)


def outcomes(run: Tagger, scene: Scene, threshold: float | None) -> Iterator[Outcome]:
    """One for every tag that the model gives and the scene can judge."""
    for tag in explain(run, scene.pixels, threshold, most=len(run.classes)).tags:
        if not tag.is_present or tag.name not in scene.places:
            continue
        right, place = scene.places[tag.name], place_of(tag.map)
        if place is None:
            yield Outcome(tag.session, False, 0.0, float(right.mean()))
            continue
        large, (x, y) = enlarged(tag.map, len(right)), place.peak
        hit = bool(right[int(y * len(right)), int(x * len(right))])
        yield Outcome(tag.session, hit, float(large[right].sum() / large.sum()), float(right.mean()))


def measure(run: Tagger, data: str, images: int, threshold: float | None) -> list[Outcome]:
    """The outcomes of all tags, in mosaics of the data set or in the boxes of an annotation file."""
    if data.endswith(".json"):
        scenes = boxed(run, Path(data), images)
    else:
        scenes = mosaics(run, load(data).test.with_classes(run.classes), images)
    return [one for scene in scenes for one in outcomes(run, scene, threshold)]


def table_of(found: list[Outcome], title: str) -> Table:
    """The rates of every session and of all."""
    table = Table("session", "tags", "hit", "mass", "chance", title=title)
    for number in (*sorted({one.session for one in found}), None):
        some = [one for one in found if number in (None, one.session)]
        rates = [100 * float(np.mean([row[place] for row in some])) for place in range(1, 4)]
        table.add_row(str(number or "all"), str(len(some)), *(f"{rate:.1f}" for rate in rates))
    return table


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--threshold", type=float)
    asked = parser.parse_args()
    try:
        found = measure(load_tagger(asked.run), asked.data, asked.images, asked.threshold)
    except UserError as error:
        raise SystemExit(f"pointing: {error}") from None
    Console(width=100).print(table_of(found, f"{asked.run}, percent") if found else "no tag could be judged")


if __name__ == "__main__":
    main()
