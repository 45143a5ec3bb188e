"""A whole second session, from image files to mAP: KRT against its literal form, and with frozen stages.

Decoding, pseudo labels, epochs and evaluation, each side in its own way from the same weights after session 1. The
literal side decodes every image in every epoch and asks the old model anew at every move of the threshold. `make speed`
runs this on made-up photographs; `--data coco:FOLDER --weights FILE` takes real ones.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inputs import photograph
from literal import LiteralTagger, literal_losses, literal_optimiser, literal_scores, read_batch
from measure import Job, Ratio, Worker, report
from scores import literal_threshold
from sklearn.metrics import average_precision_score

from mlcil.core.randomness import Stream, derive_seed
from mlcil.core.state import State, part_of
from mlcil.data.images import PRESENT, DataSet, LabelledImages
from mlcil.data.loading import plan_epoch
from mlcil.data.sources import load
from mlcil.methods.base import LOSS_SCALE, frozen_copy
from mlcil.methods.krt import KRT
from mlcil.methods.pseudo_labels import TOLERANCE
from mlcil.training.config import RunConfig, make_config
from mlcil.training.optimiser import set_rate
from mlcil.training.prepare import prepare_data, prepare_method, read_data
from mlcil.training.run import run
from mlcil.training.states import load_state

CLASSES, EPOCHS, BATCH = 10, 2, 16


def made_up(folder: Path, count: int) -> DataSet:
    """Photographs of nothing with labels of 20 classes; what a class looks like is left to chance."""
    generator, parts = np.random.default_rng(0), []
    names = tuple(f"class {number:02d}" for number in range(2 * CLASSES))
    for split, images in (("train", 2 * count), ("test", count)):
        paths = [photograph(folder / f"{split}{one}.jpg", 640, 480, one) for one in range(images)]
        labels = (generator.random((images, len(names))) < 0.15).astype(np.int8)
        labels[np.arange(images), generator.integers(0, len(names), images)] = PRESENT
        parts.append(LabelledImages(tuple(str(one) for one in paths), labels, names, split))
    return DataSet(*parts)


def table_of(data: DataSet, file: Path, count: int) -> list[str]:
    """Write a table of about so many images per session, half as many to test on; returns its classes."""
    names = list(data.train.classes[: 2 * CLASSES])
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "split", *names])
        for images, split in ((data.train, "train"), (data.test, "test")):
            labels = images.with_classes(names).labels == PRESENT
            each = count // CLASSES if split == "train" else count // (2 * CLASSES)
            rows = np.unique(np.concatenate([np.flatnonzero(column)[:each] for column in labels.T]))
            for row in rows:
                writer.writerow([images.paths[row], split, *labels[row].astype(int)])
    return names


def settings(table: Path, names: list[str], options: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """Of the run that both sides do."""
    protocol = ",".join(names[:CLASSES]) + "|" + ",".join(names[CLASSES:])
    values = {"data": f"table:{table}", "protocol": protocol, "backbone": options.backbone, "weights": options.weights}
    values |= {"epochs": EPOCHS, "batch_size": BATCH, "augment": "none", "base_lr": 1e-3, "lr": 1e-4}
    return values | {"options": {"labels_per_image": 2.9, "threshold": 0.5}} | changes


def our_session(values: dict[str, Any], out: str) -> Job:
    """A run into an empty folder with an empty cache, less its first session; nothing else counts as ours."""
    numbers = iter(range(1000))

    def job() -> float:
        folder = Path(out) / str(next(numbers))
        began = time.perf_counter()
        run(make_config(values | {"cache": str(folder / "cache")}), folder / "run")
        return time.perf_counter() - began - session_seconds(folder / "run", 1)

    return job


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """What a run noted."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def session_seconds(folder: Path, number: int) -> float:
    """The wall clock of a session."""
    return next(one["session_seconds"] for one in lines_of(folder) if one["session"] == number and "mAP" in one)


def epoch_seconds(folder: Path, number: int) -> float:
    """The mean wall clock of an epoch of a session."""
    done = [one for one in lines_of(folder) if one["session"] == number and "losses" in one]
    return float(done[-1]["seconds"]) / len(done)


def literal_session(values: dict[str, Any], first: str, told: str) -> Job:
    """The second session as it is usually written, from the state after the first."""

    def job() -> None:
        config = make_config(values | {"cache": None})
        found = LiteralSession(config, Path(first)).run()
        Path(told).write_text(json.dumps(found))

    return job


