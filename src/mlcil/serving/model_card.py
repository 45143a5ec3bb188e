"""What people read about a tagger: its table of labels, and its model card."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.escaping import csv_line, markdown
from ..core.words import counted, listed
from .records import Step
from .tagger import Tagger

COLUMNS = ("name", "step", "learned", "positives", "images", "threshold", "ap", "precision", "recall", "measured_on")


def tags_csv(tagger: Tagger) -> str:
    """The labels as CSV, one per line; AP, precision and recall in percent."""
    lines = [csv_line(COLUMNS)]
    for one, threshold in zip(tagger.labels, tagger.thresholds, strict=True):
        figures = [None if value is None else round(value, 1) for value in (one.ap, one.precision, one.recall)]
        counts = one.positives, one.images, float(threshold)
        lines.append(csv_line([one.name, one.step, one.learned, *counts, *figures, one.origin]))
    return "".join(lines)


def card(tagger: Tagger, name: str) -> str:
    """The model card, in Markdown, for a tagger that will be called so."""
    return "\n".join(_lines(tagger, name)) + "\n"


def _lines(tagger: Tagger, name: str) -> Iterator[str]:
    settings = tagger.config.settings
    labels = counted(len(tagger.labels), "label")
    yield f"# {markdown(name)}\n"
    yield f"An image tagger for {labels}, made with mlcil: each photo may have none, one or several of them.\n"
    yield "    mlcil predict . photos/"
    yield "    mlcil learn more.csv --from . --out ../next        # teach it more labels\n"
    yield "## Labels\n"
    yield from _label_table(tagger)
    yield "\n## What it learned from\n"
    yield from map(_step_line, tagger.steps)
    yield "\n## How it works\n"
    yield f"- method: `{settings.method}`, backbone: `{settings.backbone}`, images of {tagger.size} pixels"
    yield f"- pretrained weights: {markdown(tagger.weights) or 'not recorded'}"
    yield "- `preprocessing.json` says how a photo becomes the network's input; `timm` loads the backbone by"
    yield '  `timm.create_model("local-dir:PATH", pretrained=True)`'
    yield from _kept(tagger)
    yield "\n## What to know\n"
    yield "It knows only the kinds of photo that it was shown. Figures above were measured on photos like those, and"
    yield "other photos may give other figures. A label without figures was never measured."


def _label_table(tagger: Tagger) -> Iterator[str]:
    yield "| label | photos that show it | looked for on | threshold | AP | precision | recall | measured on |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for one, threshold in zip(tagger.labels, tagger.thresholds, strict=True):
        counts = ["" if value is None else str(value) for value in (one.positives, one.images)]
        figures = [_number(value) for value in (one.ap, one.precision, one.recall)]
        yield f"| {' | '.join([markdown(one.name), *counts, f'{threshold:.2f}', *figures, markdown(one.origin)])} |"


def _step_line(step: Step) -> str:
    back = f", {step.returning} of them seen before" if step.returning else ""
    new = f"; new: {markdown(listed(step.new_labels, 12))}" if step.new_labels else ""
    photos = counted(step.images, "photo")
    return f"{step.number}. {markdown(step.learned[:10])}: {photos}{back}, from {markdown(step.source)}{new}"


def _kept(tagger: Tagger) -> Iterator[str]:
    if tagger.slim:
        yield "- slim: it can tag, but not learn more"
    elif getattr(tagger.config.options, "remember", "") == "fingerprints":
        yield "- of each photo it keeps a fingerprint of 8 bytes and the labels that were given, nothing else"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
