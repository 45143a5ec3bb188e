"""Figures of quality: mAP as classes arrive, and what was forgotten.

Each function returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .runs import Collection, Group
from .style import GRID, INK, PAPER, SOFT, WIDE, Look, canvas, cut, legend, legend_height, looks, mark, panel, styled
from .table import fixed, spreads
from .tables import class_counts

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


@styled
def map_curves(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """mAP over the number of classes seen: a line per group, with a band of one deviation over seeds.

    Returns:
        None if the groups have only one session, which makes no line.
    """
    members = looks(collection, setting)
    steps = class_counts([group for group, _ in members])
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


@styled
def forgetting_strips(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """A strip per group with a dot per old class, which shows how much of its best AP the class has lost.

    Returns:
        None if no group has an old class.
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


def _name_strip(axes: Axes, group: Group, values: dict[str, float], middle: float, wide: bool) -> list[Artist]:
    worst = min(values, key=lambda name: values[name])
    mean = fixed(float(np.mean(list(values.values()))))
    place = axes.get_yaxis_transform()  # x as a fraction of the strip, y in pixels
    if wide:
        said = f"mean {mean}, worst {cut(worst, 14)} {fixed(values[worst])}"
        return [
            axes.text(-0.02, middle, cut(group.label, 26), transform=place, ha="right", va="center"),
            axes.text(1.03, middle, said, transform=place, va="center", color=SOFT),
        ]
    return [
        axes.text(0, middle - 20, cut(group.label, 30), transform=place, va="bottom"),
        axes.text(1, middle - 20, mean, transform=place, va="bottom", ha="right", color=SOFT),
    ]
