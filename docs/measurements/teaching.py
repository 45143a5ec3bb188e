"""What marks are worth: labels taught by clicking, in a real browser, on photographs of MS-COCO; for docs/teaching.md.

    python docs/measurements/teaching.py coco2014-subset tf_efficientnet_lite0.safetensors --out runs/teaching

A tagger learns 40 labels from 2,000 training photographs. Two labels that it does not know are taught on the page of
`mlcil teach` over 2,000 others, as a person would: four examples are picked, then rows are confirmed and wrong photos
clicked away; the truth stands in for the person. Ten labels are taught in the same way without a browser, for a curve
of AP over the number of marks, against marking at random. AP is measured on the test photographs, which nobody marked.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mlcil.evaluation.metrics import average_precision
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.tagger import Tagger
from mlcil.teaching.scoring import LabelScores
from mlcil.teaching.workbench import Workbench

TAUGHT = ("bicycle", "dog", "train", "pizza", "umbrella", "boat", "clock", "sheep", "laptop", "kite")
CLICKED = ("dog", "train")  # in the browser
KNOWN, PHOTOS = 40, 2000  # labels that the tagger learns first, and photographs of each part
EXAMPLES, BUDGET, STEP = 4, 25, 3  # marks: examples at first, in all, and from a row at a time
SEEDS = 3  # choices of the examples


def labelled(coco: Path, part: str) -> dict[str, set[str]]:
    """The labels of each photograph by its name."""
    found = json.loads((coco / "annotations" / f"instances_{part}2014.json").read_text())
    names = {one["id"]: one["name"] for one in found["categories"]}
    files = {one["id"]: one["file_name"] for one in found["images"]}
    labels: dict[str, set[str]] = {name: set() for name in files.values()}
    for one in found["annotations"]:
        labels[files[one["image_id"]]].add(names[one["category_id"]])
    return labels


def first_tagger(coco: Path, weights: str, train: dict[str, set[str]], names: list[str], out: Path) -> Path:
    """A tagger of 40 labels from the first photographs."""
    path = out / "tagger"
    if path.exists():
        return path
    known = [name for name in sorted(set.union(*train.values())) if name not in TAUGHT][:KNOWN]
    table = out / "first.csv"
    with table.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "labels"])
        writer.writerows([coco / "train2014" / name, ";".join(sorted(train[name] & set(known)))] for name in names)
    return learn(None, str(table), LearnOptions(weights=weights))[0].save(path)


def links(coco: Path, names: list[str], folder: Path) -> Path:
    """A folder with photographs, as links."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            os.link(coco / "train2014" / name, folder / name)
    return folder


def ap(scores: np.ndarray, truth: dict[str, set[str]], label: str) -> float:
    """Average precision of scores (N,) in percent."""
    present = np.array([label in labels for labels in truth.values()])
    return 100 * float(average_precision(scores[:, None], present[:, None].astype(np.int8))[0])


def promised(found: LabelScores, shown: np.ndarray) -> list[tuple[float, float, float, float]]:
    """For precision and recall of the tags: the figure that was expected, its bounds, and the true one."""
    right = float((found.is_tagged & shown).sum())
    true = right / max(found.is_tagged.sum(), 1), right / max(shown.sum(), 1)
    return [(*figure, one) for figure, one in zip(found.expectation.at(found.score_threshold), true, strict=True)]


