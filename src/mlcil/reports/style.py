"""How figures look, and how they become files or parts of a page.

A figure is laid out in pixels of the page and drawn in fixed colours on white paper. On the page, the colours listed in
`_PAGE` are replaced by the page's variables, so that one drawing is readable in the light and in the dark theme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.files import write_atomically

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .runs import Collection, Group

WIDTH = 960  # pixels available to a figure on the page
# Paper is not quite white, so that replacing its colour leaves white numbers on dark cells alone.
INK, SOFT, GRID, PAPER = "#1b1f24", "#59626e", "#dfe1e3", "#fffffe"
# Okabe and Ito's palette. A grey replaces yellow and black, which cannot be seen on white or on dark paper.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7d8590")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
_PAGE = {INK: "currentColor", SOFT: "var(--soft)", GRID: "var(--line)", PAPER: "var(--card)"}
_PAGE |= {colour: f"var(--colour-{index})" for index, colour in enumerate(COLOURS)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "text.parse_math": False,  # a class may be called "$5"
    "axes.unicode_minus": False,
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Look(NamedTuple):
    """How a group is drawn in all figures of a collection."""

    mark: str  # the tag of its artists, by which the page can hide them
    colour: str
    dash: Any
    marker: str


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in our style, whatever the user's own matplotlib style is; for a block or, as a decorator, a function."""
    from matplotlib import rc_context
    from matplotlib.style import context

    with context("default"), rc_context(_STYLE), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def numbered_look(index: int, mark: str = "") -> Look:
    """The look of the line with this number. Two lines never differ in colour alone."""
    dash = _DASHES[index // len(COLOURS) % len(_DASHES)]
    return Look(mark, COLOURS[index % len(COLOURS)], dash, _MARKERS[index % len(_MARKERS)])


def looks(collection: Collection, setting: str) -> list[tuple[Group, Look]]:
    """The groups of a setting with their looks; groups of the same name look the same in all settings."""
    places: dict[str, int] = {}
    for group in collection.groups:
        places.setdefault(group.name, len(places))
    return [
        (group, numbered_look(places[group.name], f"group-{number}"))
        for number, group in enumerate(collection.groups)
        if group.setting == setting
    ]


def canvas(width: float, height: float) -> Figure:
    """An empty figure of this size in pixels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72))


def panel(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes without a frame, placed in pixels from the figure's upper left corner."""
    across, down = (72 * side for side in figure.get_size_inches())
    axes = figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    return axes


def mark(artists: Iterable[Artist | None], name: str) -> None:
    """Tag the artists that belong to a group."""
    for artist in artists:
        if artist is not None:
            artist.set_gid(name)


def legend(figure: Figure, axes: Axes, columns: int, marks: Sequence[str] = (), left: float = 24) -> None:
    """Write the labels of `axes` along the lower edge of the figure; the first ones are tagged with `marks`."""
    width = 72 * figure.get_size_inches()[0]
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(columns, len(labels)))
    # Matplotlib fills column by column; reading goes row by row.
    order = [index for start in range(columns) for index in range(start, len(labels), columns)]
    drawn = figure.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        loc="lower left",
        bbox_to_anchor=(left / width, 0),
        ncols=columns,
        frameon=False,
        fontsize=12,
        handlelength=3.2,
        borderpad=0.2,
    )
    for place, index in enumerate(order):
        if index < len(marks):
            mark([drawn.legend_handles[place], drawn.get_texts()[place]], marks[index])


def legend_height(labels: int, columns: int) -> float:
    """The height of a legend in pixels."""
    return 18 * -(-labels // columns) + 8


def cut(name: str, width: int) -> str:
    """The name, cut to at most `width` characters."""
    return name if len(name) <= width else name[: width - 1] + "…"


def free_name(name: str, taken: set[str]) -> str:
    """The name of a file, with a number if it is taken already; it is added to `taken`."""
    free = next(one for number in count(1) if (one := name if number == 1 else f"{name}-{number}") not in taken)
    taken.add(free)
    return free


def save_png(figure: Figure, file: Path, dpi: float = 200) -> None:
    """Write the figure on white paper, the same bytes every time."""
    options: dict[str, Any] = {"format": "png", "dpi": dpi, "facecolor": "white", "metadata": {"Software": None}}
    with house_style():
        write_atomically(file, lambda partial: figure.savefig(partial, **options))


def to_svg(figure: Figure, salt: str) -> str:
    """The figure as an SVG file of its own, the same bytes every time.

    Arguments:
        salt: unique to the figure, so that its ids differ from those of other figures on the page.
    """
    from matplotlib import rc_context

    stream = io.StringIO()
    with house_style(), rc_context({"svg.hashsalt": salt}):
        figure.savefig(stream, format="svg", facecolor=PAPER, metadata={"Date": None})
    # Ids must be unique on a page, but matplotlib calls every figure "figure_1", and a group has several artists.
    text = re.sub(r'<g id="group-(\d+)"', r'<g data-group="\1"', stream.getvalue())
    return re.sub(r'<g id="[\w.]+_\d+"', "<g", text)


def to_inline(svg: str, description: str) -> Markup:
    """An SVG of `to_svg` as an element of a page, in the page's colours and font.

    Arguments:
        description: what screen readers say.
    """
    from markupsafe import Markup

    start = svg.index("<svg")
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    body = svg[svg.index(">", start) + 1 :]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|\n *", "", body, flags=re.DOTALL)
    body = re.sub(r'(?<= style=")[^"]*', lambda found: _in_page_colours(found[0]), body)
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        'viewBox="0 0 {0} {1}" style="max-width:{0}px" aria-label="{2}">'
    ).format(width, height, description)
    return head + Markup(body)  # noqa: S704 - matplotlib has written it, and has escaped the texts in it


def _in_page_colours(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}", lambda found: _PAGE.get(found[0], found[0]), style)
