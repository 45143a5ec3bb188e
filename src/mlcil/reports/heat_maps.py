"""The AP of each class after each session as a map of colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .collect import Group, RunRecord
from .style import PAPER, canvas, cut, panel, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
HEAT = "cividis"


def ap_matrix(group: Group) -> tuple[list[str], list[int], Floats]:
    """The classes, the sessions and the (K, T) AP of each after each, mean over seeds; NaN where unseen."""
    runs = group.shown
    longest = max(runs, key=lambda run: len(run.sessions)).results["ap_matrix"]
    names, sessions = list(longest["classes"]), list(longest["sessions"])
    sums, counts = np.zeros((len(names), len(sessions))), np.zeros((len(names), len(sessions)))
    rows = {name: k for k, name in enumerate(names)}
    for run in runs:  # by name: with a shuffled order, seeds may see the classes in other rows
        matrix = run.results["ap_matrix"]
        for name, values in zip(matrix["classes"], matrix["ap"], strict=True):
            ap = np.array(values, dtype=np.float64)  # None becomes NaN
            if name in rows:
                place = (rows[name], slice(len(ap)))
                sums[place] += np.nan_to_num(ap)
                counts[place] += ~np.isnan(ap)
    return names, sessions, np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


@styled
def heat_map(group: Group) -> Figure | None:
    """AP of each class (rows) after each session (columns), mean over seeds; None for a single session."""
    names, sessions, ap = ap_matrix(group)
    if not ap.size or len(sessions) < 2:
        return None
    # Many classes take lower rows; few sessions do not stretch.
    row, size = (26, 12) if len(names) <= 20 else (17, 11)
    classes = [cut(name, 16) for name in names]
    left = 10 + 0.62 * size * max(map(len, classes))
    cell = min(56.0, (300 - left - 4) / len(sessions))
    figure = canvas(300, row * len(names) + 46)
    axes = panel(figure, left, 2, cell * len(sessions), row * len(names))
    extent = (0, len(sessions), len(names), 0)
    axes.imshow(
        np.ma.masked_invalid(ap), cmap=HEAT, vmin=0, vmax=100, extent=extent, aspect="auto", interpolation="none"
    )
    _separate(axes, group.shown[0], len(sessions), names)
    if cell > 1.6 * size:
        _write_values(axes, ap, size)
    axes.set_yticks(np.arange(len(names)) + 0.5, classes, size=size)
    every = -(-len(sessions) // 12)  # with very many sessions, every second or third number is enough
    axes.set_xticks(np.arange(0, len(sessions), every) + 0.5, [str(t) for t in sessions[::every]], size=size)
    axes.set_xlabel("session", size=size)
    return figure


def _separate(axes: Axes, run: RunRecord, sessions: int, names: Sequence[str]) -> None:
    """Gaps between the cells, wider between the classes of one session and those of the next."""
    axes.spines["bottom"].set_visible(False)
    arrivals = np.cumsum([len(session["new_classes"]) for session in run.sessions])
    axes.hlines(range(len(names) + 1), 0, sessions, color=PAPER, linewidth=1.5)
    axes.hlines(arrivals[:-1], 0, sessions, color=PAPER, linewidth=4)
    axes.vlines(range(sessions + 1), 0, len(names), color=PAPER, linewidth=1.5)


def _write_values(axes: Axes, ap: Floats, size: int) -> None:
    from matplotlib import colormaps

    for (k, t), value in np.ndenumerate(ap):
        if not np.isnan(value):
            light = np.dot(np.power(colormaps[HEAT](value / 100)[:3], 2.2), (0.2126, 0.7152, 0.0722))
            ink = "#000000" if light > 0.179 else "#ffffff"  # where black and white contrast alike (WCAG)
            axes.text(t + 0.5, k + 0.5, f"{value:.0f}", ha="center", va="center_baseline", size=size, color=ink)


def gradient() -> str:
    """The map's colours as CSS stops, from 0 to 100."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return ", ".join(to_hex(colormaps[HEAT](stop)) for stop in np.linspace(0, 1, 9))
