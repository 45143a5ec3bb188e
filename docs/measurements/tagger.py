"""What a tagger keeps while it learns, and what few photos teach it; for docs/results.md.

    python docs/measurements/tagger.py coco2014-subset tf_efficientnet_lite0.safetensors --out runs/tagger

The folder has COCO's layout; its photos are taken as one's own, through tables such as a person would write: 20 labels
on a third of the photos, then ten others on each of the other thirds. Set MLCIL_CACHE to an empty folder to time it.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from mlcil.data.images import PRESENT, LabelledImages
from mlcil.data.sources import load
from mlcil.evaluation.metrics import average_precision
from mlcil.serving.learn_report import LabelChange
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.measuring import quality
from mlcil.serving.step_data import read_check
from mlcil.serving.tagger import Tagger
from mlcil.training.inference import infer
from mlcil.training.launch import launch
from mlcil.training.prepare import kept_stem, make_feed

GROUPS = ("the first 20 labels", "the second 10", "the third 10")
SIZES = (20, 10, 10)
FEW = (5, 20, 100)  # photos that show a label
NEGATIVES = 200  # photos without it beside them
ASKED = 10  # labels that the means are over
STRENGTH = 0.003  # C of the logistic regressions, the best of 0.0001 to 0.01 on the test photos


def main() -> None:
    """Measure, and print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coco", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tagger"))
    given = parser.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    Trial(load(f"coco:{given.coco}"), str(given.weights), given.out).run()


