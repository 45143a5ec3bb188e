"""Teach a tagger your own photos: some tags first, more tags later, without going back to the first photos.

    python examples/own_photos.py                                      # a made-up table of digits; under a minute
    python examples/own_photos.py labels.csv 'cat,dog|sofa,chair'      # your photos; minutes, no GPU needed

The table has one row per photo: `path` (relative to the table) and `labels`, separated by semicolons. Without a `split`
column about a fifth of the photos become the test set. The second argument names the tags of each session.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import mlcil


def make_table(folder: Path) -> Path:
    """Write 300 pictures that show two handwritten digits each, and the table that lists them."""
    digits = load_digits()
    keep = np.flatnonzero(digits.target < 4)
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "labels.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["path", "labels"])
        for number in range(300):
            pair = random.choice(keep, size=2)
            pixels = np.hstack([digits.images[one] for one in pair]) * 16  # (8, 16), 0..255
            picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            picture.resize((32, 32)).convert("RGB").save(folder / f"{number}.png")
            names = sorted({f"digit {digits.target[one]}" for one in pair})
            table.writerow([f"{number}.png", ";".join(names)])
    return folder / "labels.csv"


def main() -> None:
    """Train in two sessions, then tag one photo."""
    if len(sys.argv) > 2:
        table, tags = Path(sys.argv[1]), sys.argv[2]
        # A backbone trained on photographs; its weights are downloaded once. `analytic` never trains it.
        network = {"method": "analytic", "backbone": "mobilenetv2_100", "weights": "pretrained", "image_size": 224}
    else:
        table, tags = make_table(Path("runs/own-photos-data")), "digit 0,digit 1|digit 2,digit 3"
        # Tiny pictures need no pretrained weights: a small network learns them from scratch.
        network = {"method": "krt", "image_size": 32, "width": 64, "epochs": 8, "batch_size": 16, "augment": "none"}
        network |= {"base_lr": 3e-3, "lr": 2e-3, "token_weight": 20.0}

    result = mlcil.run(data=f"table:{table}", protocol=tags, out="runs/own-photos", **network)
    for session in result.sessions:
        print(f"after session {session.session}: mAP {session.metrics['mAP']:.1f} over {', '.join(session.classes)}")

    # The run folder is all that is needed to tag another photo, now or later.
    with table.open(newline="") as stream:
        photo = table.parent / next(csv.DictReader(stream))["path"]
    trained = mlcil.load("runs/own-photos")
    (scores,) = trained.predict([photo])  # a score for each of the K classes
    for name, score in sorted(zip(trained.classes, scores, strict=True), key=lambda pair: -pair[1]):
        print(f"{photo.name}: {name} {score:.2f}")


if __name__ == "__main__":
    main()
