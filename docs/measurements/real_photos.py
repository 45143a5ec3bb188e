"""Two measurements on photographs, for docs/results.md: turned copies, and photos that show none of the classes.

    python docs/measurements/real_photos.py coco2014-subset tf_efficientnet_lite0.safetensors --out runs/real-photos

The folder has COCO's layout; only its image-level labels are used, through tables such as a person would write.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

import mlcil
from mlcil.data.images import PRESENT, LabelledImages
from mlcil.data.sources import load
from mlcil.evaluation.metrics import average_precision

CLASSES = ("cat", "dog", "bicycle", "boat")
PROTOCOL = "cat,dog,bicycle|boat"  # the second session teaches a single class
TURNED = 200
WITHOUT = {"train": 400, "test": 200}  # photos that show none of the classes
ORIENTATION = 0x0112


def main() -> None:
    """Measure, and print two tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coco", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/real-photos"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    parts = load(f"coco:{given.coco}")
    table, without = write_table(given.out / "labels.csv", parts.train, parts.test)
    runs = {}
    for method in ("analytic", "krt"):
        for negatives in ("none", "labelled"):
            out = given.out / f"{method}-{negatives}"
            runs[method, negatives] = train(method, negatives, table, given.weights, out)
    print_negatives(runs, parts.test, without)
    print_turned(runs["analytic", "labelled"], parts.test, given.out / "turned")


def write_table(file: Path, train: LabelledImages, test: LabelledImages) -> tuple[Path, list[str]]:
    """All photos that show one of the classes and some that show none; returns the table and the latter's test part."""
    aside: list[str] = []
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "labels", "split"])
        for part in (train, test):
            labels = part.with_classes(CLASSES).labels
            empty = np.flatnonzero(~(labels == PRESENT).any(axis=1))
            chosen = set(np.random.default_rng(0).permutation(empty)[: WITHOUT[part.split]].tolist())
            for row, path in enumerate(part.paths):
                names = ";".join(np.array(CLASSES)[labels[row] == PRESENT])
                if names or row in chosen:
                    writer.writerow([Path(path).resolve(), names, part.split])
            if part.split == "test":
                aside = [part.paths[row] for row in sorted(chosen)]
    return file, aside


def train(method: str, negatives: str, table: Path, weights: Path, out: Path) -> Any:
    """A run with or without the photos that show none of the classes."""
    settings: dict[str, Any] = {"protocol": PROTOCOL, "negatives": negatives, "weights": str(weights), "seed": 0}
    settings |= {"backbone": "tf_efficientnet_lite0", "freeze": "all", "keep_features": True, "augment": "none"}
    if method == "krt":
        settings |= {"epochs": 12, "batch_size": 32, "base_lr": 1e-3, "lr": 1e-3, "validation": 0.15, "width": 128}
    mlcil.run(method, f"table:{table}", out, console=Console(), **settings)
    return mlcil.load(out)


def tags(run: Any, paths: list[str]) -> NDArray[np.bool_]:
    """bool (N, K), which classes the model tags at its stored thresholds."""
    return np.asarray(run.scores(paths) > run.thresholds)


def print_negatives(runs: dict[tuple[str, str], Any], test: LabelledImages, without: list[str]) -> None:
    """How many photos without any class are tagged, and at what recall."""
    truth = test.with_classes(CLASSES)
    shown = np.flatnonzero((truth.labels == PRESENT).any(axis=1))
    paths = [test.paths[row] for row in shown]
    columns = [CLASSES.index(name) for name in next(iter(runs.values())).classes]
    is_there = truth.labels[shown][:, columns] == PRESENT
    print(
        f"\n| method | negatives | tagged, of {len(without)} without a class | with boat | recall | precision | mAP |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
    every, labels = paths + without, np.concatenate([is_there, np.zeros((len(without), len(CLASSES)), bool)])
    for (method, negatives), run in runs.items():
        wrong, found = tags(run, without), tags(run, paths)
        recall = (found & is_there).sum() / is_there.sum()
        precision = (found & is_there).sum() / max(found.sum() + wrong.sum(), 1)
        boat = wrong[:, run.classes.index("boat")].sum()
        ap = 100 * average_precision(run.scores(every), labels.astype(np.int8)).mean()
        row = f"{wrong.any(axis=1).sum()} | {boat} | {recall:.2f} | {precision:.2f} | {ap:.1f}"
        print(f"| {method} | {negatives} | {row} |")


def print_turned(run: Any, test: LabelledImages, folder: Path) -> None:
    """The tags of photos stored as a phone stores them, read with their orientation and without."""
    truth = test.with_classes(run.classes)
    rows = np.flatnonzero((truth.labels == PRESENT).any(axis=1))[:TURNED]
    upright = [test.paths[row] for row in rows]
    copies = {name: stored_turned(upright, folder / name, name) for name in ("lossless", "jpeg", "without orientation")}
    wanted, is_there = tags(run, upright), truth.labels[rows]
    print(f"\n| {len(rows)} photos | with the same tags | mAP | AP of cat |")
    print("|---|---:|---:|---:|")
    for name, paths in {"upright": upright, **copies}.items():
        ap = 100 * average_precision(run.scores(paths), is_there)
        same = (tags(run, paths) == wanted).all(axis=1).sum()
        print(f"| {name} | {same} | {np.nanmean(ap):.1f} | {ap[run.classes.index('cat')]:.1f} |")


def stored_turned(paths: list[str], folder: Path, kind: str) -> list[str]:
    """Copies whose pixels lie on their side, with the EXIF orientation 6 that turns them back, or without it."""
    folder.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if kind != "without orientation":
        exif[ORIENTATION] = 6
    written = []
    for path in paths:
        file = folder / f"{Path(path).stem}.{'jpg' if kind == 'jpeg' else 'png'}"
        if not file.exists():
            with Image.open(path) as image:
                image.convert("RGB").transpose(Image.Transpose.ROTATE_90).save(file, exif=exif, quality=95)
        written.append(str(file))
    return written


if __name__ == "__main__":
    main()
