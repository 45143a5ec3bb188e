"""Figures of what was reached: mAP as classes arrive, and what was forgotten.

Each function returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .collect import Collection, Group
from .style import GRID, INK, PAPER, SOFT, WIDE, Look, canvas, cut, legend, legend_height, looks, mark, panel, styled
from .table import class_counts, is_joint, number
from .tables import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """mAP of a group at each number of classes seen, over its seeds."""

    counts: list[int]
    mean: Floats
    deviation: Floats  # 0 for one seed


def curve(group: Group) -> Curve:
    """The group's mAP at each number of classes seen."""
    values: dict[int, list[float]] = {}
    for run in group.shown:
        for session in run.sessions:
            values.setdefault(len(session["classes"]), []).append(session["map"])
    counts = sorted(values)
    spread = [np.std(values[count], ddof=1) if len(values[count]) > 1 else 0.0 for count in counts]
    return Curve(counts, np.array([np.mean(values[count]) for count in counts]), np.array(spread))


@styled
def map_curves(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """mAP over the classes seen, one line per group, with a band of one deviation over seeds.

    Returns:
        None where the groups have one session only, which makes no line.
    """
    members = looks(collection, setting)
    steps = class_counts([run.results for group, _ in members for run in group.shown])
    if len(steps) < 2:
        return None
    wide = width >= WIDE
    published = [group for group, _ in members if group.published_sessions()]
    columns, rows = (4 if wide else 1), len(members) + bool(published)
    height, below = (440 if wide else 310), 52 + legend_height(rows, columns)
    figure = canvas(width, height + below)
    axes = panel(figure, 50, 12, width - 62, height - 12)
    for group, look in members:
        _draw_curve(axes, group, look, steps)
    if published:
        axes.plot(
            [], [], color=SOFT, linewidth=1.3, linestyle=":", marker="o", markerfacecolor="none", label="published"
        )
    _frame_curves(axes, steps, [group for group, _ in members])
    legend(figure, axes, columns, [look.mark for _, look in members])
    return figure


def _draw_curve(axes: Axes, group: Group, look: Look, steps: Sequence[int]) -> None:
    counts, mean, deviation = curve(group)
    if is_joint(group.shown[0].results, steps):
        line = axes.axhline(mean[0], color=look.colour, linewidth=2, linestyle=(0, (7, 4)), label=label(group))
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
        label=label(group),
        zorder=3,
    )
    band = axes.fill_between(counts, mean - deviation, mean + deviation, color=look.colour, alpha=0.14, linewidth=0)
    mark([*lines, band, *_draw_published(axes, group, look)], look.mark)


def _draw_published(axes: Axes, group: Group, look: Look) -> list[Any]:
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
    for _, mean, deviation in map(curve, groups):
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
    values: dict[str, list[float]] = {}
    for run in group.shown:
        for name, value in run.sessions[-1]["forgetting_per_class"].items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(ones)) for name, ones in values.items()}


@styled
def forgetting_strips(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """A strip per group with a dot per old class: how much of its best AP the class has lost.

    Returns:
        None where no group has an old class.
    """
    lost = [(group, look, forgetting_per_class(group)) for group, look in looks(collection, setting)]
    lost = [entry for entry in lost if entry[2]]
    if not lost:
        return None
    wide = width >= WIDE
    row, left, right = (36, 190, 270) if wide else (54, 18, 10)
    figure = canvas(width, row * len(lost) + 58)
    axes = panel(figure, left, 8, width - left - right, row * len(lost))
    low = min(-10.0, 10 * np.floor(min(min(values.values()) for *_, values in lost) / 10))
    axes.set_xlim(low, 0)
    axes.set_ylim(row * len(lost), 0)  # in pixels, downwards
    scale = (width - left - right) / -low  # pixels per percent point
    for index, (group, look, values) in enumerate(lost):
        middle = row * (index + (0.5 if wide else 0.66))
        drawn = _strip(axes, np.array(sorted(values.values())), look, middle, scale)
        written = _name_strip(axes, group, values, middle, wide)
        mark([*drawn, *written], look.mark)
    axes.set_yticks([])
    axes.set_xlabel("AP now minus best AP, percent points", labelpad=7)
    axes.grid(axis="x", color=GRID, linewidth=1)
    return figure


def _strip(axes: Axes, values: Floats, look: Look, middle: float, scale: float) -> list[Any]:
    """Dots side by side where classes lost alike, a line through them and a tick at the mean."""
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


def _name_strip(axes: Axes, group: Group, values: dict[str, float], middle: float, wide: bool) -> list[Any]:
    worst = min(values, key=lambda name: values[name])
    mean = number(float(np.mean(list(values.values()))))
    place = axes.get_yaxis_transform()  # x as a part of the strip, y in pixels
    if wide:
        said = f"mean {mean}, worst {cut(worst, 14)} {number(values[worst])}"
        return [
            axes.text(-0.02, middle, cut(label(group), 26), transform=place, ha="right", va="center"),
            axes.text(1.03, middle, said, transform=place, va="center", color=SOFT),
        ]
    return [
        axes.text(0, middle - 20, cut(label(group), 30), transform=place, va="bottom"),
        axes.text(1, middle - 20, mean, transform=place, va="bottom", ha="right", color=SOFT),
    ]
