"""Drawing the tags of a photo: the photo itself, an outline for each tag where its evidence is, and chips above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..serving.explanation import ExplainedTag, Explanation
from ..serving.places import OUTLINE, Place, place_of
from .style import COLOURS, INK, SOFT, cut, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST, SHORTEST = 1000, 640  # pixels of the longer side of a drawn photo; a smaller one is enlarged
NARROWEST = 480  # pixels of a drawing, so that chips fit beside each other
OUTLINED = 5  # tags with a place in the photo; more outlines could not be told apart
EDGE, CHIP, GAP, NOTE = 16, 34, 10, 34  # pixels: margin, height of a row of chips, between chips, of the sentence
DOTS = 100  # pixels per inch
_PALE = "#e4e7ea"  # chips of tags without an outline
_TINT = 0.45  # how much of the photo the colour of a tag may cover


class Shown(NamedTuple):
    """A tag as it is drawn: with a colour, and a place unless the evidence is the same everywhere."""

    tag: ExplainedTag
    colour: str
    place: Place | None


@house_style()
def draw(explanation: Explanation, longest: int = LONGEST) -> Figure:
    """The photo with the places of its strongest tags, and a chip for each tag above it.

    Arguments:
        longest: pixels of the photo's longer side at most.
    """
    shown = _shown(explanation.tags)
    photo = _at_size(explanation.pixels, longest)
    height, width = photo.shape[:2]
    across = max(width, NARROWEST)
    rows = _chip_rows(shown, across)
    head = EDGE + len(rows) * (CHIP + GAP)
    figure = _canvas(across + 2 * EDGE, head + height + NOTE + EDGE // 2)
    for number, row in enumerate(rows):
        for left, one in row:
            _chip(figure, EDGE + left, EDGE + number * (CHIP + GAP) + CHIP / 2, one)
    axes = _axes(figure, EDGE, head, width, height)
    axes.imshow(_tinted(photo, shown), interpolation="nearest", extent=(0, 1, 1, 0), aspect="auto")
    for one in reversed(shown):  # the strongest on top
        _outline(axes, one)
    _label_peaks(axes, shown)
    _write(figure, EDGE, head + height + NOTE / 2 + 4, _sentence(explanation.tags), size=11, color=SOFT)
    return figure


def _shown(tags: tuple[ExplainedTag, ...]) -> list[Shown]:
    strongest = [Shown(tag, COLOURS[n], place_of(tag.map)) for n, tag in enumerate(tags[:OUTLINED])]
    return strongest + [Shown(tag, _PALE, None) for tag in tags[OUTLINED:]]


def _at_size(pixels: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """The photo at the size at which it is drawn, uint8 (H, W, 3)."""
    height, width = pixels.shape[:2]
    scale = min(max(max(height, width), SHORTEST), longest) / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def _tinted(photo: NDArray[np.uint8], shown: list[Shown]) -> NDArray[Any]:
    """The photo, float (H, W, 3), with a tint of each tag's colour that grows with its evidence."""
    result = photo / 255
    size = (photo.shape[1], photo.shape[0])
    places = [(one.colour, one.place.evidence) for one in shown if one.place is not None]
    for colour, evidence in places:
        large = np.asarray(Image.fromarray(evidence).resize(size, Image.Resampling.BICUBIC)).clip(0, 1)
        cover = _TINT * large[..., None] ** 1.5 / len(places) ** 0.5  # (H, W, 1); several tints may lie on each other
        result = (1 - cover) * result + cover * _rgb(colour)
    return np.asarray(result).clip(0, 1)


def _outline(axes: Axes, one: Shown) -> None:
    if one.place is None:
        return
    from matplotlib.patheffects import withStroke

    region, evidence = one.place.region, one.place.evidence
    fine, is_above = len(evidence), evidence > OUTLINE
    alone = np.where(region == is_above, evidence, region)  # without other parts, and without holes
    closed = np.pad(alone, 1)  # with nothing around it, the outline closes along the photo's edge
    middles = np.clip((np.arange(-1, fine + 1) + 0.5) / fine, 0, 1)
    lines = axes.contour(
        middles, middles, closed, levels=[OUTLINE], colors=[one.colour], linewidths=2.6,
        linestyles="solid" if one.tag.is_present else "dashed",
    )  # fmt: skip
    lines.set_path_effects([withStroke(linewidth=5, foreground="white", alpha=0.85)])


