"""Interrupted commands: one line that is true, and the same command goes on to the same results."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlcil.cli.app import app
from mlcil.cli.interrupted import grid_line, run_line
from mlcil.experiments.grid import Grid
from mlcil.experiments.plan import method_runs
from mlcil.training.states import load_state

from ..signals import heed_interrupts
from ..tiny import outcome

RUN = [
    *("run", "--method", "ft", "--data", "digits:train=60,test=30,size=16", "--protocol", "B4-C3"),
    *("--image-size", "16", "--epochs", "2", "--batch-size", "8"),
    *("--set", "augment=none", "--set", "threads=1", "--set", "cache=none"),
]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "interrupted before anything was saved; the same command starts again"),
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


# Runs the command of argv; in the step WHEN of its first process it and its children get a signal from another program.
SIGNALLED = """
import os, runpy, subprocess
from mlcil.training.loop import SessionTraining
step, steps = SessionTraining._step, []
def signalled(*arguments):
    steps.append(arguments)
    if len(steps) == int(os.environ["WHEN"]) and os.environ.get("LOCAL_RANK", "0") == "0":
        subprocess.run(["kill", "-s", os.environ["SIGNAL"], "0"])
    step(*arguments)
if __name__ == "__main__":  # and not in its workers
    SessionTraining._step = signalled
    runpy.run_module("mlcil", run_name="__main__")
"""


def signalled(folder: Path, number: int, step: int, *arguments: str) -> tuple[int, str]:
    """The code and the last line of errors of a command that gets a signal in a step."""
    script = folder / "signalled.py"
    script.write_text(SIGNALLED)
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=os.environ | {"SIGNAL": f"{number:d}", "WHEN": str(step)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=heed_interrupts,
        start_new_session=True,
    )
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finish(*RUN, "--out", str(folder))
    return folder


def steps_of_first_session(folder: Path) -> int:
    images = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["images"]
    return 2 * -(-images // 8)


@pytest.mark.parametrize(
    ("number", "more"),
    [(signal.SIGINT, ("--workers", "1")), (signal.SIGTERM, ("--workers", "1")), (signal.SIGTERM, ())],
)
def test_a_signal_saves_the_step_under_way_and_the_run_goes_on_to_the_same_results(
    number: int, more: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    # Within an epoch, where the next step needs the workers; without them in the last step of a session.
    step, position = (3, (0, 3)) if more else (steps_of_first_session(whole), (2, 0))
    cut = tmp_path / "cut"
    code, line = signalled(tmp_path, number, step, *RUN, *more, "--out", str(cut))
    expected = f"mlcil: interrupted; {cut} keeps the progress of session 1; the same command goes on from there"
    assert (code, line) == (128 + number, expected)
    values = load_state(cut / "session-01" / "progress.safetensors", with_tensors=False)[1]
    assert (values["position"]["epoch"], values["position"]["step"]) == position
    finish(*RUN, "--out", str(cut))
    assert outcome(cut) == outcome(whole)


def test_processes_that_train_together_save_together(tmp_path: Path) -> None:
    both = ("--devices", "2", "--strategy", "ddp", "--set", "accelerator=cpu", "--out", str(tmp_path / "run"))
    code, line = signalled(tmp_path, signal.SIGTERM, 2, *RUN, *both)
    assert (code, "keeps the progress of session 1;" in line) == (143, True)


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
    assert done.stderr == "mlcil: interrupted before anything was saved; the same command starts again\n"
