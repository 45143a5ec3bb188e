"""Shows a grid while it runs: a live table in a terminal, one line per event elsewhere."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..experiments.grid import Grid, Progress, View
from ..training.progress import duration

FAILURES_SHOWN = 5


class GridView(View):
    """Prints the progress of a grid.

    Arguments:
        console: where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def begin(self, grid: Grid) -> None:
        """Say how many runs there are."""
        done = len(grid.of_status("done"))
        self._say(
            f"{len(grid.progress)} runs in {grid.out}, {grid.jobs} at a time"
            + (f"; {done} already done" if done else "")
        )
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=2, transient=True)
            self._live.start()

    def changed(self, grid: Grid, progress: Progress) -> None:
        """Print a line about a run that started or ended; a terminal shows starts in its table."""
        if progress.status == "running" and self._live is not None:
            return
        event = {
            "running": "started",
            "done": f"done, last mAP {progress.last_map or 0:.1f}, {duration(progress.seconds)}",
            "failed": f"FAILED: {progress.error}",
        }[progress.status]
        self._say(f"{progress.run.name}: {event}; {counts(grid)}")

    def tick(self, grid: Grid) -> None:
        """Update the table."""
        if self._live is not None:
            self._live.update(picture(grid))

    def end(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def counts(grid: Grid) -> str:
    """How many runs are done, running, failed and waiting, and an estimate of the time left."""
    parts = [f"{len(grid.of_status('done'))}/{len(grid.progress)} done"]
    parts += [f"{len(found)} {name}" for name in ("running", "failed", "waiting") if (found := grid.of_status(name))]
    left = grid.seconds_left()
    return ", ".join(parts) + (f", about {duration(left)} left" if left else "")


def picture(grid: Grid) -> RenderableType:
    """A table of the runs in progress, with the latest failures and the counts below."""
    table = Table("running", "for", "last output", box=None, padding=(0, 2, 0, 0), expand=True)
    for one in grid.of_status("running"):
        table.add_row(
            Text(one.run.name, no_wrap=True),
            duration(one.seconds),
            Text(grid.last_output(one.run), overflow="ellipsis", no_wrap=True),
        )
    failed = [Text(f"failed: {one.run.name}: {one.error}", style="red") for one in grid.of_status("failed")]
    took = duration(time.monotonic() - grid.began)
    return Group(table, *failed[-FAILURES_SHOWN:], Text(f"{counts(grid)}, {took} so far", style="bold"))
