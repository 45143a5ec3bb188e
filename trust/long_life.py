"""What a long life costs: hundreds of sessions, epochs and lessons, and thousands of requests and marks.

    python trust/long_life.py [--full]

Each trial is a process that does the same small thing again and again while its memory, descriptors, threads, child
processes and files are watched. After a tenth of the steps nothing may grow but what each step has to add: a session
its state, scores and results, a lesson a tagger, a mark a line of the journal. The picture of the memory is beside the
figures, in runs/trust. Needs /proc, so Linux.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from figures import Figure, Size, report, size_asked
from PIL import Image
from watching import Sample, judged, sample, watched

SIDE = 16  # pixels of a photo
SMALL = ("--image-size", str(SIDE), "--batch-size", "16", "--set", "augment=none", "--set", "threads=1")
KRT = ("--set", "width=16", "--set", "heads=4", "--set", "labels_per_image=1.0")


class Trial(NamedTuple):
    """A long life.

    Attributes:
        unit: what a step is.
        live: does the steps, given how many and a folder of its own, and says what it saw.
        steps: of the short and the full size.
        more: megabytes that its memory may grow by after a tenth of the steps.
        disk: kilobytes that a step may add to its files.
    """

    unit: str
    live: Callable[[int, Path], list[Sample]]
    steps: tuple[int, int]
    more: float
    disk: float


def photo(label: int, number: int) -> Image.Image:
    """A photo of a label: its own pattern, with noise."""
    pattern = np.random.default_rng(label).integers(0, 256, (SIDE, SIDE, 3))
    noise = np.random.default_rng((label, number)).normal(0, 25, pattern.shape)
    return Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8))


def table(file: Path, labels: Sequence[int], train: int, test: int = 0) -> Path:
    """A table with so many new photos of each label, and the photos beside it."""
    folder = file.with_suffix("")
    folder.mkdir(parents=True)
    rows: list[tuple[str, ...]] = [("path", "labels", "split") if test else ("path", "labels")]
    for label, number in itertools.product(labels, range(train + test)):
        name = f"{folder.name}/{label}-{number}.png"
        photo(label, number).save(file.parent / name)
        rows.append((name, f"label {label}", "train" if number < train else "test")[: len(rows[0])])
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return file


def run_sessions(method: str, options: Sequence[str], sessions: int, folder: Path) -> list[Sample]:
    """A run that learns one label after another."""
    data = table(folder / "photos.csv", range(sessions), train=6, test=2)
    given = ("--data", f"table:{data}", "--protocol", "B0-C1", "--set", "negatives=none", "--epochs", "1")
    return run_watched(("--method", method, *given, *SMALL, *options), folder, '"mAP"')


def analytic_sessions(sessions: int, folder: Path) -> list[Sample]:
    """In closed form, from kept features, few enough that the sessions count and not the solving."""
    return run_sessions("analytic", ("--set", "keep_features=true", "--set", "expansion=128"), sessions, folder)


def krt_sessions(sessions: int, folder: Path) -> list[Sample]:
    """By gradients, each with a teacher from the one before."""
    return run_sessions("krt", KRT, sessions, folder)


def epochs(count: int, folder: Path) -> list[Sample]:
    """A run whose second session, with a teacher, trains long; the first one leaves its state before it counts."""
    given = ("--data", f"digits:train=24,test=16,size={SIDE}", "--protocol", "0,1|2,3", "--set", "base_epochs=1")
    long = ("--epochs", str(count - 1))
    return run_watched(("--method", "krt", *given, *long, *SMALL, *KRT), folder, '"losses"')


def run_watched(options: Sequence[str], folder: Path, counted: str) -> list[Sample]:
    """Start a run and watch it; the lines of its log with a word are its steps."""
    out = folder / "run"
    command = [sys.executable, "-m", "mlcil", "run", *options, "--out", str(out)]
    log = out / "metrics.jsonl"
    with (folder / "output.txt").open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as run:
        found = watched(
            run.pid, out, lambda: log.read_text().count(counted) if log.exists() else 0, lambda: run.poll() is None
        )
    assert run.returncode == 0, (folder / "output.txt").read_text()[-2000:]
    return found[1:]  # before the first step it is still starting


def first_tagger(folder: Path) -> Path:
    """A tagger of two labels."""
    from mlcil.serving.learning import LearnOptions, learn

    options = LearnOptions(backbone="small_conv", settings={"image_size": SIDE, "threads": 1})
    return learn(None, str(table(folder / "first.csv", range(2), 8)), options)[0].save(folder / "tagger")


def requests(count: int, folder: Path) -> list[Sample]:
    """A server that is asked for tags, for evidence and for nonsense, by clients that come and go."""
    command = [sys.executable, "-m", "mlcil", "serve", str(first_tagger(folder)), "--port", "0"]
    bodies = []
    for label in range(20):
        stream = io.BytesIO()
        photo(label, 0).save(stream, "png")
        bodies.append(stream.getvalue())
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split(":")[2].split("/")[0])
        try:
            for number in range(1, count + 1):
                if number % 50 == 1:
                    connection = HTTPConnection("127.0.0.1", port, timeout=60)
                ask(connection, number, bodies[number % len(bodies)])
                if number % 50 == 0:
                    found.append(sample(number, folder, server.pid))
                    connection.close()
        finally:
            server.terminate()
    return found


def ask(connection: HTTPConnection, number: int, body: bytes) -> None:
    """One request: mostly a photo, now and then with evidence, cut short, or to nowhere."""
    kind = number % 10
    body = body[: len(body) // 2] if kind == 3 else body
    place = {5: "/v1/predict?evidence=true", 7: "/v1/nowhere"}.get(kind, "/v1/predict")
    connection.request("POST", place, body)
    answer = connection.getresponse()
    answer.read()
    wanted = {3: 400, 7: 404}.get(kind, 200)
    assert answer.status == wanted, f"request {number} to {place} was answered {answer.status}, expected {wanted}"


def lessons(count: int, folder: Path) -> list[Sample]:
    """A tagger in one process that learns again and again, mostly new labels, and is saved each time."""
    from mlcil.serving.tagger import Tagger

    tagger, found = Tagger.load(first_tagger(folder)), []
    for number in range(1, count + 1):
        label = 1 + number if number % 4 else number // 4  # every fourth lesson is about a known label
        tagger.learn(table(folder / "tables" / f"{number}.csv", [label, number % 2], 3))
        tagger.save(folder / "taggers" / str(number))
        found.append(sample(number, folder / "taggers"))
    return found


def marks(count: int, folder: Path) -> list[Sample]:
    """A page of `mlcil teach` on which somebody marks photos and now and then takes a mark back."""
    from mlcil.serving.tagger import Tagger
    from mlcil.teaching.workbench import Workbench
    from mlcil.web import teach_views

    table(folder / "photos.csv", range(2, 12), 20)
    work, paths = folder / "work", sorted(str(file) for file in (folder / "photos").iterdir())
    bench = Workbench(Tagger.load(first_tagger(folder)), paths, work, "photos")
    bench.indexer.wait()
    ids, found = [bench.photos.id(row) for row in range(len(bench.photos))], []
    draw = np.random.default_rng(0)
    for number in range(1, count + 1):
        label = f"new {number % 5}"
        yes, no = draw.choice(len(ids), 2, replace=False)
        bench.mark(label, [ids[yes]], [ids[no]], [])
        if number % 10 == 0:
            bench.undo()
        json.dumps(teach_views.view(bench, label))
        found.append(sample(number, work))
    bench.close()
    return found


# What a session adds to its folder grows with the number of labels: its scores and its results have one for each.
TRIALS = {
    "closed form": Trial("session", analytic_sessions, (40, 300), 60, 1500),
    "KRT": Trial("session", krt_sessions, (20, 300), 60, 1500),
    "training": Trial("epoch", epochs, (200, 1000), 30, 2),
    "server": Trial("request", requests, (1500, 10_000), 30, 0.01),
    "lessons": Trial("lesson", lessons, (16, 100), 30, 3500),
    "teaching": Trial("mark", marks, (300, 3000), 30, 1),
}


def lived(name: str, steps: int) -> list[Sample]:
    """What a trial saw, in a folder that is removed afterwards; it has a process and a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLCIL_CACHE"] = str(Path(folder, "cache"))
        return TRIALS[name].live(steps, Path(folder))


