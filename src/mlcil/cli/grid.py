"""The command `mlcil grid`: which runs it asks for, and what it prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from ..core.errors import UserError
from ..experiments.grid import Grid, GridRun
from ..experiments.plan import file_runs, method_runs, preset_runs
from .console import say
from .grid_view import grid_view
from .interrupted import explain_grid


def requested_runs(
    file: Path | None,
    only: str | None,
    preset_group: str | None,
    presets: str | None,
    methods: str | None,
    protocols: str,
    seeds: str,
    changes: Mapping[str, str],
) -> list[GridRun]:
    """The runs of a file, of presets by group or name, or of methods by protocols; each with every seed.

    Raises:
        UserError: the options name no runs or name them in two ways, or something in them is wrong.
    """
    ways = {"a file": file, "--preset-group": preset_group, "--presets": presets, "--methods": methods}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise UserError(f"name the runs by one of {', '.join(ways)}; got {got}")
    if only is not None and file is None:
        raise UserError(f"--only names runs of a file, and there is none; give them by {given[0]} alone")
    numbers = _seeds(seeds)
    if file is not None:
        return file_runs(file, numbers, changes, None if only is None else _words(only))
    from ..experiments.presets import find_preset
    from ..experiments.presets import preset_group as rows_of_group

    if preset_group is not None:
        return preset_runs(rows_of_group(preset_group), numbers, changes)
    if presets is not None:
        return preset_runs([find_preset(name) for name in _words(presets)], numbers, changes)
    has_lists = "|" in protocols or ";" in protocols  # lists of class names contain commas
    return method_runs(_words(methods or ""), _words(protocols, ";" if has_lists else ","), numbers, changes)


def run_grid(
    runs: list[GridRun], out: Path, jobs: int, engine: str, shares_bases: bool, has_report: bool, console: Console
) -> bool:
    """Run a grid, print its table and write its report; returns whether every run succeeded."""
    grid = Grid(runs, out, jobs, shares_bases, shlex.join(["mlcil", *sys.argv[1:]]))
    explain_grid(grid)
    grid.check(engine, partial(say, console))
    with grid_view(grid, console) as watch:
        grid.execute(engine, watch)
    failed = grid.of_status("failed")
    for one in failed:
        say(console, f"failed: {one.run.name}: {one.error} (log: {grid.log_file(one.run)})")
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
        say(console, f"page: {page}")


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
