"""Teach a tagger your own photos: some labels first, more labels later, without going back to the first photos.

    python examples/own_photos.py                          # two made-up tables of digits; seconds
    python examples/own_photos.py first.csv more.csv       # your photos; minutes, no GPU needed

A table has one row per photo: `path` (relative to the table) and `labels`, separated by semicolons. The second table
labels its photos for its own labels only.
"""

import csv
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import mlcil


def make_tables(folder: Path) -> tuple[Path, Path]:
    """Write 300 pictures of two handwritten digits each, and two tables: one about 0 and 1, one about 2 and 3."""
    digits = load_digits()
    keep = np.flatnonzero(digits.target < 4)
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    tables = folder / "first.csv", folder / "more.csv"
    for table, labels, numbers in zip(tables, ((0, 1), (2, 3)), (range(150), range(150, 300)), strict=True):
        with table.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["path", "labels"])
            for number in numbers:
                pair = random.choice(keep, size=2)
                pixels = np.hstack([digits.images[one] for one in pair]) * 16  # (8, 16), 0..255
                picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                picture.resize((32, 32)).convert("RGB").save(folder / f"{number}.png")
                shown = sorted(set(digits.target[pair]) & set(labels))
                rows.writerow([f"{number}.png", ";".join(f"digit {one}" for one in shown)])
    return tables


def main() -> None:
    """Learn twice, then tag one photo."""
    if len(sys.argv) > 2:
        first, more = Path(sys.argv[1]), Path(sys.argv[2])
        options = {}  # the closed form on a backbone whose weights are downloaded once
    else:
        first, more = make_tables(Path("runs/own-photos-data"))
        options = {"backbone": "small_conv", "settings": {"image_size": 32}}  # tiny pictures need no weights

    tagger = mlcil.Tagger.start(str(first), **options)
    report = tagger.learn(str(more))
    for label in tagger.labels:
        print(f"{label.name}: AP {label.ap:.1f} on {label.measured}")
    print(f"learned {', '.join(report.labels)} in {report.seconds:.1f} seconds")

    shutil.rmtree("runs/own-photos", ignore_errors=True)  # `save` never overwrites anything
    tagger.save("runs/own-photos")

    # The folder is all that is needed to tag another photo, now or later.
    with more.open(newline="") as stream:
        photo = more.parent / next(csv.DictReader(stream))["path"]
    for tag in mlcil.Tagger.load("runs/own-photos").predict(photo, top=3)[0].tags:
        print(f"{photo.name}: {tag.name} {tag.probability:.2f}")


if __name__ == "__main__":
    main()