def curve(
    bench: Workbench, label: str, truth: dict[str, set[str]], seed: int, test: Any, asks: bool
) -> tuple[list[float], list[tuple[float, float, float, float]]]:
    """AP on the test photographs after 4, 7, 10, ... marks of a label, by rows or at random; and what was promised."""
    draw = random.Random(seed)
    ids = {bench.photos.id(row): bench.photos.name(row) for row in range(len(bench.photos))}
    shown = sorted(photo for photo, name in ids.items() if label in truth[name])
    marked = draw.sample(shown, EXAMPLES)
    bench.mark(label, marked, [], [])
    found = []
    while True:
        _, scores, rows = bench.view(label)
        assert scores is not None
        assert rows is not None
        found.append(ap(test.features @ scores.weights, test.truth, label))
        if len(marked) >= BUDGET:
            names = [bench.photos.name(row) for row in range(len(scores.scores))]
            return found, promised(scores, np.array([label in truth[name] for name in names]))
        asked = [bench.photos.id(int(row)) for row in rows.likely[:STEP]]
        if not asks:
            asked = draw.sample(sorted(set(ids) - set(marked)), STEP)
        marked += asked
        yes = [photo for photo in asked if label in truth[ids[photo]]]
        bench.mark(label, yes, [photo for photo in asked if photo not in yes], [])


class Test:
    """The test photographs: their features (N, d), and their labels by name."""

    def __init__(self, tagger: Path, coco: Path, out: Path) -> None:
        self.truth = labelled(coco, "val")
        paths = [str(coco / "val2014" / name) for name in self.truth]
        bench = Workbench(Tagger.load(tagger), paths, out / "test.teach", "test photographs")
        bench.indexer.wait()
        row_of = {bench.photos.name(row): row for row in range(len(bench.photos))}
        # Two photographs with the same content have one row.
        self.truth = {name: labels for name, labels in self.truth.items() if name in row_of}
        self.features = bench.photos.features[[row_of[name] for name in self.truth]]
        bench.close()


def curves(tagger: Path, photos: list[str], truth: dict[str, set[str]], test: Test, out: Path) -> dict[str, Any]:
    """Mean curves over labels and seeds, by rows and at random."""
    work, found = out / "curves.teach", {}
    bench = Workbench(Tagger.load(tagger), photos, work, "photographs")
    bench.indexer.wait()
    for asks in (True, False):
        every, figures = [], []
        for label in TAUGHT:
            for seed in range(SEEDS):
                values, figure = curve(bench, label, truth, seed, test, asks)
                every.append(values)
                figures.append(figure)
                while bench.journal.done:
                    bench.undo()
        if asks:
            found["promised"] = summary(np.array(figures))
        found["rows" if asks else "random"] = np.mean(every, axis=0).round(1).tolist()
        found["rows, by label" if asks else "random, by label"] = {
            label: np.mean(every[place * SEEDS : (place + 1) * SEEDS], axis=0).round(1).tolist()
            for place, label in enumerate(TAUGHT)
        }
    bench.close()
    return found


def summary(figures: np.ndarray) -> dict[str, list[float]]:
    """Of figures (n, 2, 4): the mean that was promised, the true mean, the mean error, and how often bounds held."""
    value, low, high, true = np.moveaxis(figures, 2, 0)  # each (n, 2)
    held = ((low <= true) & (true <= high)).mean(axis=0)
    table = np.stack([value.mean(axis=0), true.mean(axis=0), np.abs(value - true).mean(axis=0), held], axis=1)
    return dict(zip(("precision", "recall"), table.round(2).tolist(), strict=True))