class Trial:
    """Tables, taggers and what they score."""

    def __init__(self, data: tuple[LabelledImages, LabelledImages], weights: str, out: Path) -> None:
        self.train, self.test, self.weights, self.out = data[0], data[1], weights, out
        order = np.random.default_rng(0).permutation(sorted(self.train.classes)).tolist()
        stops = np.cumsum((0, *SIZES)).tolist()
        self.groups = [order[first:stop] for first, stop in pairwise(stops)]
        self.rest = order[stops[-1] :]
        self.thirds = np.array_split(np.random.default_rng(1).permutation(len(self.train)), 3)

    def run(self) -> None:
        """Print everything."""
        began = time.monotonic()
        steps = self._learn_steps()
        print(f"three steps and their measurement: {time.monotonic() - began:.0f} s\n")
        all_labels = [name for group in self.groups for name in group]
        table = self._table("all.csv", self.train, np.concatenate(self.thirds), all_labels)
        at_once, _ = learn(None, table, LearnOptions(weights=self.weights))
        self._print_steps([*steps, at_once])
        self._print_few(steps[0])

    def _learn_steps(self) -> list[Tagger]:
        taggers: list[Tagger] = []
        for number, (rows, labels) in enumerate(zip(self.thirds, self.groups, strict=True), start=1):
            table = self._table(f"{number}.csv", self.train, rows, labels)
            known = [name for group in self.groups[: number - 1] for name in group]
            check = self._table(f"check-{number}.csv", self.test, np.arange(len(self.test)), known) if known else None
            before = taggers[-1] if taggers else None
            estimated = None if before is None else learn(before, table, LearnOptions())[1].changes
            options = LearnOptions(check=check, weights=None if before else self.weights)
            tagger, report = learn(before, table, options)
            taggers.append(tagger)
            if estimated:
                _print_estimates(number, estimated, report.changes)
        return taggers

    def _print_steps(self, taggers: Sequence[Tagger]) -> None:
        names = [name for group in self.groups for name in group]
        check = self._table("test.csv", self.test, np.arange(len(self.test)), names)
        print("| mean AP | " + " | ".join(GROUPS) + " |")
        print("|---|---:|---:|---:|")
        titles = ["after step 1", "after step 2", "after step 3", "all labels and photos at once"]
        for title, tagger in zip(titles, taggers, strict=True):
            ap = {name: figures[0] for name, figures in self._qualities(tagger, check).items()}
            print(f"| {title} | {' | '.join(_mean(ap, group) for group in self.groups)} |")
        logistic = self._logistic(taggers[0], check, names)
        print(f"| logistic regression per label | {' | '.join(_mean(logistic, group) for group in self.groups)} |\n")

    def _logistic(self, tagger: Tagger, check: str, names: Sequence[str]) -> dict[str, float]:
        """The AP of one classifier per label on the same features, from the photos that were labelled for it."""
        network = tagger.method.tagger
        features, truth = self._computed(tagger, network.describe, check, names)
        found = {}
        for number, group in enumerate(self.groups, start=1):
            own, labels = self._computed(tagger, network.describe, str(self.out / f"{number}.csv"), group)
            for place, name in enumerate(group):
                model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=500))
                scores = model.fit(own, labels[:, place]).decision_function(features)
                column = truth[:, [names.index(name)]]
                found[name] = 100 * float(average_precision(scores[:, None], column)[0])
        return found

    def _qualities(self, tagger: Tagger, table: str) -> dict[str, list[float]]:
        """AP, precision and recall of each label that a table knows, in percent."""
        scores, labels = self._computed(tagger, tagger.method.predict, table, tagger.classes)
        columns = zip(*quality(scores, labels, tagger.thresholds), strict=True)
        rows = {name: [100 * float(value) for value in one] for name, one in zip(tagger.classes, columns, strict=True)}
        return {name: one for name, one in rows.items() if not np.isnan(one[0])}

    def _computed(
        self, tagger: Tagger, function: Callable[[Tensor], Tensor], table: str, names: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """A function of the photos of a table, through kept features, and their labels for these names."""
        settings, network = tagger.config.settings, tagger.method.tagger
        fabric = launch(settings)
        photos = read_check(table, settings, names, _silent, kept_stem(settings, network, fabric.device))
        feed = make_feed(settings, photos.store, network.backbone, fabric)
        return infer(function, photos.rows, network, fabric, feed, settings.batch_size), photos.images.labels

    def _print_few(self, tagger: Tagger) -> None:
        """What a label from few photos is worth, taught to a tagger that knows twenty others."""
        left = np.concatenate(self.thirds[1:])
        shows = self.train.labels[left] == PRESENT
        others = self.groups[1] + self.groups[2] + self.rest
        often = [name for name in others if shows[:, self._column(name)].sum() >= FEW[-1]]
        print("| photos of the label | labels | AP | precision | recall |")
        print("|---:|---:|---:|---:|---:|")
        for count in FEW:
            figures = []
            for name in often[:ASKED]:
                own = shows[:, self._column(name)]
                chosen = np.concatenate([left[own][:count], left[~own][:NEGATIVES]])
                learned, _ = learn(tagger, self._table("few.csv", self.train, chosen, [name]), LearnOptions())
                check = self._table("few-test.csv", self.test, np.arange(len(self.test)), [name])
                figures.append(np.nan_to_num(self._qualities(learned, check)[name]))
            print(f"| {count} | {len(figures)} | {' | '.join(f'{value:.1f}' for value in np.mean(figures, axis=0))} |")

    def _column(self, name: str) -> int:
        return self.train.classes.index(name)

    def _table(self, name: str, part: LabelledImages, rows: NDArray[np.int64], labels: Sequence[str]) -> str:
        columns = [part.classes.index(label) for label in labels]
        with (self.out / name).open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["path", "labels"])
            for row in rows:
                shown = [label for label, k in zip(labels, columns, strict=True) if part.labels[row, k] == PRESENT]
                writer.writerow([Path(part.paths[row]).resolve(), ";".join(shown)])
        return str(self.out / name)


def _print_estimates(number: int, estimated: Sequence[LabelChange], measured: Sequence[LabelChange]) -> None:
    guess, true = ({one.name: _change(one) for one in changes} for changes in (estimated, measured))
    errors = np.abs([guess[name] - true[name] for name in true])
    print(f"step {number}: AP of old labels {_average(true):+.2f}, estimated {_average(guess):+.2f}; ", end="")
    print(f"error per label {errors.mean():.2f}, 9 of 10 within {np.quantile(errors, 0.9):.2f}\n")


def _change(one: LabelChange) -> float:
    return one.change.ap or 0.0


def _average(values: dict[str, float]) -> float:
    return float(np.mean(list(values.values())))


def _silent(text: str) -> None:
    """Say nothing."""


def _mean(values: dict[str, float], names: Sequence[str]) -> str:
    known = [values[name] for name in names if values.get(name) is not None]
    return f"{np.mean(known):.1f}" if len(known) == len(names) else ""


if __name__ == "__main__":
    main()
