"""The figures of a report except the heat maps: mAP as classes arrive, what was forgotten, and the losses.

Each function returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation.metrics import Floats
from .runs import Collection, Group, RunRecord
from .style import (
    GRID,
    INK,
    PAPER,
    SOFT,
    WIDTH,
    Look,
    canvas,
    cut,
    house_style,
    legend,
    legend_height,
    looks,
    mark,
    numbered_look,
    panel,
)
from .table import fixed, spreads
from .tables import class_counts

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style()
def map_curves(collection: Collection, setting: str) -> Figure | None:
    """mAP over the number of classes seen: a line per group, with a band of one deviation over seeds."""
    members = looks(collection, setting)
    steps = class_counts([group for group, _ in members])
    if len(steps) < 2:
        return None
    has_published = any(group.published_sessions() for group, _ in members)
    columns = 4
    figure = canvas(WIDTH, 440 + 52 + legend_height(len(members) + has_published, columns))
    axes = panel(figure, 50, 12, WIDTH - 62, 428)
    for group, look in members:
        _draw_curve(axes, group, look, steps)
    if has_published:
        axes.plot(
            [], [], color=SOFT, linewidth=1.3, linestyle=":", marker="o", markerfacecolor="none", label="published"
        )
    _frame_curves(axes, steps, [group for group, _ in members])
    legend(figure, axes, columns, [look.mark for _, look in members])
    return figure


def _draw_curve(axes: Axes, group: Group, look: Look, steps: Sequence[int]) -> None:
    counts, mean, deviation = _curve(group)
    if group.is_joint(steps):
        line = axes.axhline(mean[0], color=look.colour, linewidth=2, linestyle=(0, (7, 4)), label=group.label)
        span = axes.axhspan(mean[0] - deviation[0], mean[0] + deviation[0], color=look.colour, alpha=0.14, linewidth=0)
        mark([line, span], look.mark)
        return
    lines = axes.plot(
        counts,
        mean,
        color=look.colour,
        linewidth=2.2,
        linestyle=look.dash,
        marker=look.marker,
        markersize=8,
        markeredgecolor=PAPER,
        markeredgewidth=1.3,
        clip_on=False,
        label=group.label,
        zorder=3,
    )
    band = axes.fill_between(counts, mean - deviation, mean + deviation, color=look.colour, alpha=0.14, linewidth=0)
    mark([*lines, band, *_draw_published(axes, group, look)], look.mark)


def _curve(group: Group) -> tuple[list[int], Floats, Floats]:
    """The numbers of classes seen, and the mean and deviation of the mAP at each; the deviation of one seed is 0."""
    found = group.map_by_classes()
    mean, deviation = ([one.mean for one in found.values()], [one.deviation or 0.0 for one in found.values()])
    return list(found), np.array(mean), np.array(deviation)


def _draw_published(axes: Axes, group: Group, look: Look) -> Sequence[Artist]:
    values = group.published_sessions()
    if not values:
        return []
    return axes.plot(
        list(values),
        list(values.values()),
        color=look.colour,
        linewidth=1.3,
        linestyle=":",
        marker=look.marker,
        markersize=6.5,
        markerfacecolor="none",
        clip_on=False,
    )


def _frame_curves(axes: Axes, steps: Sequence[int], groups: Sequence[Group]) -> None:
    values = [value for group in groups for value in group.published_sessions().values()]
    for _, mean, deviation in map(_curve, groups):
        values += [*(mean - deviation), *(mean + deviation)]
    step = 20 if max(values) - min(values) > 50 else 10
    low, high = max(0.0, step * np.floor(min(values) / step)), min(100.0, step * np.ceil((max(values) + 1) / step))
    axes.set_ylim(low, high)
    axes.set_yticks(np.arange(low, high + 1, step))
    axes.set_xticks(steps[:: -(-len(steps) // 12)])
    axes.set_xlabel("classes seen", labelpad=7)
    axes.set_ylabel("mAP in percent", labelpad=7)
    axes.grid(axis="y", color=GRID, linewidth=1)


def forgetting_per_class(group: Group) -> dict[str, float]:
    """Percent points that each old class lost since its best session, mean over seeds; at most 0."""
    lost = spreads(run.result.forgetting_per_class() for run in group.shown)
    return {name: one.mean for name, one in lost.items()}


@house_style()
def forgetting_strips(collection: Collection, setting: str) -> Figure | None:
    """A strip per group with a dot per old class, which shows how much of its best AP the class has lost."""
    lost = [(group, look, forgetting_per_class(group)) for group, look in looks(collection, setting)]
    lost = [entry for entry in lost if entry[2]]
    if not lost:
        return None
    row, width = 36, WIDTH - 190 - 270  # of a strip, between the group's name and the remark
    figure = canvas(WIDTH, row * len(lost) + 58)
    axes = panel(figure, 190, 8, width, row * len(lost))
    low = min(-10.0, 10 * np.floor(min(min(values.values()) for *_, values in lost) / 10))
    axes.set_xlim(low, 0)
    axes.set_ylim(row * len(lost), 0)  # in pixels, downwards
    scale = width / -low  # pixels per percent point
    for index, (group, look, values) in enumerate(lost):
        middle = row * (index + 0.5)
        drawn = _strip(axes, np.array(sorted(values.values())), look, middle, scale)
        mark([*drawn, *_name_strip(axes, group, values, middle)], look.mark)
    axes.set_yticks([])
    axes.set_xlabel("AP now minus best AP, percent points", labelpad=7)
    axes.grid(axis="x", color=GRID, linewidth=1)
    return figure


def _strip(axes: Axes, values: Floats, look: Look, middle: float, scale: float) -> list[Artist]:
    """Dots, spread above and below the line where classes lost about the same, and a tick at the mean."""
    heights, crowd = np.zeros(len(values)), dict[int, int]()
    for index, value in enumerate(values):
        slot = round(value * scale / 6)  # a dot is about six pixels wide
        count = crowd[slot] = crowd.get(slot, -1) + 1
        heights[index] = (-1) ** count * min(11.0, 3.4 * ((count + 1) // 2))
    line = axes.hlines(middle, values[0], 0, color=GRID, linewidth=1)
    dots = axes.scatter(
        values,
        middle + heights,
        s=30,
        color=look.colour,
        alpha=0.75,
        linewidth=0.6,
        edgecolors=PAPER,
        clip_on=False,
        zorder=3,
    )
    tick = axes.vlines(values.mean(), middle - 14, middle + 14, color=INK, linewidth=2.2, zorder=4)
    return [line, dots, tick]


def _name_strip(axes: Axes, group: Group, values: dict[str, float], middle: float) -> list[Artist]:
    worst = min(values, key=lambda name: values[name])
    mean = fixed(float(np.mean(list(values.values()))))
    place = axes.get_yaxis_transform()  # x as a fraction of the strip, y in pixels
    said = f"mean {mean}, worst {cut(worst, 14)} {fixed(values[worst])}"
    return [
        axes.text(-0.02, middle, cut(group.label, 26), transform=place, ha="right", va="center"),
        axes.text(1.03, middle, said, transform=place, va="center", color=SOFT),
    ]


Course = tuple[list[float], list[float]]  # epochs, counted from 1 over all sessions, and losses


def _starts(run: RunRecord) -> list[int]:
    """The number of epochs before each session."""
    sessions = [line["session"] for line in run.epochs]
    return [sessions.index(session) for session in dict.fromkeys(sessions)]


def _terms(run: RunRecord) -> dict[str, Course]:
    """The loss terms of a run over all epochs, with a gap between two sessions."""
    lines, starts = run.epochs, _starts(run)
    terms: dict[str, Course] = {}
    for done, line in enumerate(lines):
        for term, value in line["losses"].items():
            epochs, values = terms.setdefault(term, ([], []))
            # Sessions of a single epoch are joined, because separate dots would not make a line.
            if done in starts and len(starts) < len(lines):
                epochs.append(done + 0.5)
                values.append(np.nan)
            epochs.append(done + 1)
            values.append(value)
    return terms


@house_style()
def losses(group: Group) -> Figure | None:
    """Each term of the loss over the epochs of all sessions; the first seed in bold, the others as thin lines."""
    runs = [_terms(run) for run in group.shown]
    first = runs[0]
    numbers = [value for terms in runs for _, values in terms.values() for value in values if np.isfinite(value)]
    if not first or len(numbers) < 2:
        return None
    columns = 2
    figure = canvas(300, 190 + 48 + legend_height(len(first), columns))
    axes = panel(figure, 54, 10, 240, 180)
    for terms in reversed(runs):
        for index, (name, course) in enumerate(terms.items()):
            _draw_term(axes, name, course, index, is_first=terms is first)
    _frame_losses(axes, _starts(group.shown[0]), numbers)
    legend(figure, axes, columns, left=4)
    return figure


def _draw_term(axes: Axes, name: str, course: Course, index: int, is_first: bool) -> None:
    axes.plot(
        *course,
        color=numbered_look(index).colour,
        linestyle=("-", (0, (5, 1.5)), (0, (2, 1.2)))[index % 3],
        marker="o" if np.isfinite(course[1]).sum() == 1 else "",
        linewidth=1.8 if is_first else 0.7,
        alpha=1 if is_first else 0.55,
        label=cut(name, 15) if is_first else None,
        zorder=3 if is_first else 2,
    )


def _frame_losses(axes: Axes, starts: Sequence[int], values: Sequence[float]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    for start in starts[1:]:
        axes.axvline(start + 0.5, color=SOFT, linewidth=0.7, linestyle=(0, (1, 2.5)), zorder=1)
    if min(values) > 0 and max(values) >= 100 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(which="both", length=0)
    else:
        axes.set_ylim(min(0.0, *values), None)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch; dotted lines separate sessions" if len(starts) > 1 else "epoch", labelpad=4)
    axes.grid(axis="y", color=GRID, linewidth=1)
