"""How long `mlcil teach` takes from a mark to new rows, for folders of several sizes.

    python speed/teaching.py TAGGER PHOTOS

The photos are looked at once; larger folders are made of their features with some noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from mlcil.serving.photo_lists import list_photos
from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench
from mlcil.web import teach_views

SIZES = (2000, 5000, 20_000)
MARKS = 20  # of three photos each


def grow(bench: Workbench, size: int) -> None:
    """Add photos until there are so many."""
    rng, features = np.random.default_rng(0), bench.photos.features.copy()
    while len(bench.photos) < size:
        row = len(bench.photos)
        noisy = features[row % len(features)] + rng.normal(size=features.shape[1], scale=0.1).astype(np.float32)
        noisy[-1] = 1
        bench.photos.add(f"{row}.jpg", rng.bytes(16), (640, 480), noisy)


def measured(bench: Workbench, label: str) -> list[float]:
    """Milliseconds from each mark to the answer with the new rows, as text."""
    rng, times = np.random.default_rng(1), []
    bench.mark(label, [bench.photos.id(int(row)) for row in rng.choice(len(bench.photos), 4, replace=False)], [], [])
    for _ in range(MARKS):
        _, _, rows = bench.view(label)
        assert rows is not None
        photos = [bench.photos.id(int(row)) for row in rows.likely[:3]]
        began = time.perf_counter()
        bench.mark(label, photos[:2], photos[2:], [])
        json.dumps(teach_views.view(bench, label))
        times.append(1000 * (time.perf_counter() - began))
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tagger")
    parser.add_argument("photos", nargs="+")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Tagger.load(asked.tagger), list_photos(asked.photos), Path(folder) / "work", "photos")
        bench.indexer.wait()
        print("| photos | median, ms | worst, ms |\n|---:|---:|---:|")
        for size in SIZES:
            grow(bench, size)
            bench.scorer.told(bench.book.labels[bench.tagger.classes[0]])  # takes the new photos in
            times = measured(bench, f"new {size}")
            print(f"| {len(bench.photos):,} | {statistics.median(times):.0f} | {max(times):.0f} |")
        bench.close()


if __name__ == "__main__":
    main()
