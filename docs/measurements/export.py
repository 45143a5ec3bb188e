"""How near an exported model is to its tagger, on photographs; for docs/results.md.

    python docs/measurements/export.py coco2014-subset tf_efficientnet_lite0.safetensors \\
        deit_tiny_patch16_224.safetensors

For each weight file, which is named after its timm model, `analytic`, `krt` and plain heads (`ft`) learn four labels
from 400 photographs of a folder in COCO's layout; the tagger and its ONNX model then score 200 others.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession

from mlcil import Tagger
from mlcil.data.images import PRESENT, LabelledImages
from mlcil.data.sources import load
from mlcil.serving.export import export_onnx

LABELS = ("person", "car", "dog", "bottle")
LEARNED, SCORED, TOGETHER = 400, 200, 20
TRAINED = {"epochs": 1, "freeze": "all", "keep_features": True}


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coco", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    given = parser.parse_args()
    data = load(f"coco:{given.coco}")
    print("| method | backbone | largest difference | tags that differ | model, MB |")
    print("|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        table = write_table(Path(folder) / "labels.csv", data.train)
        for file in given.weights:
            for method in ("analytic", "krt", "ft"):
                settings = {} if method == "analytic" else TRAINED
                tagger = Tagger.start(table, method=method, weights=str(file), settings=settings)
                out = Path(folder) / f"{method}-{file.stem}" / "model.onnx"
                print(f"| {method} | {file.stem} | {compared(tagger, out, data.test)} |", flush=True)


def write_table(file: Path, images: LabelledImages) -> str:
    """The first photos with any of the labels."""
    chosen = images.with_classes(LABELS)
    rows = np.flatnonzero((chosen.labels == PRESENT).any(axis=1))[:LEARNED]
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", *LABELS])
        writer.writerows([Path(chosen.paths[row]).resolve(), *chosen.labels[row]] for row in rows)
    return str(file)


def compared(tagger: Tagger, file: Path, images: LabelledImages) -> str:
    """The largest difference of a probability, the number of tags that differ, and the size of the model."""
    report = export_onnx(tagger, file)
    session = InferenceSession(file)
    pixels = np.stack([tagger.square(path) for path in images.paths[:SCORED]])
    parts = [pixels[start : start + TOGETHER] for start in range(0, SCORED, TOGETHER)]
    ours = np.concatenate([tagger.probabilities(tagger.score_pixels(part)) for part in parts])
    theirs = np.concatenate([session.run(None, {"images": part})[0] for part in parts])
    limit = tagger.probabilities(tagger.thresholds[None].astype(np.float32))[0]
    differing = int(((ours > limit) != (theirs > limit)).sum())
    return f"{np.abs(ours - theirs).max():.1e} | {differing} | {report.size / 1e6:.1f}"


if __name__ == "__main__":
    main()
