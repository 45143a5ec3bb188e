"""The command `mlcil grid`: which runs it asks for, and what it prints."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from ..core.errors import UserError
from ..experiments.grid import Grid, GridRun
from ..experiments.plan import file_runs, method_runs, preset_runs
from ..experiments.presets import Preset, find_preset, preset_group
from .grid_view import GridView


class GridRequest(NamedTuple):
    """Which runs to make: those of a file, presets by group or name, or methods by protocols; each with every seed."""

    file: Path | None
    preset_group: str | None
    presets: str | None
    methods: str | None
    protocols: str
    seeds: str
    changes: Mapping[str, str]

    def runs(self) -> list[GridRun]:
        """The runs.

        Raises:
            UserError: the request names no runs or names them in two ways, or something in it is wrong.
        """
        ways = {"a file": self.file, "--preset-group": self.preset_group}
        ways |= {"--presets": self.presets, "--methods": self.methods}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise UserError(f"name the runs by one of {', '.join(ways)}; got {got}")
        seeds = _seeds(self.seeds)
        if self.file is not None:
            return file_runs(self.file, seeds, self.changes)
        if self.preset_group is not None or self.presets is not None:
            return preset_runs(self._presets(), self.changes.get("data"), seeds, self.changes)
        has_lists = "|" in self.protocols or ";" in self.protocols  # lists of class names contain commas
        protocols = _words(self.protocols, ";" if has_lists else ",")
        return method_runs(_words(self.methods or ""), protocols, seeds, self.changes)

    def _presets(self) -> list[Preset]:
        if self.preset_group is not None:
            return preset_group(self.preset_group)
        return [find_preset(name) for name in _words(self.presets or "")]


def run_grid(
    request: GridRequest, out: Path, jobs: int, engine: str, shares_bases: bool, has_report: bool, console: Console
) -> bool:
    """Run a grid, print its table and write its report.

    Returns:
        Whether every run succeeded.
    """
    grid = Grid(request.runs(), out, jobs, shares_bases, shlex.join(["mlcil", *sys.argv[1:]]))
    with _terminated_like_interrupted():
        grid.execute(engine, GridView(console))
    failed = grid.of_status("failed")
    for one in failed:
        text = f"failed: {one.run.name}: {one.error} (log: {grid.log_file(one.run)})"
        console.print(text, markup=False, soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(grid.progress)} runs failed; the same command tries them again")
    if grid.of_status("done"):
        _show(out, has_report, console)
    return not failed


def _show(out: Path, has_report: bool, console: Console) -> None:
    from ..reports.collect import collect
    from ..reports.table import to_terminal
    from ..reports.tables import summary

    console.print(to_terminal(summary(collect([out]))))
    if has_report:
        from ..reports.report import write_report

        page = write_report([out], out / "report", title=f"mlcil grid: {out.name}")
        console.print(f"page: {page}", soft_wrap=True, highlight=False)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM stop the runs as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds: got {text!r}, expected whole numbers separated by commas, such as 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: got {text!r}, where a seed occurs twice")
    return seeds


def _words(text: str, separator: str = ",") -> list[str]:
    words = [word.strip() for word in text.split(separator)]
    if not all(words):
        raise UserError(f"got {text!r}, expected names separated by {separator!r}")
    return words
