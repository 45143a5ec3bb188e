"""A figure of the AP of each class after each session, as coloured cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation.metrics import Floats
from ..evaluation.results import RunResult
from .runs import Group
from .style import PAPER, canvas, cut, house_style, panel
from .table import spreads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAT = "cividis"


def ap_matrix(group: Group) -> tuple[list[str], Floats]:
    """The K classes and the (K, T) AP of each after each session, mean over seeds; NaN where a class has none."""
    longest = max((run.result for run in group.shown), key=lambda result: len(result.sessions))
    # By name, because seeds may order the classes differently.
    after = [spreads(run.result.sessions[t].ap for run in group.shown) for t in range(len(longest.sessions))]
    ap = [[one[name].mean if name in one else np.nan for one in after] for name in longest.classes]
    return longest.classes, np.array(ap)


@house_style()
def heat_map(group: Group) -> Figure | None:
    """AP of each class (rows) after each session (columns), mean over seeds; None for a single session."""
    names, ap = ap_matrix(group)
    sessions = ap.shape[1]
    if sessions < 2:
        return None
    # Many classes get lower rows; few sessions do not get wider cells.
    row, size = (26, 12) if len(names) <= 20 else (17, 11)
    classes = [cut(name, 16) for name in names]
    left = 10 + 0.62 * size * max(map(len, classes))
    cell = min(56.0, (300 - left - 4) / sessions)
    figure = canvas(300, row * len(names) + 46)
    axes = panel(figure, left, 2, cell * sessions, row * len(names))
    extent = (0, sessions, len(names), 0)
    axes.imshow(
        np.ma.masked_invalid(ap), cmap=HEAT, vmin=0, vmax=100, extent=extent, aspect="auto", interpolation="none"
    )
    _separate(axes, group.shown[0].result, sessions, names)
    if cell > 1.6 * size:
        _write_values(axes, ap, size)
    axes.set_yticks(np.arange(len(names)) + 0.5, classes, size=size)
    shown = range(0, sessions, -(-sessions // 12))  # with very many sessions, every second or third is enough
    axes.set_xticks([t + 0.5 for t in shown], [str(t + 1) for t in shown], size=size)
    axes.set_xlabel("session", size=size)
    return figure


def _separate(axes: Axes, result: RunResult, sessions: int, names: Sequence[str]) -> None:
    """Gaps between the cells, wider between the classes of one session and those of the next."""
    axes.spines["bottom"].set_visible(False)
    arrivals = np.cumsum([len(session.new_classes) for session in result.sessions])
    axes.hlines(range(len(names) + 1), 0, sessions, color=PAPER, linewidth=1.5)
    axes.hlines(arrivals[:-1], 0, sessions, color=PAPER, linewidth=4)
    axes.vlines(range(sessions + 1), 0, len(names), color=PAPER, linewidth=1.5)


def _write_values(axes: Axes, ap: Floats, size: int) -> None:
    from matplotlib import colormaps

    for (k, t), value in np.ndenumerate(ap):
        if not np.isnan(value):
            light = np.dot(np.power(colormaps[HEAT](value / 100)[:3], 2.2), (0.2126, 0.7152, 0.0722))
            ink = "#000000" if light > 0.179 else "#ffffff"  # black and white contrast equally here (WCAG)
            axes.text(t + 0.5, k + 0.5, f"{value:.0f}", ha="center", va="center_baseline", size=size, color=ink)
