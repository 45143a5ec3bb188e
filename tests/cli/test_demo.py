"""The demo shows what it says: forgetting, and its cure."""

from pathlib import Path

import pytest
from rich.console import Console

from mlcil.cli import demo
from mlcil.cli.demo import run_demo
from mlcil.evaluation.results import load_results


def test_krt_stands_well_above_fine_tuning_and_below_joint_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = {"data": "digits:train=800,test=300,size=32", "base_epochs": 8, "epochs": 5, "threads": 1}
    monkeypatch.setattr(demo, "SETTINGS", demo.SETTINGS | less)  # a quarter of the work
    page = run_demo(tmp_path, Console(quiet=True))
    last = {name: load_results(tmp_path / name).last_map for name in ("ft", "krt", "joint")}
    assert last["krt"] >= last["ft"] + 15
    assert last["joint"] > last["krt"]
    assert all(f"{value:.1f}" in page.read_text() for value in last.values())
