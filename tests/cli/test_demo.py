"""The demo shows what it says: forgetting, and its cure."""

import os
from pathlib import Path

import torch
from rich.console import Console

from mlcil.cli.demo import run_demo
from mlcil.evaluation.results import load_results


def test_krt_stands_well_above_fine_tuning_and_below_joint_training(tmp_path: Path) -> None:
    torch.set_num_threads(os.cpu_count() or 1)  # other tests in this process may have left it at one
    page = run_demo(tmp_path, Console(quiet=True))
    last = {name: load_results(tmp_path / name)["last_map"] for name in ("ft", "krt", "joint")}
    assert last["krt"] >= last["ft"] + 20
    assert last["joint"] > last["krt"]
    assert all(f"{value:.1f}" in page.read_text() for value in last.values())