class LiteralSession:
    """The second session, spelled out.

    Arguments:
        config: of the run.
        first: the state file after session 1.
    """

    def __init__(self, config: RunConfig, first: Path) -> None:
        self.settings = config.settings
        whole = read_data(config.settings, lambda text: None)
        data = prepare_data(whole, config.settings, lambda text: None)
        self.session, self.test = data.protocol.sessions()[1], data.protocol.data.test
        self.paths = [data.protocol.data.train.paths[row] for row in self.session.indices]
        made, _ = prepare_method(config, data.total_classes)
        assert isinstance(made, KRT)
        tensors, values = load_state(first)
        made.load_state(State(part_of(tensors, "method."), values["method"]))
        made.teacher = frozen_copy(made.tagger)
        torch.manual_seed(derive_seed(Stream.BEFORE_SESSION, config.settings.seed, 2))  # as a run does, for what is new
        made.tagger.grow(CLASSES)
        made.tagger.freeze_old_sessions()
        self.method, backbone = made, made.tagger.backbone
        size = config.settings.image_size
        self.read = partial(read_batch, size=size, mean=backbone.mean, std=backbone.std)
        self.teacher = LiteralTagger(made.teacher).eval()
        self.student = LiteralTagger(made.tagger)

    def run(self) -> dict[str, float]:
        """Threshold, epochs, evaluation."""
        began = time.perf_counter()
        infer = partial(literal_scores, self.teacher, self.paths, self.read, BATCH)
        target = self.method.config.labels_per_image * self.session.first / (2 * CLASSES)
        threshold, moves = literal_threshold(infer, target, self.method.config.threshold, 0.01, TOLERANCE)
        asked = time.perf_counter() - began
        self._train(threshold)
        rows = np.flatnonzero((self.test.labels[:, : 2 * CLASSES] == PRESENT).any(axis=1))
        scores = literal_scores(self.student, [self.test.paths[row] for row in rows], self.read, BATCH)
        truth = self.test.labels[rows] == PRESENT
        shown = np.flatnonzero(truth.any(axis=0))
        precision = [average_precision_score(truth[:, one], scores[:, one]) for one in shown]
        return {"threshold": threshold, "moves": moves, "asked": asked, "map": 100 * float(np.mean(precision))}

    def _train(self, threshold: float) -> None:
        settings, labels = self.settings, torch.from_numpy(self.session.labels)
        optimiser, weight = literal_optimiser(self.student), self.method._weight(self.method.config.token_weight)
        for group in optimiser.param_groups:
            group["peak"] = settings.lr
        self.student.train()
        for epoch in range(EPOCHS):
            plan = plan_epoch(len(self.paths), BATCH, settings.seed, 2, epoch)
            for step, part in enumerate(plan):
                set_rate(optimiser, epoch * len(plan) + step, EPOCHS * len(plan), settings.warmup)
                images = self.read([self.paths[one] for one in part])
                terms = literal_losses(self.student, self.teacher, images, labels[part], threshold, weight)
                (LOSS_SCALE * (terms["classification"] + terms["token"])).backward()
                optimiser.step()
                optimiser.zero_grad()


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All sessions, and what their times say."""
    data = load(options.data, None) if options.data else made_up(folder, options.images)
    names = table_of(data, folder / "table.csv", options.images)
    values = settings(folder / "table.csv", names, options)
    kinds: dict[str, dict[str, Any]] = {
        "same": {},
        "early": {"freeze": str(options.freeze)},
        "kept": {"freeze": str(options.freeze), "keep_features": True},
        "frozen": {"freeze": "all", "keep_features": True},
    }
    seconds = {}
    for name, changes in kinds.items():
        worker = Worker(our_session, values | changes, str(folder / name))
        seconds[name] = worker()
        worker.close()
    runs = {name: folder / name / "0" / "run" for name in kinds}
    first = runs["same"] / "session-01" / "state.safetensors"
    worker = Worker(literal_session, values, str(first), str(folder / "literal.json"))
    seconds["literal"] = worker()
    worker.close()
    literal = json.loads((folder / "literal.json").read_text())
    once = literal["asked"] * (1 - 1 / (literal["moves"] + 1))
    results = json.loads((runs["same"] / "results.json").read_text())
    notes = results["sessions"][1]["notes"]
    if notes["threshold"] != literal["threshold"]:
        print(f"note: thresholds {notes['threshold']} and {literal['threshold']}: weights differ by rounding")
    report(
        "session",
        f"A second session of {len(names[CLASSES:])} classes, {options.backbone}, {torch.get_num_threads()} threads",
        [
            Ratio("literal / ours, same settings", seconds["literal"] / seconds["same"], at_least=1.7),
            Ratio(
                "  the same, if the literal one asked the old model once", (seconds["literal"] - once) / seconds["same"]
            ),
            Ratio("literal / ours with early stages frozen", seconds["literal"] / seconds["early"]),
            Ratio("literal / ours with their output kept too", seconds["literal"] / seconds["kept"], at_least=4),
            Ratio(
                "an epoch: full / frozen backbone",
                epoch_seconds(runs["same"], 2) / epoch_seconds(runs["frozen"], 2),
                at_least=20,
            ),
            Ratio("mAP, literal", literal["map"], unit="%"),
            *(Ratio(f"mAP, ours ({name})", _map(one), unit="%") for name, one in runs.items()),
        ],
        seconds=seconds,
        literal=literal,
    )


def _map(folder: Path) -> float:
    return float(json.loads((folder / "results.json").read_text())["last_map"])


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a data set, as for mlcil run; made-up photographs without")
    parser.add_argument("--weights", help="pretrained weights of the backbone; random without")
    parser.add_argument("--backbone", default="mobilenetv2_100")
    parser.add_argument("--freeze", type=int, default=6, help="stages that count as early")
    parser.add_argument("--images", type=int, default=192, help="of each session")
    with tempfile.TemporaryDirectory() as folder:
        measure(parser.parse_args(), Path(folder))


if __name__ == "__main__":
    main()
