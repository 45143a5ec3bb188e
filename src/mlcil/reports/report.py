"""A report of many runs: a page that needs neither other files nor a network, and its tables and figures as files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.files import write_text
from ..core.words import counted
from .collect import collect
from .page import template
from .runs import Collection, Group
from .sections import SectionWriter


def write_report(
    paths: Sequence[Path],
    out: Path,
    title: str = "Multi-label class-incremental learning",
    explanation: str = "",
    commands: Sequence[str] = (),
    images: int = 4,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write a report of runs: index.html, tables/NAME.{md,tex,csv} and figures/NAME.{png,svg}.

    Arguments:
        paths: run folders, or folders that hold run folders; runs may be unfinished.
        out: the folder to write to.
        explanation: text at the top of the page; an empty line starts a new paragraph.
        commands: commands that made all runs together, shown before the commands of each run.
        images: the number of pictures of attention maps to show per setting.
        say: called with a line about each step.

    Returns:
        The page, index.html.

    Raises:
        UserError: there is no run to show, or a file cannot be written.
    """
    collection = collect(paths)
    text = template("report.html").render(
        title=title,
        lead=_lead(collection),
        paragraphs=[part for part in re.split(r"\n\s*\n", explanation.strip()) if part],
        sections=SectionWriter(collection, out, say).sections(images),
        settings=collection.settings,
        commands=[*commands, *collection.commands],
        groups=[(group, _commands(group)) for group in collection.groups],
        problems=collection.problems,
    )
    write_text(page := out / "index.html", text)
    for problem in collection.problems:
        say(problem)
    return page


def _lead(collection: Collection) -> str:
    runs = [run for group in collection.groups for run in group.runs]
    unfinished = sum(not run.result.finished for run in runs)
    of = "" if len(runs) == len(collection.groups) else f" of {counted(len(collection.groups), 'experiment')}"
    text = f"{counted(len(runs), 'run')}{of} on {', '.join(collection.settings)}"
    return text + (f"; {unfinished} not finished." if unfinished else ".")


def _commands(group: Group) -> list[str]:
    """The commands that made the group's runs, and those that repeat them from their configuration."""
    launched = [_shortened(launch["command"]) for run in group.runs for launch in run.launches]
    again = [shlex.join(["mlcil", "run", str(run.path / "config.yaml"), "--out", "NEW"]) for run in group.runs]
    return list(dict.fromkeys([*filter(None, launched), *again]))


def _shortened(command: Sequence[str]) -> str:
    first, *rest = command
    if first.endswith("child.py"):  # started by a grid, whose own command is shown
        return ""
    return shlex.join(["mlcil" if first.endswith(("mlcil", "__main__.py")) else first, *rest])
