"""The same seed gives the same result: with workers, after kills, and on two threads within a bound.

Small runs are repeated with two worker processes, with a kill after a random step, and on two threads. Workers and
kills must change no bit; threads may, because sums are taken in another order, but not by more than docs/guide.md
states.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, Size, report, size_asked

from mlcil.evaluation.scores import load_scores
from mlcil.testing import TINY, _same_outcome
from mlcil.training.config import make_config
from mlcil.training.loop import SessionTraining
from mlcil.training.run import run

SCORE_BOUND = 1e-2  # of a score between 0 and 1, as docs/guide.md has it
MAP_BOUND = 0.5  # in percent points
SMALL = TINY | {"data": "digits:train=48,test=100,size=16", "protocol": "0,1,2|3,4", "augment": "randaugment"}
RUNS: dict[str, dict[str, Any]] = {
    "ft": {"method": "ft"},
    "krt": {"method": "krt", "buffer": "2", "width": 16, "heads": 4, "labels_per_image": 2.5, "ema": 0.9},
    "er": {"method": "er", "buffer": "2"},
    "lwf": {"method": "lwf", "clip_norm": 1.0},
}


class Killed(BaseException):
    """Ends a run as a kill would."""


@contextmanager
def killing(step: int | None) -> Iterator[list[int]]:
    """Raise in the given step of the optimiser, counted from 1, if any; yields a list that grows with every step."""
    plain, steps = SessionTraining._step, list[int]()

    def train(training: SessionTraining, *given: Any) -> None:
        steps.append(len(steps) + 1)
        if len(steps) == step:
            raise Killed
        plain(training, *given)

    SessionTraining._step = train  # type: ignore[method-assign, assignment]
    try:
        yield steps
    except Killed:
        pass
    finally:
        SessionTraining._step = plain  # type: ignore[method-assign]


def last_scores(folder: Path) -> np.ndarray:
    """The scores of the test images after the last session."""
    return load_scores(sorted(folder.glob("session-*/scores.safetensors"))[-1]).scores


def try_one(name: str, seed: int, kills: int, chance: random.Random, folder: Path) -> dict[str, list[Any]]:
    """Repeat a run in every way; which repetitions are equal, and how far those on two threads are."""
    values = SMALL | {"method": RUNS[name]["method"], "seed": seed}
    changes = {key: value for key, value in RUNS[name].items() if key != "method"}

    def repeated(way: str, **more: Any) -> Path:
        run(make_config(values, changes | more), folder / way)
        return folder / way

    with killing(None) as steps:
        whole = repeated("whole")
    found: dict[str, list[Any]] = {"workers": [_same_outcome(whole, repeated("workers", workers=2))], "kills": []}
    for number in range(kills):
        seconds = chance.choice([0.0, 300.0])  # between checkpoints: one after every step, or at ends of sessions alone
        with killing(chance.randint(1, len(steps))):
            repeated(f"kill {number}", checkpoint_seconds=seconds)
            raise AssertionError("the run was not killed")
        found["kills"].append(_same_outcome(whole, repeated(f"kill {number}", checkpoint_seconds=seconds)))
    threads = repeated("threads", threads=2)
    found["scores"] = [float(np.abs(last_scores(whole) - last_scores(threads)).max())]
    maps = [run(make_config(values, changes), one).last_map or 0.0 for one in (whole, threads)]
    found["maps"] = [abs(maps[0] - maps[1])]
    return found


def main() -> None:
    """Repeat, and report."""
    size: Size = size_asked(__doc__)
    chance = random.Random(size.seed)
    found: dict[str, list[Any]] = {"workers": [], "kills": [], "scores": [], "maps": []}
    names = list(RUNS)[: size.of(2, len(RUNS))]
    for seed in range(size.seed, size.seed + size.of(1, 3)):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                for key, values in try_one(name, seed, size.of(2, 8), chance, Path(folder)).items():
                    found[key] += values
    figures = []
    for key, words in (("workers", "runs with two workers"), ("kills", "runs that were killed and continued")):
        figures.append(Figure(words, len(found[key])))
        wrong = found[key].count(False)
        figures.append(Figure(f"{words}, not equal to the bit", wrong, "0", not wrong))
    scores, maps = max(found["scores"]), max(found["maps"])
    figures += [
        Figure("largest difference of a score on two threads", scores, f"<= {SCORE_BOUND}", scores <= SCORE_BOUND),
        Figure("largest difference of mAP, percent points", maps, f"<= {MAP_BOUND}", maps <= MAP_BOUND),
    ]
    report("The same seed, the same result", figures, size, found=found)


if __name__ == "__main__":
    main()
