"""A tagger of tiny pictures, and tables to teach and to measure it with."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mlcil.serving.learning import LearnOptions, learn

PARTS = {  # table -> its pictures, and the digits that they were looked at for; a and b share pictures
    "a": (range(80), (0, 1)),
    "b": (range(60, 140), (2, 3)),
    "c": (range(140, 200), (0, 1, 2, 3)),
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """The tests of a file share a cache of their own, and leave that of the user alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def digit_tables(tmp_path_factory) -> Path:
    """A folder with a.csv, b.csv and c.csv, and their pictures 0.png, ..., which show two handwritten digits each."""
    folder = tmp_path_factory.mktemp("digits")
    digits = load_digits()
    keep = np.flatnonzero(digits.target < 4)
    pairs = np.random.default_rng(0).choice(keep, (200, 2))
    for number, pair in enumerate(pairs):
        pixels = np.hstack([digits.images[one] for one in pair]) * 16  # (8, 16), 0..255
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        picture.resize((32, 32)).convert("RGB").save(folder / f"{number}.png")
    for name, (numbers, wanted) in PARTS.items():
        shown = ((number, sorted(set(digits.target[pairs[number]]) & set(wanted))) for number in numbers)
        rows = [(f"{number}.png", ";".join(f"digit {one}" for one in ones)) for number, ones in shown]
        write_rows(folder / f"{name}.csv", rows)
    return folder


@pytest.fixture(scope="session")
def digit_tagger(digit_tables, tmp_path_factory) -> Path:
    """The folder of a tagger that has learned digit 0 and digit 1 from a.csv."""
    folder = tmp_path_factory.mktemp("tagger")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(folder / "cache"))
        options = LearnOptions(backbone="small_conv", settings={"image_size": 32, "threads": 1})
        tagger, _ = learn(None, str(digit_tables / "a.csv"), options)
    return tagger.save(folder / "digits")


def write_rows(file: Path, rows, headings=("path", "labels")) -> str:
    """Write a table; returns its name."""
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([headings, *rows])
    return str(file)
