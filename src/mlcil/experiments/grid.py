"""Many runs at once, each in its own folder; the grid continues as a whole, and one failure stops no other run."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from ..core.errors import UserError
from ..core.files import write_json, write_text
from ..core.locks import file_lock
from ..evaluation.results import load_results
from ..training.config import RunConfig, read_config
from .checks import Say, check_grid
from .engines import Engine, Running, Work, make_engine

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
        last_map: mAP after the last session, once the run is finished; None if it has none.
        running, slot, began: while it is running, its process, its slot and when it started.
    """

    run: GridRun
    status: str = "waiting"
    seconds: float = 0.0
    error: str = ""
    last_map: float | None = None
    running: Running | None = field(default=None, repr=False)
    slot: int = 0
    began: float = 0.0


Watch = Callable[[Progress | None], None]  # gets each run that starts or ends, and None every few moments


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
        for one in self.progress:
            if self._is_finished(one):
                one.status = "done"
        self.began = time.monotonic()

    def check(self, engine: str = "local", say: Say = lambda text: None) -> None:
        """Check what the runs that are not done yet share, so that a mistake is found before the first one starts.

        Raises:
            UserError: something is wrong with a run, which the message names.
        """
        waiting = {one.run.name: one.run.config.settings for one in self.of_status("waiting")}
        check_grid(waiting, engine == "local", say)  # a cluster has its own hardware

    def execute(self, engine: str = "local", watch: Watch = lambda progress: None) -> None:
        """Run everything that is not done yet.

        Raises:
            UserError: the engine cannot be used, or another grid is using the folder.
        """

        def refuse() -> None:
            raise UserError(f"another grid is using {self.out}; wait for it or choose another --out")

        with file_lock(self.out / ".lock", on_wait=refuse):
            self._save()
            if self.of_status("waiting"):
                self._carry_out(engine, watch)

    def _carry_out(self, name: str, watch: Watch) -> None:
        threads = max(one.run.config.settings.threads or self.threads for one in self.progress)
        engine = make_engine(name, self.jobs * threads)
        try:
            self._loop(engine, watch)
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
        ended = [one.seconds for one in self.of_status("done") if one.seconds]
        if not ended:
            return None
        mean = sum(ended) / len(ended)
        left = [max(0.0, mean - one.seconds) for one in self.of_status("running")]
        return (sum(left) + mean * len(self.of_status("waiting"))) / self.jobs

    def log_file(self, run: GridRun) -> Path:
        """The file that holds what a run prints."""
        return self.out / LOGS / f"{run.name}.log"

    def _loop(self, engine: Engine, watch: Watch) -> None:
        waiting = deque(self.of_status("waiting"))
        while waiting or self.of_status("running"):
            while waiting and len(self.of_status("running")) < self.jobs:
                one = waiting.popleft()
                self._start(one, engine)
                watch(one)
            time.sleep(POLL_SECONDS)
            for one in self.of_status("running"):
                one.seconds = time.monotonic() - one.began
                error = one.running.ended() if one.running is not None else ""
                if error is not None:
                    self._end(one, error)
                    watch(one)
            watch(None)

    def _start(self, one: Progress, engine: Engine) -> None:
        taken = {other.slot for other in self.of_status("running")}
        one.slot = next(slot for slot in range(self.jobs) if slot not in taken)
        one.running = engine.start(self._work(one.run), one.slot)
        one.status, one.began = "running", time.monotonic()
        self._save()

    def _end(self, one: Progress, error: str) -> None:
        one.running, one.error = None, error
        one.status = "done" if self._is_finished(one) and not error else "failed"
        if one.status == "failed" and not error:
            one.error = "it ended before all sessions were finished"
        self._save()

    def _work(self, run: GridRun) -> Work:
        settings = run.config.settings
        threads = settings.threads or self.threads
        settings = replace(settings, threads=threads, bases=settings.bases or self.bases)
        config = self.out / LOGS / f"{run.name}.yaml"
        write_text(config, yaml.safe_dump(replace(run.config, settings=settings).to_dict(), sort_keys=False))
        return Work(config, self.out / run.name, self.log_file(run), threads, settings.devices)

    def _is_finished(self, one: Progress) -> bool:
        """Whether the folder holds a finished run with this configuration, whose mAP is then noted."""
        folder = self.out / one.run.name
        try:
            results, stored = load_results(folder), read_config(folder / "config.yaml")
            if results.finished and not one.run.config.differences(stored):
                one.last_map = results.last_map
                return True
        except (UserError, KeyError, TypeError, ValueError):
            pass  # missing or damaged: the run itself will say what is wrong
        return False

    def _save(self) -> None:
        runs = [
            {"name": one.run.name} | {key: getattr(one, key) for key in ("status", "seconds", "error", "last_map")}
            for one in self.progress
        ]
        write_json(self.out / GRID_FILE, {"command": self.command, "runs": runs})
