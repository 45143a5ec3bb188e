"""A report of many runs: a page that needs no other file and no network, and its tables and figures as files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..core.files import write_text
from .collect import Collection, Group, RunRecord, collect
from .heat_maps import gradient
from .sections import SectionWriter
from .style import COLOURS
from .table import counted
from .tables import label


def write_report(
    paths: Sequence[Path],
    out: Path,
    title: str = "Multi-label class-incremental learning",
    explanation: str = "",
    commands: Sequence[str] = (),
    images: int = 4,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write the report of runs: index.html, tables/KEY.{md,tex,csv} and figures/KEY.{png,svg}.

    Arguments:
        paths: run folders, or folders that hold run folders; unfinished runs are welcome.
        out: the folder to write to.
        explanation: what the reader looks at; an empty line starts a new paragraph.
        commands: what made all the runs together, besides the commands of each.
        images: how many pictures of attention maps to show per setting.
        say: told what is being done.

    Returns:
        The page, index.html.

    Raises:
        UserError: there is no run to show, or a file cannot be written.
    """
    collection = collect(paths)
    sections = SectionWriter(collection, out, say).sections(images)
    text = _template().render(
        title=title,
        lead=_lead(collection),
        paragraphs=[part for part in re.split(r"\n\s*\n", explanation.strip()) if part],
        sections=sections,
        settings=collection.settings,
        methods=list(dict.fromkeys(group.method for group in collection.groups)),
        groups=[{"method": group.method, "setting": group.setting} for group in collection.groups],
        colours=COLOURS,
        gradient=gradient(),
        overall=[*commands, *collection.commands],
        commands=[(group, label(group), _commands(group)) for group in collection.groups],
        problems=collection.problems,
    )
    write_text(out / "index.html", text)
    return out / "index.html"


def _template() -> Any:
    import jinja2

    source = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _lead(collection: Collection) -> str:
    runs = [run for group in collection.groups for run in group.runs]
    open_ends = sum(not run.is_finished for run in runs)
    of = "" if len(runs) == len(collection.groups) else f" of {counted(len(collection.groups), 'experiment')}"
    said = f"{counted(len(runs), 'run')}{of} on {', '.join(collection.settings)}"
    return said + (f"; {open_ends} not finished." if open_ends else ".")


def _commands(group: Group) -> list[str]:
    """How the group's runs were made, and how to make them again from what they left."""
    launched = [text for run in group.runs for text in _launched(run)]
    again = [shlex.join(["mlcil", "run", str(run.path / "config.yaml"), "--out", "NEW"]) for run in group.runs]
    return list(dict.fromkeys([*launched, *again]))


def _launched(run: RunRecord) -> Iterator[str]:
    for launch in run.launches:
        command = launch.get("command")
        if isinstance(command, list) and command:
            first, *rest = map(str, command)
            if first.endswith("child.py"):  # by a grid, whose own command is told
                continue
            yield shlex.join(["mlcil" if first.endswith(("mlcil", "__main__.py")) else first, *rest])