def drawn(curves: dict[str, list[Sample]], picture: Path) -> None:
    """Draw the memory of each trial over its steps."""
    from mlcil.reports.style import GRID, INK, SOFT, canvas, house_style, numbered_look, panel, save_png

    with house_style():
        figure = canvas(960, 470)
        for place, (name, samples) in enumerate(curves.items()):
            axes = panel(figure, 50 + 315 * (place % 3), 50 + 225 * (place // 3), 250, 130)
            colour = numbered_look(0).colour
            axes.plot([one.step for one in samples], [one.memory for one in samples], color=colour, linewidth=1.8)
            axes.axvline(samples[-1].step / 10, color=SOFT, linewidth=0.8, linestyle=":")
            axes.set_ylim(0, 1.25 * max(one.memory for one in samples))
            axes.set_xlim(0, samples[-1].step)
            axes.set_xlabel(f"{TRIALS[name].unit}s", color=SOFT)
            axes.set_title(f"{name}: memory, MB", loc="left", fontsize=12, color=INK)
            axes.grid(axis="y", color=GRID)
        save_png(figure, picture, 120)


def main() -> None:
    """Live long, judge, report."""
    size: Size = size_asked(__doc__)
    os.environ["OMP_NUM_THREADS"] = "1"
    curves: dict[str, list[Sample]] = {}
    figures: list[Figure] = []
    for name, trial in TRIALS.items():
        # A process for each trial, as some of them look at their own memory.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            curves[name] = pool.submit(lived, name, size.of(*trial.steps)).result()
        figures += judged(name, curves[name], trial.unit, trial.more, trial.disk)
    drawn(curves, size.folder / "long-life.png")
    further: dict[str, Any] = {
        "fields": Sample._fields,
        "curves": {name: [list(one) for one in samples] for name, samples in curves.items()},
    }
    report("What a long life costs", figures, size, **further)


if __name__ == "__main__":
    main()
