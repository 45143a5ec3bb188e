"""Children of one process that has imported everything: each is forked, watched, and does a command of a job."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer
from crash_jobs import Job
from crash_moments import Moment, Watcher
from PIL import Image

LINGERING = 20.0  # seconds after which a process that a killed one has left counts as left behind


class Ending(NamedTuple):
    """How a command ended.

    Attributes:
        code: its exit code, negative for a signal.
        errors: what it wrote to standard error.
        deeds: the lines of the watcher.
        left_behind: whether a process of its own has outlived it.
    """

    code: int
    errors: str
    deeds: list[list[str]]
    left_behind: bool


def carry_out(
    job: Job, number: int, folder: Path, moment: Moment | None = None, kill_after: float | None = None
) -> Ending:
    """Let a child do a command of a job in a folder.

    Arguments:
        moment: when something happens to it.
        kill_after: seconds after which it is killed wherever it is.
    """
    report, errors = folder.with_suffix(".deeds"), folder.with_suffix(".errors")
    report.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _be_child(job, number, folder, report, errors, moment)
    began = time.monotonic()
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if kill_after is not None and time.monotonic() - began > kill_after:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    left_behind = not _wait_for_group(child)
    lines = report.read_text().splitlines() if report.exists() else []
    code = os.waitstatus_to_exitcode(ended[1])
    return Ending(code, errors.read_text(errors="replace"), [line.split("\t") for line in lines], left_behind)


def _wait_for_group(group: int) -> bool:
    """Wait until no process of a group is there; whoever stays is ended, and the answer is False."""
    give_up = time.monotonic() + LINGERING
    while time.monotonic() < give_up:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.005)
    os.killpg(group, signal.SIGKILL)
    return False


def _be_child(job: Job, number: int, folder: Path, report: Path, errors: Path, moment: Moment | None) -> None:
    """Do the command and end, without ever coming back."""
    os.setsid()
    for handle, name in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    code = 0
    try:
        os.chdir(folder)
        os.environ["MLCIL_CACHE"] = str(folder / "cache")
        _prepare(job, Watcher(folder, report, moment))
        job.commands[number]()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _prepare(job: Job, watcher: Watcher) -> None:
    from mlcil.core import pools
    from mlcil.experiments import engines
    from mlcil.methods import analytic
    from mlcil.training.learner import Learner

    for module, name, value in job.patches:
        setattr(importlib.import_module(module), name, value)
    fork = multiprocessing.get_context("fork")  # everything is imported
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    engines.subprocess = _ForkedRuns  # type: ignore[assignment, attr-defined]
    serve = pools._serve

    def serve_and_end(*given: Any) -> None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
        serve(*given)

    pools._serve = serve_and_end  # type: ignore[assignment]
    watcher.install()
    watcher.call(analytic, "read_sums", "merging shards")
    real = Learner.learn

    def learn(self: Learner, *given: Any) -> Any:
        watcher.call(self.method, "after_session", "after_session")
        return real(self, *given)

    Learner.learn = learn  # type: ignore[assignment, method-assign]


def _end_with_parent() -> None:
    """What a worker does when its pipe ends; one that is forked holds the other end of the pipe itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


class _ForkedRuns:
    """Stands in for the module `subprocess` in a grid: its runs are forked, which saves them their imports."""

    PIPE, STDOUT, TimeoutExpired = subprocess.PIPE, subprocess.STDOUT, subprocess.TimeoutExpired

    class Popen:
        """A run of a grid."""

        def __init__(self, command: list[str], stdout: Any, **_: Any) -> None:
            theirs, ours = os.pipe()
            self.returncode: int | None = None
            self.pid = os.fork()
            if self.pid == 0:
                os.close(ours)
                for handle, target in ((theirs, 0), (stdout.fileno(), 1), (stdout.fileno(), 2)):
                    os.dup2(handle, target)
                from mlcil.experiments.child import main

                os._exit(main(*command[-2:]))
            os.close(theirs)
            self.stdin = os.fdopen(ours, "wb")

        def poll(self) -> int | None:
            """Its code, None while it goes on."""
            if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(ended[1])
            return self.returncode

        def wait(self, timeout: float | None = None) -> int:
            """Its code when it has ended."""
            while self.poll() is None:
                time.sleep(0.01)
            assert self.returncode is not None
            return self.returncode

        def kill(self) -> None:
            """End it."""
            os.kill(self.pid, signal.SIGKILL)


def import_everything() -> None:
    """Import what the jobs use, so that children need not; nothing is computed yet, since threads do not survive."""
    for name in (
        *("cli.app", "cli.run", "cli.tagging", "cli.photo_commands", "cli.grid", "training.run", "teaching.workbench"),
        *("serving.learning", "serving.predicted_parts", "experiments.child", "methods.krt", "methods.analytic"),
        *("methods.er", "methods.finetune", "reports.tables", "data.digits"),
    ):
        importlib.import_module(f"mlcil.{name}")
    for name in (
        "sklearn.datasets",
        "onnxruntime",
        "timm",
        "torchvision",
        "safetensors.torch",
        "torch.onnx",
        "pydantic",
    ):
        importlib.import_module(name)
    typer.main.get_command(importlib.import_module("mlcil.cli.app").app)  # which imports as well
    Image.init()


def fresh(folder: Path, prepare: Callable[[Path], None]) -> Path:
    """A new folder for a trial."""
    shutil.rmtree(folder, ignore_errors=True)
    prepare(folder)
    return folder
