"""Drawing the maps of a picture: an overlay for each tag, and one for the attention of each session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ..serving.explanation import Explanation, Tag
from .style import INK, SOFT, cut, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, GAP, EDGE = 1200, 12, 14  # pixels of a drawing
COLUMNS, MOST_COLUMNS = 5, 9  # panels in a row: of tags, and of sessions
_HEAT = "inferno"


@house_style()
def draw(explanation: Explanation, title: str) -> Figure:
    """The picture, a panel per tag, and below them the attention of each session.

    Every tag has its own colour scale; the sessions share one.
    """
    rows = [(COLUMNS, panels) for panels in _chunks(_tag_panels(explanation), COLUMNS)]
    if len(explanation.attention):
        columns = min(max(len(explanation.attention) + 1, COLUMNS), MOST_COLUMNS)
        rows += [(columns, panels) for panels in _chunks(_session_panels(explanation), columns)]
    shape = explanation.pixels.shape
    return _compose(rows, shape[0] / shape[1], title, _legend(len(explanation.attention) > 0))


Panel = Callable[["Axes"], None]


def _compose(rows: Sequence[tuple[int, list[Panel]]], aspect: float, title: str, legend: str) -> Figure:
    """Rows of panels; each panel is as wide as if its row had as many of them as the number says."""
    from matplotlib.figure import Figure

    head, below, words = 32, 54, 46  # pixels for the title, for the legend, and for the text above each panel
    sides = [(WIDTH - 2 * EDGE - GAP * (columns - 1)) / columns for columns, _ in rows]
    height = head + below + sum(side * aspect + words for side in sides) + GAP * (len(rows) - 1)
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=100, facecolor="white")
    figure.text(EDGE / WIDTH, 1 - 10 / height, title, va="top", size=12)
    top = float(head)
    for (_, panels), side in zip(rows, sides, strict=True):
        top += words
        for place, panel in enumerate(panels):
            left = EDGE + place * (side + GAP)
            box = (left / WIDTH, 1 - (top + side * aspect) / height, side / WIDTH, side * aspect / height)
            panel(figure.add_axes(box))
        top += side * aspect + GAP
    figure.text(EDGE / WIDTH, 10 / height, legend, va="bottom", size=8.5, color=SOFT, linespacing=1.4)
    return figure


def _tag_panels(explanation: Explanation) -> list[Panel]:
    def picture(axes: Axes) -> None:
        height, width = explanation.tags[0].map.shape
        _frame(axes, explanation.pixels, "the picture", f"maps of {height} x {width} places")

    def tag_panel(tag: Tag) -> Panel:
        overlay = _overlay(explanation.pixels, tag.map, float(tag.map.max()))

        def panel(axes: Axes) -> None:
            _frame(axes, overlay, f"{cut(tag.name, 22)}  {tag.score:.2f}", f"session {tag.session}")
            if tag.map.max() > 0:
                x, y = peak(tag.map, explanation.pixels.shape)
                axes.plot(x - 0.5, y - 0.5, marker="+", color="white", markersize=9, markeredgewidth=1.6)

        return panel

    return [picture, *(tag_panel(tag) for tag in explanation.tags)]


def _session_panels(explanation: Explanation) -> list[Panel]:
    most = float(explanation.attention.max())

    def session_panel(place: int) -> Panel:
        overlay = _overlay(explanation.pixels, explanation.attention[place], most)
        share = f"{100 * explanation.masses[place]:.0f} % on patches"
        return lambda axes: _frame(axes, overlay, f"session {place + 1}:", share, small=True)

    def heads(axes: Axes) -> None:
        axes.pcolormesh(explanation.by_head, cmap="cividis", vmin=0, vmax=1, edgecolors="white", linewidth=1)
        axes.invert_yaxis()
        _name_panel(axes, "sessions by heads", "0 dark, 1 yellow", small=True)
        for place, row in enumerate(explanation.by_head):
            ink = "#000000" if row[0] > 0.5 else "#ffffff"
            axes.text(0.5, place + 0.5, str(place + 1), ha="center", va="center_baseline", size=8, color=ink)
        axes.set_axis_off()

    return [*(session_panel(place) for place in range(len(explanation.attention))), heads]


def _frame(axes: Axes, image: NDArray[Any], first: str, second: str, small: bool = False) -> None:
    axes.imshow(image, aspect="auto", interpolation="bilinear")
    axes.set_axis_off()
    _name_panel(axes, first, second, small)


def _name_panel(axes: Axes, first: str, second: str, small: bool) -> None:
    size, line = (9.0, 12) if small else (11.0, 15)  # points
    for text, above, colour in ((first, 4 + line, INK), (second, 4, SOFT)):
        axes.annotate(text, (0, 1), (0, above), "axes fraction", textcoords="offset points", size=size, color=colour)


def _legend(has_attention: bool) -> str:
    if not has_attention:
        return "Tags: the positive part of the score of each place; each on its own scale, + marks the peak."
    return (
        "Tags: the positive part of attention times gradient of the tag's logit; "
        "each on its own scale, + marks the peak.\n"
        "Sessions: the share of the attention that each place gets, mean over heads, all on one scale; "
        "the rest goes to tokens. Squares: the same for each head."
    )


def _overlay(pixels: NDArray[np.uint8], values: NDArray[np.float32], most: float) -> NDArray[Any]:
    """The picture in grey under the enlarged map, float (H, W, 3); the value `most` gets the strongest colour."""
    from matplotlib import colormaps

    large = enlarged(values, pixels.shape)
    share = (large / most if most > 0 else large)[..., None]  # (H, W, 1)
    grey = (pixels @ np.array([0.299, 0.587, 0.114]) / 255)[..., None]
    colour = colormaps[_HEAT](0.15 + 0.8 * share[..., 0])[..., :3]
    covering = 0.8 * share.clip(0, 1) ** 0.7  # low values hide little of the picture
    result: NDArray[Any] = ((1 - covering) * grey + covering * colour).clip(0, 1)
    return result


def enlarged(values: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """A map (h, w), enlarged bilinearly to the (H, W) of a picture's shape."""
    large = F.interpolate(
        torch.from_numpy(values)[None, None], (shape[0], shape[1]), mode="bilinear", align_corners=False
    )
    return large[0, 0].numpy()


def peak(values: NDArray[np.float32], shape: Sequence[int]) -> tuple[float, float]:
    """The middle of the place where a map (h, w) is largest, as x and y in pixels of a picture (H, W, ...)."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    height, width = values.shape
    return (float(column) + 0.5) * shape[1] / width, (float(row) + 0.5) * shape[0] / height


def _chunks(panels: list[Panel], size: int) -> list[list[Panel]]:
    return [panels[start : start + size] for start in range(0, len(panels), size)]