@contextmanager
def served(tagger: Path, photos: Path, work: Path) -> Iterator[str]:
    """The address of `mlcil teach`."""
    command = [sys.executable, "-m", "mlcil", "teach", str(tagger), str(photos), "--work", str(work), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield next(line.split()[1] for line in process.stdout if line.startswith("open "))
        finally:
            process.terminate()


def clicked(address: str, truth: dict[str, set[str]], out: Path) -> dict[str, Any]:
    """Teach labels on the page as a person would; returns marks and milliseconds by label."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        while not page.request.get(f"{address}api/state").json()["photos"]["is_done"]:
            time.sleep(1)
        found = {label: teach_by_clicks(page, label, truth) for label in CLICKED}
        page.screenshot(path=out / "taught.png")
        with page.expect_response("**/api/save") as answer:
            page.locator("#save").click()
            page.locator("#ask-ok").click()
        found["saved"] = answer.value.json()
        browser.close()
    return found


def teach_by_clicks(page: Any, label: str, truth: dict[str, set[str]]) -> dict[str, Any]:
    """Type a label, mark examples in the grid, then confirm rows; the time runs until the new rows are there."""
    page.locator("#label-box").fill(label)
    page.keyboard.press("Enter")
    times, marks = [], 0
    shown = sorted(name for name, labels in truth.items() if label in labels)
    for name in random.Random(1).sample(shown, EXAMPLES):
        page.locator("#search").fill(name)
        tile = page.locator(f'#grid [role=gridcell][title="{name}"]')
        tile.wait_for()
        times.append(timed_mark(page, tile.click))
        marks += 1
    page.locator("#search").fill("")
    while marks < BUDGET:
        page.mouse.move(640, 5)  # off the row, so that it takes the newest photos
        page.wait_for_timeout(700)
        tiles = page.locator("#row-likely [role=gridcell][data-id]")
        names = [tiles.nth(place).get_attribute("title") or "" for place in range(tiles.count())]
        for place, name in enumerate(names):
            if marks + place >= BUDGET:
                tiles.nth(place).hover()
                page.keyboard.press("u")  # says nothing about it
            elif label not in truth[name]:
                tiles.nth(place).click()  # deselects it
        times.append(timed_mark(page, page.locator("#confirm-likely").click))
        marks += min(len(names), BUDGET - marks)
    return {"marks": marks, "milliseconds": times}


def timed_mark(page: Any, act: Any) -> float:
    """Milliseconds from an act to the answer with the new rows."""
    with page.expect_response("**/api/mark") as answer:
        began = time.perf_counter()
        act()
    answer.value.finished()
    return 1000 * (time.perf_counter() - began)


def old_labels(before: Path, after: Path, test: Test) -> tuple[float, float, dict[str, float]]:
    """Mean AP of the labels that the tagger knew, before and after, and AP of the new ones."""
    tagger, taught = Tagger.load(before), Tagger.load(after)

    def of(one: Tagger, label: str) -> float:
        return ap(test.features @ one.method.tagger.weights[:, one.column(label)].numpy(), test.truth, label)

    means = [float(np.mean([of(one, label) for label in tagger.classes])) for one in (tagger, taught)]
    return means[0], means[1], {name: of(taught, name) for name in taught.classes if name not in tagger.classes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coco", type=Path)
    parser.add_argument("weights")
    parser.add_argument("--out", type=Path, default=Path("runs/teaching"))
    parser.add_argument("--no-browser", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    train = labelled(asked.coco, "train")
    names = random.Random(0).sample(sorted(train), 2 * PHOTOS)
    tagger = first_tagger(asked.coco, asked.weights, train, names[:PHOTOS], asked.out)
    truth = {name: train[name] for name in names[PHOTOS:]}
    photos = links(asked.coco, names[PHOTOS:], asked.out / "photos")
    test = Test(tagger, asked.coco, asked.out)
    found: dict[str, Any] = {}
    if not asked.no_browser:
        work = asked.out / "clicked.teach"
        with served(tagger, photos, work) as address:
            found["clicked"] = clicked(address, truth, asked.out)
        times = np.concatenate([found["clicked"][label]["milliseconds"] for label in CLICKED])
        print(f"from mark to new rows: median {np.median(times):.0f} ms, worst {times.max():.0f} ms")
        print(*found["clicked"]["saved"]["lines"], sep="\n")
        after = tagger.with_name(found["clicked"]["saved"]["name"])
        before_ap, after_ap, new = old_labels(tagger, after, test)
        print(f"AP of the {KNOWN} labels it knew: {before_ap:.2f} before, {after_ap:.2f} after")
        print("AP of the new ones:", {name: round(value, 1) for name, value in new.items()})
    found["curves"] = curves(tagger, [str(photos / name) for name in truth], truth, test, asked.out)
    print("marks ", list(range(EXAMPLES, BUDGET + STEP, STEP)))
    for name, values in found["curves"].items():
        print(name, values)
    (asked.out / "teaching.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
