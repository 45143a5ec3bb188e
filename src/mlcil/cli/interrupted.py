"""What an interrupted command keeps and how to go on, in one line."""

from __future__ import annotations

from pathlib import Path

from ..core.interruption import explain_with
from ..experiments.grid import Grid
from ..training.folder import RunFolder


def explain_run(path: Path) -> None:
    """From now on an interruption says what this folder of a run holds then."""
    explain_with(lambda: run_line(path))


def explain_grid(grid: Grid) -> None:
    """From now on an interruption says how far this grid is then."""
    explain_with(lambda: grid_line(grid))


def run_line(path: Path) -> str:
    """What the folder of an interrupted run keeps."""
    folder = RunFolder(path)
    finished = folder.finished_sessions()
    kept = [_sessions(finished)] if finished else []
    if folder.progress_file(finished + 1).exists():
        kept.append(f"the progress of session {finished + 1}")
    if not kept:
        return "interrupted before anything was saved; the same command starts again"
    return f"interrupted; {path} keeps {' and '.join(kept)}; the same command goes on from there"


def grid_line(grid: Grid) -> str:
    """How far an interrupted grid is."""
    done, running = len(grid.of_status("done")), len(grid.of_status("running"))
    kept = f", {running} in progress {'keeps its' if running == 1 else 'keep their'} checkpoints" if running else ""
    verb = "is" if done == 1 else "are"
    return f"interrupted; {done} of {len(grid.progress)} runs {verb} done{kept}; the same command goes on from there"


def _sessions(count: int) -> str:
    if count == 1:
        return "session 1"
    return f"sessions 1 and {count}" if count == 2 else f"sessions 1 to {count}"