def _label_peaks(axes: Axes, shown: list[Shown]) -> None:
    """A dot at the peak of each outlined tag, and its name above; a label that would cover another one gives way."""
    box = axes.bbox
    peaks = [(one, one.place.peak) for one in shown if one.place is not None]
    # Left, top, right, bottom in pixels of the photo; labels keep off the dots, too.
    taken = [(x * box.width - 6, y * box.height - 6, x * box.width + 6, y * box.height + 6) for _, (x, y) in peaks]
    for one, peak in peaks:
        axes.plot(*peak, marker="o", color=one.colour, markersize=8, markeredgecolor="white", zorder=3)
        name, size = cut(one.tag.name, 24), 12.0
        half, tall = _width_of(name, size) / 2 + 8, 29.0
        x = float(np.clip(peak[0] * box.width, half, max(half, box.width - half)))
        y = _free_height(x, peak[1] * box.height - tall, half, tall, box.height, taken)
        taken.append((x - half, y - tall / 2, x + half, y + tall / 2))
        style = {"boxstyle": "round,pad=0.3", "facecolor": one.colour, "edgecolor": "white", "linewidth": 1.2}
        axes.text(
            x / box.width, y / box.height, name, ha="center", va="center", size=size, bbox=style,
            color=_ink_on(one.colour),
        )  # fmt: skip


def _free_height(
    x: float, y: float, half: float, tall: float, height: float, taken: list[tuple[float, float, float, float]]
) -> float:
    """The height nearest to y at which a label of this size covers no other one."""
    steps = sorted(range(-2 * len(taken) - 1, 2 * len(taken) + 2), key=abs)
    wanted = float(np.clip(y, tall / 2, max(tall / 2, height - tall / 2)))
    for place in (wanted + step * tall * 0.55 for step in steps):
        is_free = all(
            x + half <= left or right <= x - half or place + tall / 2 <= top or bottom <= place - tall / 2
            for left, top, right, bottom in taken
        )
        if is_free and tall / 2 <= place <= height - tall / 2:
            return place
    return wanted


def _chip_rows(shown: list[Shown], width: float) -> list[list[tuple[float, Shown]]]:
    """The chips line by line, each with its left edge in pixels."""
    rows: list[list[tuple[float, Shown]]] = [[]]
    left = 0.0
    for one in shown:
        wide = _width_of(_words(one.tag), 12.5) + 18
        if rows[-1] and left + wide > width:
            rows.append([])
            left = 0.0
        rows[-1].append((left, one))
        left += wide + GAP
    return rows


def _chip(figure: Figure, left: float, middle: float, one: Shown) -> None:
    colour = one.colour if one.tag.is_present else "white"
    style = {"boxstyle": "round,pad=0.38,rounding_size=0.8", "facecolor": colour, "edgecolor": one.colour}
    _write(figure, left + 9, middle, _words(one.tag), size=12.5, color=_ink_on(colour), bbox=style | {"linewidth": 2})


def _words(tag: ExplainedTag) -> str:
    words = f"{cut(tag.name, 40)} {tag.score:.2f} (from {tag.threshold:.2f})"
    return words if tag.is_present else f"nearest, below its threshold: {words}"


def _sentence(tags: tuple[ExplainedTag, ...]) -> str:
    if not tags[0].is_present:
        return "No tag reaches its threshold."
    return "Each line surrounds what speaks most for its tag."


def _canvas(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS, facecolor="white")


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    across, down = (DOTS * side for side in figure.get_size_inches())
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.set(xlim=(0, 1), ylim=(1, 0))
    axes.set_axis_off()
    return axes


def _write(figure: Figure, left: float, middle: float, text: str, **look: Any) -> None:
    across, down = (DOTS * side for side in figure.get_size_inches())
    figure.text(left / across, 1 - middle / down, text, va="center", **look)


def _width_of(text: str, points: float) -> float:
    """The width of a text in pixels."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=points).get_extents().width) * DOTS / 72 if text.strip() else 0.0


def _rgb(colour: str) -> NDArray[np.float64]:
    return np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])


def _ink_on(colour: str) -> str:
    """White or dark text, whichever can be read better on the colour."""
    is_light = colour == "white" or float(_rgb(colour) @ [0.299, 0.587, 0.114]) > 0.5
    return INK if is_light else "white"
