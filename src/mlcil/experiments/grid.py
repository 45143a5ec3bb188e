"""Many runs at once, each in its own folder; the grid continues as a whole, and one failure stops no other run."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from ..core.errors import UserError
from ..core.files import read_json, write_json, write_text
from ..training.config import RunConfig, read_config
from .engines import Engine, Running, Work, last_line, make_engine

GRID_FILE = "grid.json"
LOGS, BASES = "logs", "bases"
POLL_SECONDS = 0.2  # between two checks of the runs


@dataclass(frozen=True)
class GridRun:
    """A run of a grid: its folder below the grid's, and its configuration."""

    name: str
    config: RunConfig


@dataclass
class Progress:
    """The progress of one run of a grid.

    Attributes:
        run: the run.
        status: waiting, running, done or failed.
        seconds: time spent on it in this launch of the grid.
        error: how it failed, in one line.
        last_map: mAP after the last session, once the run is finished.
        was_done: whether an earlier launch of the grid had finished it.
        running, slot, began: while it is running, its process, its slot and when it started.
    """

    run: GridRun
    status: str = "waiting"
    seconds: float = 0.0
    error: str = ""
    last_map: float | None = None
    was_done: bool = False
    running: Running | None = field(default=None, repr=False)
    slot: int = 0
    began: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """The entry in grid.json."""
        return {
            "name": self.run.name,
            "status": self.status,
            "seconds": self.seconds,
            "error": self.error,
            "last_map": self.last_map,
        }


class View:
    """Gets the events of a grid; this one ignores them."""

    def begin(self, grid: Grid) -> None:
        """The grid starts."""

    def changed(self, grid: Grid, progress: Progress) -> None:
        """A run has started or ended."""

    def tick(self, grid: Grid) -> None:
        """Called every few moments while runs are in progress."""

    def end(self) -> None:
        """The grid has ended."""


class Grid:
    """The runs below one folder, and their progress.

    Arguments:
        runs: what to run, in this order.
        out: the folder; if it holds a grid, that grid is continued.
        jobs: number of runs at a time.
        shares_bases: whether identical first sessions are trained once and shared.
        command: the command that started the grid, kept for the record.

    Raises:
        UserError: there are no runs, two have the same name, or a name leads out of the folder.
    """

    def __init__(
        self, runs: Sequence[GridRun], out: Path, jobs: int = 1, shares_bases: bool = True, command: str = ""
    ) -> None:
        names = [run.name for run in runs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UserError(f"two runs of the grid have the same name: {', '.join(sorted(twice))}")
        if not runs:
            raise UserError("the grid has no runs")
        for name in names:
            if Path(name).is_absolute() or not name.strip() or ".." in Path(name).parts:
                raise UserError(f"run {name!r}: a run's name is also its folder's, and must not lead out of {out}")
        self.out, self.jobs, self.command = out.resolve(), jobs, command
        self.threads = max(1, (os.cpu_count() or 1) // jobs)
        self.bases = str(self.out / BASES) if shares_bases else None
        self.progress = [Progress(run) for run in runs]
        self.began = time.monotonic()

    def execute(self, engine: str = "local", view: View | None = None) -> list[Progress]:
        """Run everything that is not done yet.

        Returns:
            The outcome of every run.

        Raises:
            UserError: the engine cannot be used, or another grid is using the folder.
        """
        view, self.began = view or View(), time.monotonic()
        lock = self._claim()
        try:
            self._find_done()
            self._save()
            view.begin(self)
            try:
                if self.of_status("waiting"):
                    self._carry_out(engine, view)
            finally:
                view.end()
        finally:
            os.close(lock)
        return self.progress

    def _carry_out(self, name: str, view: View) -> None:
        threads = max(one.run.config.settings.threads or self.threads for one in self.progress)
        engine = make_engine(name, self.jobs * threads, _gpus)
        try:
            self._loop(engine, view)
        finally:
            for one in self.of_status("running"):
                if one.running is not None:
                    one.running.stop()
                one.status, one.running = "waiting", None
            engine.close()
            self._save()

    def of_status(self, status: str) -> list[Progress]:
        """The runs with this status."""
        return [one for one in self.progress if one.status == status]

    def seconds_left(self) -> float | None:
        """An estimate from the runs that ended in this launch; None before the first of them."""
        ended = [one.seconds for one in self.of_status("done") if not one.was_done]
        if not ended:
            return None
        mean = sum(ended) / len(ended)
        left = [max(0.0, mean - one.seconds) for one in self.of_status("running")]
        return (sum(left) + mean * len(self.of_status("waiting"))) / self.jobs

    def log_file(self, run: GridRun) -> Path:
        """The file that holds what a run prints."""
        return self.out / LOGS / f"{run.name}.log"

    def last_output(self, run: GridRun) -> str:
        """The last line that a run printed."""
        return last_line(self.log_file(run))

    def _loop(self, engine: Engine, view: View) -> None:
        waiting = deque(self.of_status("waiting"))
        while waiting or self.of_status("running"):
            while waiting and len(self.of_status("running")) < self.jobs:
                self._start(waiting.popleft(), engine, view)
            time.sleep(POLL_SECONDS)
            for one in self.of_status("running"):
                one.seconds = time.monotonic() - one.began
                error = one.running.ended() if one.running is not None else ""
                if error is not None:
                    self._end(one, error, view)
            view.tick(self)

    def _start(self, one: Progress, engine: Engine, view: View) -> None:
        taken = {other.slot for other in self.of_status("running")}
        one.slot = next(slot for slot in range(self.jobs) if slot not in taken)
        one.running = engine.start(self._work(one.run), one.slot)
        one.status, one.began = "running", time.monotonic()
        self._save()
        view.changed(self, one)

    def _end(self, one: Progress, error: str, view: View) -> None:
        one.running, one.error = None, error
        one.last_map = self._result(one.run)
        one.status = "done" if one.last_map is not None and not error else "failed"
        if one.status == "failed" and not error:
            one.error = "it ended before all sessions were finished"
        self._save()
        view.changed(self, one)

    def _work(self, run: GridRun) -> Work:
        settings = run.config.settings
        threads = settings.threads or self.threads
        settings = replace(settings, threads=threads, bases=settings.bases or self.bases)
        config = self.out / LOGS / f"{run.name}.yaml"
        write_text(config, yaml.safe_dump(replace(run.config, settings=settings).to_dict(), sort_keys=False))
        return Work(config, self.out / run.name, self.log_file(run), threads, settings.devices)

    def _find_done(self) -> None:
        for one in self.progress:
            one.last_map = self._result(one.run)
            one.was_done = one.last_map is not None
            one.status = "done" if one.was_done else "waiting"

    def _result(self, run: GridRun) -> float | None:
        """The last mAP, if the folder holds a finished run with this configuration."""
        folder = self.out / run.name
        try:
            results, stored = read_json(folder / "results.json"), read_config(folder / "config.yaml")
            if results["finished"] and not run.config.differences(stored):
                return float(results["last_map"])
        except (UserError, KeyError, TypeError, ValueError):
            pass  # missing or damaged: the run itself will say what is wrong
        return None

    def _save(self) -> None:
        runs = [one.to_dict() for one in self.progress]
        write_json(self.out / GRID_FILE, {"command": self.command, "runs": runs})

    def _claim(self) -> int:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.out / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot use {self.out} for a grid: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UserError(f"another grid is using {self.out}; wait for it or choose another --out") from None
        return lock


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
