"""A figure of what training cost: seconds and memory as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .runs import Collection, Group
from .style import GRID, INK, PAPER, SOFT, WIDE, Look, canvas, cut, looks, mark, panel, styled
from .table import spreads

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Cost(NamedTuple):
    """What a panel shows of a group: a bar, and a dot per session."""

    bar: float
    dots: list[float]


@styled
def costs(collection: Collection, setting: str, width: int = WIDE) -> Figure | None:
    """Seconds per session and the largest memory of each group."""
    members = looks(collection, setting)
    measures: dict[str, Callable[[Group], _Cost | None]] = {
        "seconds per session": _seconds,
        "peak memory, MB": lambda group: _memory(group, "peak_memory_mb"),
        "peak GPU memory, MB": lambda group: _memory(group, "gpu_memory_mb"),
    }
    found = {title: [measure(group) for group, _ in members] for title, measure in measures.items()}
    shown = {title: values for title, values in found.items() if any(value is not None for value in values)}
    wide = width >= WIDE
    row, left = (28, 190) if wide else (46, 12)
    height = row * len(members)
    side = (width - left) / len(shown) if wide else width - left
    figure = canvas(width, height + 62 if wide else (height + 70) * len(shown))
    for index, (title, values) in enumerate(shown.items()):
        place = (left + index * side, 32) if wide else (left, 32 + index * (height + 70))
        axes = panel(figure, *place, side - (40 if wide else 30), height)
        axes.set_title(title, loc="left", size=13, pad=10)
        _draw_costs(axes, members, values, row, named=not wide or index == 0, wide=wide)
    return figure


def _draw_costs(
    axes: Axes, members: Sequence[tuple[Group, Look]], values: Sequence[_Cost | None], row: int, named: bool, wide: bool
) -> None:
    from matplotlib.ticker import MaxNLocator

    for index, ((group, look), value) in enumerate(zip(members, values, strict=True)):
        middle = row * (index + (0.5 if wide else 0.7))
        drawn = [_name_bar(axes, group.label, middle, wide)] if named else []
        mark(drawn if value is None else [*drawn, *_draw_bar(axes, value, look, middle)], look.mark)
    axes.set_ylim(row * len(members), 0)  # in pixels, downwards
    axes.set_xlim(0, 1.2 * max(max([one.bar, *one.dots]) for one in values if one is not None) or 1)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(axis="x", color=GRID, linewidth=1)


def _name_bar(axes: Axes, name: str, middle: float, wide: bool) -> Artist:
    place = axes.get_yaxis_transform()  # x as a fraction of the panel, y in pixels
    if wide:
        return axes.text(-0.03, middle, cut(name, 26), transform=place, ha="right", va="center")
    return axes.text(0, middle - 11, cut(name, 40), transform=place, va="bottom")


def _draw_bar(axes: Axes, value: _Cost, look: Look, middle: float) -> list[Artist]:
    level = [middle] * len(value.dots)
    text = f"{value.bar:.3g}" if value.bar < 100 else f"{value.bar:.0f}"
    return [
        *axes.barh(middle, value.bar, height=15, color=look.colour, alpha=0.85),
        *axes.plot(value.dots, level, ".", color=INK, markersize=7, markeredgecolor=PAPER, markeredgewidth=0.6),
        axes.text(1.0, middle, text, transform=axes.get_yaxis_transform(), ha="right", va="center", color=SOFT),
    ]


def _seconds(group: Group) -> _Cost:
    """The mean over sessions and seeds, with a dot per session."""
    found = spreads(
        {one.session: one.train_seconds for one in run.result.sessions}
        | {line["session"]: line["session_seconds"] for line in run.evaluations}
        for run in group.shown
    )
    means = [one.mean for one in found.values()]
    return _Cost(sum(means) / len(means), means if len(means) > 1 else [])


def _memory(group: Group, key: str) -> _Cost | None:
    values = [float(line[key]) for run in group.shown for line in run.evaluations if line[key] is not None]
    return _Cost(max(values), []) if values else None
