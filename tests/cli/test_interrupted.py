"""Interrupted commands: one line that is true, and the same command goes on to the same results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlcil.cli.app import app
from mlcil.cli.interrupted import grid_line, run_line
from mlcil.experiments.grid import Grid
from mlcil.experiments.plan import method_runs

from ..signals import heed_interrupts, interrupt

RUN = [
    *("run", "--method", "ft", "--data", "digits:train=60,test=30,size=16", "--protocol", "B4-C3"),
    *("--image-size", "16", "--epochs", "2", "--batch-size", "8"),
    *("--set", "augment=none", "--set", "threads=1", "--set", "checkpoint_seconds=0", "--set", "cache=none"),
]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "interrupted before anything was learned; the same command starts again"),
        (["01/progress"], "keeps the progress of session 1;"),
        (["01/state"], "keeps session 1;"),
        (["01/state", "01/progress"], "keeps session 1;"),
        (["01/state", "02/state", "03/progress"], "keeps sessions 1 and 2 and the progress of session 3;"),
        (["01/state", "02/state", "03/state"], "keeps sessions 1 to 3; the same command goes on from there"),
    ],
)
def test_what_a_folder_keeps(tmp_path: Path, files: list[str], says: str) -> None:
    for file in files:
        path = tmp_path / f"session-{file}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert says in run_line(tmp_path)
    assert not files or run_line(tmp_path).startswith(f"interrupted; {tmp_path} keeps ")


def test_what_a_grid_keeps(tmp_path: Path) -> None:
    grid = Grid(method_runs(["ft"], ["B0-C2"], range(4), {}), tmp_path)
    assert grid_line(grid) == "interrupted; 0 of 4 runs are done; the same command goes on from there"
    grid.progress[0].status, grid.progress[1].status = "done", "running"
    assert "1 of 4 runs is done, 1 in progress keeps its checkpoints;" in grid_line(grid)


def finish(*arguments: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def results(folder: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((folder / "results.json").read_text())
    for session in record["sessions"]:  # type: ignore[attr-defined]
        del session["train_seconds"]
    return record


def test_an_interrupted_run_goes_on_to_the_same_results(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(*RUN, "--out", str(whole))
    workers = ("--workers", "1")  # which leave something behind, and change no result
    line = interrupt([*RUN, *workers, "--out", str(cut)], cut / "session-01" / "progress.safetensors")
    assert f"{cut} keeps " in line
    assert "session 1" in line
    assert line.count("\n") == 1
    finish(*RUN, "--out", str(cut))
    assert results(cut) == results(whole)


def test_an_interruption_during_an_import(tmp_path: Path) -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'torch.nn': os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.meta_path.insert(0, Interrupt()); sys.argv = {['mlcil', *RUN, '--out', str(tmp_path / 'out')]}\n"
        "runpy.run_module('mlcil', run_name='__main__')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=heed_interrupts)
    assert done.returncode == 130
    assert done.stderr == "mlcil: interrupted before anything was learned; the same command starts again\n"
