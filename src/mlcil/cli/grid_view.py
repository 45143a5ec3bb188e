"""Shows a grid while it runs: a live table in a terminal, one line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..core.progress import duration
from ..experiments.engines import last_line
from ..experiments.grid import Grid, Progress, Watch
from .console import say

FAILURES_SHOWN = 5


@contextmanager
def grid_view(grid: Grid, console: Console) -> Iterator[Watch]:
    """Say how many runs there are; the function that it gives to `Grid.execute` then prints their progress."""

    def print_change(progress: Progress | None) -> None:
        if progress is not None:
            say(console, _event(grid, progress))

    done = len(grid.of_status("done"))
    say(
        console,
        f"{len(grid.progress)} runs in {grid.out}, {grid.jobs} at a time" + (f"; {done} already done" if done else ""),
    )
    if not console.is_terminal:
        yield print_change
        return
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def update(progress: Progress | None) -> None:
            live.update(_picture(grid))
            if progress is not None and progress.status != "running":  # the table shows those
                print_change(progress)

        yield update


def _event(grid: Grid, progress: Progress) -> str:
    last = "no mAP" if progress.last_map is None else f"last mAP {progress.last_map:.1f}"
    event = {
        "running": "started",
        "done": f"done, {last}, {duration(progress.seconds)}",
        "failed": f"FAILED: {progress.error}",
    }[progress.status]
    return f"{progress.run.name}: {event}; {_counts(grid)}"


def _counts(grid: Grid) -> str:
    """How many runs are done, running, failed and waiting, and an estimate of the time left."""
    parts = [f"{len(grid.of_status('done'))}/{len(grid.progress)} done"]
    parts += [f"{len(found)} {name}" for name in ("running", "failed", "waiting") if (found := grid.of_status(name))]
    left = grid.seconds_left()
    return ", ".join(parts) + (f", about {duration(left)} left" if left else "")


def _picture(grid: Grid) -> RenderableType:
    """A table of the runs in progress, with the latest failures and the counts below."""
    table = Table("running", "for", "last output", box=None, padding=(0, 2, 0, 0), expand=True)
    for one in grid.of_status("running"):
        table.add_row(
            Text(one.run.name, no_wrap=True),
            duration(one.seconds),
            Text(last_line(grid.log_file(one.run)), overflow="ellipsis", no_wrap=True),
        )
    failed = [Text(f"failed: {one.run.name}: {one.error}", style="red") for one in grid.of_status("failed")]
    took = duration(time.monotonic() - grid.began)
    return Group(table, *failed[-FAILURES_SHOWN:], Text(f"{_counts(grid)}, {took} so far", style="bold"))
