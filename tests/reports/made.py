"""Run folders as training leaves them, made in a moment and without any training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mlcil.evaluation.results import HEADER, RunResult, SessionResult, evaluate, write_results
from mlcil.evaluation.scores import ScoredImages
from mlcil.training.config import make_config

NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
EPOCHS, IMAGES, SECONDS, KEPT = 2, 40, 3.0, 12_340_000  # of each session


def made_run(
    tmp_path: Path,
    name: str,
    method: str = "krt",
    seed: int = 0,
    counts: Sequence[int] = (2, 4, 6),
    done: int | None = None,
    names: Sequence[str] = NAMES,
    **config: Any,
) -> Path:
    """Write the folder of a run whose figures depend on its method and seed alone.

    Arguments:
        counts: the number of classes seen after each session.
        done: how many of these sessions are finished; all of them if not given.
        names: the classes, at least as many as the largest count.
        config: further settings of the run or options of its method, such as buffer="20" or preset="...".

    Returns:
        The folder, `tmp_path / name`.
    """
    folder = tmp_path / name
    settings = {"epochs": EPOCHS, "method": method, "seed": seed} | config
    values = make_config({}, settings).to_dict()
    done = len(counts) if done is None else done
    sessions = made_sessions(method, seed, counts[:done], names)
    lines = [line for result in sessions for line in metric_lines(result, seed)]
    files = {
        "config.yaml": yaml.safe_dump(values, sort_keys=False),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "environment.json": json.dumps({"launches": [launch(method, seed)]}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    header = {name: values.get(name) for name in HEADER}
    result = RunResult(
        **header, negatives="none", data_digest="", bad_images=[], finished=done == len(counts), sessions=sessions
    )
    write_results(folder / "results.json", result)
    return folder


def change_result(folder: Path, last: dict[str, Any] | None = None, **changes: Any) -> None:
    """Change fields of a run's results.json, and of its last session with `last`."""
    file = folder / "results.json"
    record = json.loads(file.read_text()) | changes
    record["sessions"][-1:] = [one | (last or {}) for one in record["sessions"][-1:]]
    del record["checksum"]
    file.write_text(json.dumps(record))


def made_sessions(method: str, seed: int, counts: Sequence[int], names: Sequence[str] = NAMES) -> list[SessionResult]:
    """The results of sessions over chance-made scores; old classes get worse, and the second has no positive."""
    rng = np.random.default_rng([seed, *method.encode()])
    sessions: list[SessionResult] = []
    for t, count in enumerate(counts):
        labels = (rng.random((60, count)) < 0.4).astype(np.int8)
        labels[:, 1] = 0
        first = counts[t - 1] if t else 0
        skill = np.where(np.arange(count) < first, 0.1, 0.4)
        scores = rng.random((60, count)) * 0.6 + labels * skill
        scored = ScoredImages(scores.astype(np.float32), labels, np.arange(60), tuple(names[:count]))
        sessions.append(evaluate(scored, sessions, images=IMAGES, train_seconds=SECONDS, bytes_kept=KEPT, notes={}))
    return sessions


def metric_lines(result: SessionResult, seed: int) -> list[dict[str, Any]]:
    """What metrics.jsonl says of a session: pseudo labels from the second on, its epochs, its evaluation."""
    number = result.session
    lines: list[dict[str, Any]] = []
    if number > 1:
        figures = {"threshold": 0.7, "target": 2.5, "per_image": 1.5 + seed, "true_per_image": 2.0}
        quality = {"precision": 80.0 + 2 * seed, "recall": None, "images": IMAGES}
        lines.append({"session": number, "epoch": 0, "pseudo_labels": figures | quality})
    for epoch in range(1, EPOCHS + 1):
        losses = {"classification": 2.0 / epoch, "token": 0.5 / number}
        seconds = SECONDS * epoch / EPOCHS
        epoch_line = {"peak_lr": 1e-4, "images": IMAGES, "seconds": seconds}
        lines.append({"session": number, "epoch": epoch, "losses": losses} | epoch_line)
    cost = {"session_seconds": SECONDS + 1, "peak_memory_mb": 500.0 + number, "gpu_memory_mb": None}
    return [*lines, {"session": number, "epoch": EPOCHS, "mAP": result.map} | cost]


def launch(method: str, seed: int, **changes: Any) -> dict[str, Any]:
    """One entry of environment.json."""
    return {
        "started": "2026-01-01T00:00:00+0000",
        "command": ["mlcil", "run", "--method", method, "--seed", str(seed)],
        "python": "3.11.7",
        "system": "Linux-6.1-x86_64",
        "processors": 2,
        "versions": {"mlcil": "0.1.0", "torch": "2.6.0"},
        "git_revision": "0123456789abcdef",
        "seed": seed,
        "device": "cpu",
        "processes": 1,
        "threads": 1,
        "weights": None,
    } | changes
