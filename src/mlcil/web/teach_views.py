"""What the page of `mlcil teach` is shown, as plain values for JSON."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.words import counted
from ..teaching.book import TaughtLabel, words
from ..teaching.expectation import Figure
from ..teaching.scoring import LabelScores
from ..teaching.workbench import Workbench

PROBLEMS = 100  # unreadable files that are named
THRESHOLDS = np.linspace(0, 1, 101)  # that the slider has
ENOUGH = 3  # examples from which on rows make sense
WIDE = 0.35  # between the bounds of a figure that more marks would narrow


def state(bench: Workbench) -> dict[str, Any]:
    """Everything but one label's photos."""
    with bench.lock:
        tags, indexer = bench.tags(), bench.indexer
        photos = {
            "total": bench.photos.total,
            "indexed": bench.photos.looked_at,
            "is_done": indexer.is_done,
            "per_second": round(indexer.per_second, 1),
            "unreadable": len(bench.photos.problems),
            "problems": [{"name": name, "reason": why} for name, why in bench.photos.problems[:PROBLEMS]],
            "failure": indexer.failure,
        }
        facts = {one.name: one for one in bench.tagger.labels}
        return {
            "tagger": bench.folder.name,
            "photos": photos,
            "sequence": bench.journal.sequence,
            "labels": [_summary(label, tags, facts) for label in bench.book.labels.values()],
            "undo": words(bench.journal.done[-1]) if bench.journal.done else None,
            "redo": words(bench.journal.undone[-1]) if bench.journal.undone else None,
            "unsaved": bench.unsaved,
            "versions": [one._asdict() for one in bench.folder.versions()],
        }


def _summary(label: TaughtLabel, tags: dict[str, NDArray[np.bool_]], facts: dict[str, Any]) -> dict[str, Any]:
    learned = [facts[name].positives for name in label.bases if facts[name].positives is not None]
    return {
        "name": label.name,
        "is_new": label.is_new,
        "yes": label.yes,
        "no": len(label.marks) - label.yes,
        "tagged": int(tags[label.name].sum()) if label.name in tags else 0,
        "learned_from": sum(learned) if learned else None,
        "can_change": True,
    }


def view(bench: Workbench, name: str) -> dict[str, Any]:
    """One label: its rows, and what to expect of it."""
    began = time.perf_counter()
    with bench.lock:
        label, found, rows = bench.view(name)
        told = bench.told(label)
        shown = {} if rows is None else rows._asdict()
        empty: dict[str, Any] = {one: [] for one in ("likely", "unsure", "surprising")}
        result: dict[str, Any] = {
            "label": name,
            "sequence": bench.journal.sequence,
            "is_new": label.is_new,
            "yes": label.yes,
            "no": len(label.marks) - label.yes,
            "rows": empty
            | {one: [tile(bench, int(row), told, found) for row in where] for one, where in shown.items()},
            "expected": None,
            "advice": advice(label, None),
            "threshold": None,
            "tagged": 0,
            "others": _others(bench, label),
        }
        if found is not None:
            result |= _figures(label, found)
        return result | {"milliseconds": round(1000 * (time.perf_counter() - began), 1)}


def _figures(label: TaughtLabel, found: LabelScores) -> dict[str, Any]:
    precision, recall = found.expectation.at(found.score_threshold)
    ranked = np.sort(found.probabilities)
    counts = len(ranked) - np.searchsorted(ranked, THRESHOLDS, side="right")
    is_known = label.yes >= ENOUGH or not label.is_new
    return {
        "expected": {"precision": list(precision), "recall": list(recall)} if is_known else None,
        "advice": advice(label, (precision, recall)),
        "threshold": {
            "value": found.threshold,
            "own": found.own_threshold,
            "is_chosen": label.threshold is not None,
            "counts": [[float(at), int(count)] for at, count in zip(THRESHOLDS, counts, strict=True)],
        },
        "tagged": int(found.is_tagged.sum()),
    }


def advice(label: TaughtLabel, figures: tuple[Figure, Figure] | None) -> str:
    """Whether more marks would help, in one or two sentences."""
    yes, no = label.yes, len(label.marks) - label.yes
    if label.is_new and not yes:
        return "Mark three to five photos that show it."
    if label.is_new and yes < ENOUGH:
        return f"Mark {counted(ENOUGH - yes, 'more photo')} that {'shows' if ENOUGH - yes == 1 else 'show'} it."
    if label.is_new and not no:
        return "Now look at the rows: confirm what is right, and say no to what is wrong. Both teach."
    if figures is None:
        return ""
    precision, recall = figures
    if max(recall.high - recall.low, precision.high - precision.low) > WIDE:
        return (
            f"More marks would help: so far recall may be anything from {recall.low:.0%} to {recall.high:.0%}, and "
            f"precision from {precision.low:.0%} to {precision.high:.0%}. The unsure row teaches most about that."
        )
    if precision.value < 0.7:
        return "Many photos that it would tag are wrong: more marks of both kinds help, or a higher threshold."
    return "Enough marks: more of them will change little."


def _others(bench: Workbench, label: TaughtLabel) -> str:
    others = len(bench.book.labels) - (label.name in bench.book.labels)
    if not others:
        return "There is no other label."
    return (
        f"Your marks speak of this label only. For the {counted(others, 'other label')}, a marked photo counts as the "
        "tagger already scores it, so they stay as they are; saving counts how many tags are different."
    )


def tile(bench: Workbench, row: int, told: NDArray[np.int8], found: LabelScores | None) -> dict[str, Any]:
    """One photo among others."""
    has_score = found is not None and row < len(found.probabilities)
    return {
        "id": bench.photos.id(row),
        "name": bench.photos.name(row),
        "score": round(float(found.probabilities[row]), 4) if found is not None and has_score else None,
        "mark": {1: "yes", 0: "no"}.get(int(told[row])) if row < len(told) else None,
        "is_tagged": bool(found is not None and has_score and found.probabilities[row] > found.threshold),
    }


def photo(bench: Workbench, row: int) -> dict[str, Any]:
    """One photo with all its labels, the most probable first."""
    with bench.lock:
        width, height = bench.photos.size(row)
        tags: list[dict[str, Any]] = []
        for label in bench.book.labels.values():
            found, told = bench.scorer.of(label), bench.told(label)
            tags.append(
                {
                    "label": label.name,
                    "score": None if found is None else round(float(found.probabilities[row]), 4),
                    "threshold": None if found is None else found.threshold,
                    "is_tagged": bool(found is not None and found.is_tagged[row]),
                    "is_new": label.is_new,
                    "mark": {1: "yes", 0: "no"}.get(int(told[row])),
                }
            )
        tags.sort(key=lambda one: -(one["score"] or 0.0))
        return {
            "id": bench.photos.id(row),
            "name": bench.photos.name(row),
            "width": width,
            "height": height,
            "tags": tags,
        }
