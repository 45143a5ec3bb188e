"""`mlcil evaluate`: how well a tagger does, printed and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.words import counted
from ..data.images import Level
from ..reports.mistakes import HEADINGS, remarks, write_evaluation
from ..reports.table import cell_text
from ..serving.evaluating import Evaluation, LabelResult, evaluate
from ..serving.tagger import Tagger
from .console import progress, say, to_stderr
from .tagging import SHOWN, check_free


def run_evaluate(source: str, data: str, images: str | None, out: Path | None, console: Console) -> bool:
    """Evaluate a tagger, print the figures and write them to a new folder; returns whether any photo could be read."""
    if out is not None:
        check_free(out)
    found = evaluate(Tagger.load(source), data, images, to_stderr, progress())
    for reason in found.bad:
        to_stderr(f"left out: {reason}")
    if not found.photos:
        to_stderr(f"no photo of {data} could be read that says anything about a label of the tagger")
        return False
    console.print(result_table(found))
    for line in overall_lines(found):
        say(console, line)
    notes = [text for level, text in found.findings if level < Level.NOTE]
    for text in (*remarks(found), *notes):
        say(console, f"note: {text}")
    if out is not None:
        say(console, f"wrote {write_evaluation(found, out)}")
    return True


def result_table(found: Evaluation) -> Table:
    """The results, a label per line."""
    title = f"{counted(len(found.results), 'label')} on {counted(len(found.photos), 'photo')} of {found.source}"
    table = Table("label", title=Text(title))
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for result in found.results[:SHOWN]:
        table.add_row(Text(result.name), *_cells(result))
    if len(found.results) > SHOWN:
        table.caption = f"and {len(found.results) - SHOWN} more"
    return table


def _cells(result: LabelResult) -> Iterator[str]:
    for name, value in zip(result._fields[1:], result[1:], strict=True):
        yield f"{result.threshold:.2f}" if name == "threshold" else cell_text(value)


def overall_lines(found: Evaluation) -> Iterator[str]:
    """The overall figures in words."""
    figures = {name: cell_text(value) for name, value in found.overall.items()}
    measured = sum(one.ap is not None for one in found.results)
    fewer = "" if measured == len(found.results) else "; the others need photos with and without them"
    yield f"mean AP {figures['mAP']} over {counted(measured, 'label')}{fewer}"
    right = f"{figures['precision']} % of the tags given are right (precision)"
    yield (
        f"at the thresholds: {'no tag was given' if found.overall['precision'] is None else right}, "
        f"{figures['recall']} % of the labels on the photos are found (recall), F1 {figures['F1']}"
    )
    yield f"probabilities differ from the true shares by {figures['ECE']} percent points (expected calibration error)"
