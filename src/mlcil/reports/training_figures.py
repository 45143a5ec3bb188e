"""Figures of how training went: pseudo labels and losses.

Each function returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .runs import Collection, Group, RunRecord
from .style import (
    GRID,
    PAPER,
    SOFT,
    WIDE,
    Look,
    canvas,
    cut,
    legend,
    legend_height,
    looks,
    mark,
    numbered_look,
    panel,
    styled,
)
from .table import spreads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_PANELS = {
    "threshold": "threshold",
    "per_image": "labels per image",
    "precision": "precision, percent",
    "recall": "recall, percent",
}
# Lines to compare the number of labels per image with: their names in the legend and their dashes.
_REFERENCES: dict[str, tuple[str, str | tuple[int, tuple[int, int]]]] = {
    "target": ("target", ":"),
    "true_per_image": ("true labels", (0, (4, 2))),
}
Course = dict[int, float]  # by session


def pseudo_label_course(group: Group, key: str) -> Course:
    """A number about the pseudo labels of each session, mean over seeds; empty if there are none."""
    found = spreads(run.pseudo_labels(key) for run in group.shown)
    return {session: found[session].mean for session in sorted(found)}


@styled
def pseudo_labels(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """Threshold, labels per image beside target and truth, precision and recall, session by session.

    Returns:
        None if no group has pseudo labels.
    """
    members = [(group, look) for group, look in looks(collection, setting) if pseudo_label_course(group, "per_image")]
    shown = {key: title for key, title in _PANELS.items() if any(pseudo_label_course(g, key) for g, _ in members)}
    if not shown:
        return None
    wide = width >= WIDE
    across, columns = (min(2, len(shown)), 4) if wide else (1, 1)
    side = (width - 24 * (across - 1)) / across
    extra = {
        key: line for key, line in _REFERENCES.items() if any(pseudo_label_course(group, key) for group, _ in members)
    }
    rows, below = -(-len(shown) // across), 20 + legend_height(len(members) + len(extra), columns)
    figure = canvas(width, 236 * rows + below)
    panels = []
    for index, (key, title) in enumerate(shown.items()):
        axes = panel(figure, 44 + index % across * (side + 24), 34 + index // across * 236, side - 52, 170)
        _draw_pseudo_labels(axes, key, members)
        axes.set_title(title, loc="left", size=13, pad=10, x=-38 / (side - 52))
        panels.append(axes)
    for name, style in extra.values():
        panels[0].plot([], [], color=SOFT, linewidth=1.4, linestyle=style, label=name)
    legend(figure, panels[0], columns, [look.mark for _, look in members])
    return figure


def _draw_pseudo_labels(axes: Axes, key: str, members: Sequence[tuple[Group, Look]]) -> None:
    sessions: set[int] = set()
    for group, look in members:
        course = pseudo_label_course(group, key)
        sessions |= set(course)
        lines = _line(axes, course, look, group.label)
        if key == "per_image":
            for reference, (_, style) in _REFERENCES.items():
                other = pseudo_label_course(group, reference)
                lines += axes.plot(list(other), list(other.values()), color=look.colour, linewidth=1.4, linestyle=style)
        mark(lines, look.mark)
    axes.grid(axis="y", color=GRID, linewidth=1)
    axes.set_ylim(0, {"threshold": 1.05, "per_image": None}.get(key, 105))
    shown = sorted(sessions)
    axes.set_xticks(shown[:: -(-len(shown) // 12)])
    axes.set_xlabel("session", labelpad=4)


def _line(axes: Axes, course: Course, look: Look, name: str) -> list[Line2D]:
    return axes.plot(
        list(course),
        list(course.values()),
        color=look.colour,
        linewidth=2,
        linestyle=look.dash,
        marker=look.marker,
        markersize=7,
        markeredgecolor=PAPER,
        clip_on=False,
        label=name,
        zorder=3,
    )


class _Losses(NamedTuple):
    """The loss terms of a run over all epochs, with a gap between two sessions."""

    terms: dict[str, tuple[list[float], list[float]]]  # epochs, counted from 1 over all sessions, and losses
    starts: list[int]  # the number of epochs before each session


def _losses(run: RunRecord) -> _Losses:
    lines = run.epochs
    starts = [done for done, line in enumerate(lines) if done == 0 or line["session"] != lines[done - 1]["session"]]
    terms: dict[str, tuple[list[float], list[float]]] = {}
    for done, line in enumerate(lines):
        for term, value in line["losses"].items():
            epochs, values = terms.setdefault(term, ([], []))
            # Sessions of a single epoch are joined, because separate dots would not make a line.
            if done in starts and len(starts) < len(lines):
                epochs.append(done + 0.5)
                values.append(np.nan)
            epochs.append(done + 1)
            values.append(value)
    return _Losses(terms, starts)


@styled
def losses(group: Group) -> Figure | None:
    """Each term of the loss over the epochs of all sessions; the first seed in bold, the others as thin lines."""
    runs = [_losses(run) for run in group.shown]
    first = runs[0]
    numbers = [value for run in runs for _, values in run.terms.values() for value in values if np.isfinite(value)]
    if not first.terms or len(numbers) < 2:
        return None
    columns = 2
    below = 48 + legend_height(len(first.terms), columns)
    figure = canvas(300, 190 + below)
    axes = panel(figure, 54, 10, 240, 180)
    for run in reversed(runs):
        for index, term in enumerate(run.terms):
            _draw_term(axes, run, term, index, is_first=run is first)
    _frame_losses(axes, first, numbers)
    legend(figure, axes, columns, left=4)
    return figure


def _draw_term(axes: Axes, run: _Losses, term: str, index: int, is_first: bool) -> None:
    epochs, values = run.terms[term]
    style = numbered_look(index)
    alone = np.isfinite(values).sum() == 1
    axes.plot(
        epochs,
        values,
        color=style.colour,
        linestyle=("-", (0, (5, 1.5)), (0, (2, 1.2)))[index % 3],
        marker="o" if alone else "",
        linewidth=1.8 if is_first else 0.7,
        alpha=1 if is_first else 0.55,
        label=cut(term, 15) if is_first else None,
        zorder=3 if is_first else 2,
    )


def _frame_losses(axes: Axes, run: _Losses, values: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    for start in run.starts[1:]:
        axes.axvline(start + 0.5, color=SOFT, linewidth=0.7, linestyle=(0, (1, 2.5)), zorder=1)
    if min(values) > 0 and max(values) >= 100 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(which="both", length=0)
    else:
        axes.set_ylim(min(0.0, *values), None)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch; dotted lines separate sessions" if len(run.starts) > 1 else "epoch", labelpad=4)
    axes.grid(axis="y", color=GRID, linewidth=1)
