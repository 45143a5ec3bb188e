"""Runs as tables: one run session by session, or several runs beside each other.

A session's place in the comparison is the number of classes seen after it. So a joint run, which sees all
classes at once, stands in the last column, and an unfinished run leaves the later columns empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..core.errors import UserError

Results = Mapping[str, Any]
NOTHING = "-"
_F1 = {"CF1@0.8": "cf1@0.8", "OF1@0.8": "of1@0.8"}
_STORED_F1 = {"CF1@stored": "cf1@stored", "OF1@stored": "of1@stored"}
# What may tell two runs of one method apart, the most telling first.
_DISTINGUISHING = ("buffer", "protocol", "data", "backbone", "seed")


class Comparison(NamedTuple):
    """The text of a comparison: a heading per column and a row per run."""

    headings: list[str]
    rows: list[list[str]]


def run_table(results: Results) -> Table:
    """One run, session by session, with its average and last mAP below."""
    table = Table(title=Text(_title(results)), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("session", "new classes", "seen", "images"):
        table.add_column(heading, justify="left" if heading == "new classes" else "right")
    sessions, f1 = results["sessions"], _f1_columns([results])
    for heading in ("mAP", *f1, "forgetting", "BWT", "seconds"):
        table.add_column(heading, justify="right")
    for index, session in enumerate(sessions):
        table.add_row(*map(Text, _session_row(session, f1)), end_section=index == len(sessions) - 1)
    average, last = number(results.get("average_map")), number(results.get("last_map"))
    table.add_row("", Text(f"average {average}, last {last}", style="bold"))
    return table


def comparison_table(results: Sequence[Results]) -> Table:
    """Several runs, one row each: mAP after each session, the average, and the figures after the last.

    Raises:
        UserError: there is no run.
    """
    return terminal_table(*compare(results))


def terminal_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Table:
    """Cells as a table for a terminal; the columns `left` are aligned left, the others right."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column, heading in enumerate(headings):
        table.add_column(Text(heading), justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def to_markdown(results: Sequence[Results]) -> str:
    """The comparison as a Markdown table, with a line break at its end.

    Raises:
        UserError: there is no run.
    """
    return markdown_table(*compare(results))


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Cells as a Markdown table; the columns `left` are aligned left, the others right."""
    rule = ["---" if column in left else "---:" for column in range(len(headings))]
    lines = [headings, rule, *rows]
    return "".join("| " + " | ".join(_markdown_cell(cell) for cell in line) + " |\n" for line in lines)


def compare(results: Sequence[Results]) -> Comparison:
    """The cells of the comparison.

    The average and the figures after the last session are given for finished runs only: those of half a run
    would look better than they are.

    Raises:
        UserError: there is no run.
    """
    if not results:
        raise UserError("there is no run to compare: name at least one finished or started run")
    steps = class_counts(results)
    has_buffer = any(run.get("buffer", "0") != "0" for run in results)
    headings = ["method", *(["buffer"] if has_buffer else []), *(f"{count} classes" for count in steps)]
    f1 = _f1_columns(results)
    headings += ["average", "last", *f1, "forgetting"]
    named = zip(results, run_names(results), strict=True)
    return Comparison(headings, [_row(run, name, steps, has_buffer, f1) for run, name in named])


def class_counts(results: Sequence[Results]) -> list[int]:
    """The numbers of classes seen at which any of the runs was measured, in increasing order."""
    return sorted({len(session["classes"]) for run in results for session in run["sessions"]})


def is_joint(run: Results, steps: Sequence[int]) -> bool:
    """Whether the run learned at once all the classes that others (`steps`) reach session by session."""
    sessions = run["sessions"]
    return len(steps) > 1 and len(sessions) == 1 and len(sessions[0]["classes"]) == steps[-1]


def run_names(results: Sequence[Results]) -> list[str]:
    """A name for each run: its method, and what distinguishes it where a method occurs twice."""
    methods = [str(run.get("method", "run")) for run in results]
    names: list[str] = []
    for run, method in zip(results, methods, strict=True):
        twins = [other for other, name in zip(results, methods, strict=True) if name == method]
        apart = [key for key in _DISTINGUISHING if len({str(twin.get(key)) for twin in twins}) > 1]
        name = f"{method} ({', '.join(f'{key} {run.get(key, NOTHING)}' for key in apart)})" if apart else method
        # The same run named twice is a mistake worth seeing, not a reason to fail.
        names.append(name if name not in names else f"{name} #{len(names) + 1}")
    return names


def number(value: float | None) -> str:
    """One decimal, without a negative zero; a dash for nothing."""
    return NOTHING if value is None else f"{round(value, 1) + 0.0:.1f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things, in the singular where it is one."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def shorten(names: Sequence[str], width: int = 28) -> str:
    """The names in a row, cut after about `width` characters with the number of those left out."""
    text = ", ".join(names)
    if len(text) <= width:
        return text
    shown = list(names)
    while len(shown) > 1 and len(", ".join(shown)) > width - 6:
        shown.pop()
    left = len(names) - len(shown)
    text = ", ".join(shown) if len(shown) > 1 or left else text
    return (text if len(text) <= width else text[: width - 1] + "…") + (f" +{left}" if left else "")


def _title(results: Results) -> str:
    about = [str(results[key]) for key in ("method", "data", "protocol") if results.get(key) is not None]
    return " · ".join(about) + ("" if results.get("finished") else " (unfinished)")


def _f1_columns(results: Sequence[Results]) -> dict[str, str]:
    """The headings of F1 columns and their keys in a session: at 0.8, and at stored thresholds if a run has any."""
    sessions = [session for run in results for session in run["sessions"]]
    return _F1 | (_STORED_F1 if any("cf1@stored" in session["f1"] for session in sessions) else {})


def _session_row(session: Mapping[str, Any], f1: Mapping[str, str]) -> list[str]:
    figures = (session["map"], *map(session["f1"].get, f1.values()), session["forgetting"], session["bwt"])
    counts = [str(len(session["classes"])), str(session["images"])]
    seconds = f"{session['train_seconds']:.0f}"
    return [str(session["session"]), shorten(session["new_classes"]), *counts, *map(number, figures), seconds]


def _row(run: Results, name: str, steps: Sequence[int], has_buffer: bool, f1: Mapping[str, str]) -> list[str]:
    by_count = {len(session["classes"]): session["map"] for session in run["sessions"]}
    finished = bool(run.get("finished")) and bool(run["sessions"])
    row = [name if finished else f"{name} (unfinished)"]
    row += [str(run.get("buffer", NOTHING))] if has_buffer else []
    row += [number(by_count.get(count)) for count in steps]
    if not finished:
        return row + [NOTHING] * (3 + len(f1))
    last, joint = run["sessions"][-1], is_joint(run, steps)
    average, lost = (None, None) if joint else (run["average_map"], last["forgetting"])
    return row + [number(value) for value in (average, run["last_map"], *map(last["f1"].get, f1.values()), lost)]


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
