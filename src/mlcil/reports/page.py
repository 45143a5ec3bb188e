"""Runs as one HTML page that needs no other file and no network: curves, heat maps, tables, commands.

The figures are inline SVG. Their ink is drawn in stand-in colours that become the page's own (`currentColor`
and CSS variables), so that one drawing reads well on a light and on a dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import write_text
from .table import Results, class_counts, compare, is_joint, run_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins: any colours that occur nowhere else.
_INK, _GRID, _PAPER = "#010203", "#040506", "#070809"
_PAGE_COLOURS = {_INK: "currentColor", _GRID: "var(--line)", _PAPER: "var(--card)"}
_PAGE_COLOURS |= {"#0072b2": "var(--blue)", "#009e73": "var(--green)"}  # lighter on a dark page
# Okabe and Ito's palette, without the yellow and the black that vanish on white or on dark.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
_HEAT = "cividis"
_RESULT_KEYS = ("finished", "average_map", "last_map", "sessions", "ap_matrix", "environment")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's own font
    "text.parse_math": False,  # a class may be called "$5"
    "axes.unicode_minus": False,
    "font.size": 12,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def write_page(
    results: Sequence[Results], out: Path, title: str, explanation: str, commands: Sequence[str] = ()
) -> Path:
    """Write the page that shows the runs side by side.

    Arguments:
        results: the contents of results.json, in the order to show them; unfinished runs are welcome.
        out: the file to write.
        explanation: what the reader looks at; an empty line starts a new paragraph.
        commands: how the runs were made, one shell command each.

    Returns:
        `out`.

    Raises:
        UserError: there is no run, or the file cannot be written.
    """
    import jinja2
    from matplotlib import rc_context
    from matplotlib.style import context

    table, names = compare(results), run_names(results)
    source = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    with context("default"), rc_context(_STYLE):  # not the user's own matplotlib style
        curves = [_curves(results, names, width) for width in (960, 360)]
        heat = [{"name": name, "svg": _heat_map(run, name)} for run, name in zip(results, names, strict=True)]
    text = template.render(
        title=title,
        paragraphs=[part for part in re.split(r"\n\s*\n", explanation.strip()) if part],
        commands=list(commands),
        table=table,
        names=names,
        curves=curves,
        heat=[entry for entry in heat if entry["svg"]],
        heat_gradient=_gradient(),
        settings=_settings(results),
    )
    write_text(out, text)
    return out


def _curves(results: Sequence[Results], names: Sequence[str], width: int) -> Any:
    """mAP over the classes seen, one line per run; as wide as the screen it is meant for."""
    from matplotlib.figure import Figure

    steps, is_wide = class_counts(results), width > 500
    columns, size = (min(4, len(names)), 14) if is_wide else (1, 12)
    legend = 1.7 * size * -(-len(names) // columns)  # pixels, as everything here
    height, below = (430 if is_wide else 320) + legend, 62 + legend
    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((56 / width, below / height, 1 - 68 / width, 1 - (below + 12) / height))
    for index, (run, name) in enumerate(zip(results, names, strict=True)):
        _draw_run(axes, run, name, index, steps)
    _frame_curves(axes, steps, size)
    figure.legend(
        loc="lower left",
        bbox_to_anchor=(36 / width, 0),
        ncols=columns,
        frameon=False,
        fontsize=size,
        handlelength=3.2,
        borderpad=0.2,
    )
    return _svg(figure, f"Mean average precision after each session of {', '.join(names)}", f"curves-{width}")


def _draw_run(axes: Axes, run: Results, name: str, index: int, steps: Sequence[int]) -> None:
    colour = _COLOURS[index % len(_COLOURS)]
    sessions = run["sessions"]
    if is_joint(run, steps):
        axes.axhline(sessions[0]["map"], color=colour, linewidth=2, linestyle=(0, (7, 4)), label=name)
        return
    axes.plot(
        [len(session["classes"]) for session in sessions],
        [session["map"] for session in sessions],
        color=colour,
        linewidth=2.2,
        linestyle=_DASHES[index % len(_DASHES)] if index >= len(_COLOURS) else "-",
        marker=_MARKERS[index % len(_MARKERS)],
        markersize=8,
        markeredgecolor=_PAPER,
        markeredgewidth=1.5,
        clip_on=False,
        label=name,
        zorder=3,
    )


def _frame_curves(axes: Axes, steps: Sequence[int], size: int) -> None:
    axes.set_ylim(0, 100)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xticks(steps)
    axes.set_xlabel("classes seen", labelpad=8, size=size)
    axes.set_ylabel("mAP in percent", labelpad=8, size=size)
    axes.patch.set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=8, labelsize=size)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)


def _heat_map(run: Results, name: str) -> Any:
    """AP of each class (rows) after each session (columns); nothing for a run without a session."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    matrix = run.get("ap_matrix") or {}
    ap = np.array(matrix.get("ap") or np.zeros((0, 0)), dtype=np.float64)  # (K, T), None becomes NaN
    if not ap.size:
        return ""
    classes = [_cut(text) for text in matrix["classes"]]
    # Pixels: a map fits a phone, few sessions do not stretch, and many classes take lower rows.
    row, size, width = (26, 12, 300) if len(classes) <= 20 else (18, 11, 300)
    left = 12 + 0.62 * size * max(map(len, classes))
    cell = min(56.0, (width - left - 4) / ap.shape[1])
    height = row * len(classes) + 48
    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((left / width, 46 / height, cell * ap.shape[1] / width, 1 - 48 / height))
    axes.pcolormesh(np.ma.masked_invalid(ap), cmap=_HEAT, vmin=0, vmax=100, edgecolors=_PAPER, linewidth=2)
    if cell > 1.6 * size:
        _write_values(axes, ap, colormaps[_HEAT], size)
    _frame_heat_map(axes, classes, matrix["sessions"], size)
    return _svg(figure, f"Average precision of each class after each session of {name}", f"heat-{name}")


def _write_values(axes: Axes, ap: np.ndarray[Any, Any], colours: Any, size: int) -> None:
    for (k, t), value in np.ndenumerate(ap):
        if not np.isnan(value):
            light = np.dot(np.power(colours(value / 100)[:3], 2.2), (0.2126, 0.7152, 0.0722))
            ink = "#000000" if light > 0.179 else "#ffffff"  # where black and white contrast alike (WCAG)
            axes.text(t + 0.5, k + 0.5, f"{value:.0f}", ha="center", va="center_baseline", size=size, color=ink)


def _frame_heat_map(axes: Axes, classes: Sequence[str], sessions: Sequence[int], size: int) -> None:
    axes.invert_yaxis()
    axes.set_yticks(np.arange(len(classes)) + 0.5, classes, size=size)
    # With very many sessions, every second or third number is enough.
    every = -(-len(sessions) // 12)
    axes.set_xticks(np.arange(0, len(sessions), every) + 0.5, [str(t) for t in sessions[::every]], size=size)
    axes.set_xlabel("session", size=size)
    axes.tick_params(length=0, pad=6)
    axes.patch.set_visible(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _svg(figure: Figure, description: str, salt: str) -> Any:
    """The figure as an SVG element that follows the page's colours and is the same bytes every time."""
    from markupsafe import Markup, escape
    from matplotlib import rc_context

    figure.patch.set_visible(False)
    stream = io.StringIO()
    # A salt of its own per figure: the ids of two figures on one page must not meet.
    with rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        # The browser has glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index(">", text.index("<svg")) + 1 :], flags=re.DOTALL)
    body = re.sub(r'<g id="[\w.]+_\d+"', "<g", body)  # "figure_1" would occur once per figure
    for stand_in, colour in _PAGE_COLOURS.items():
        body = body.replace(f": {stand_in}", f": {colour}")  # in styles, not in names
    width, height = (round(72 * side) for side in figure.get_size_inches())
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        'viewBox="0 0 {0} {1}" style="max-width:{0}px" aria-label="{2}">'
    ).format(width, height, escape(description))
    return head + Markup(body)


def _gradient() -> str:
    """The heat map's colours as CSS stops, from 0 to 100."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return ", ".join(to_hex(colormaps[_HEAT](stop)) for stop in np.linspace(0, 1, 9))


def _settings(results: Sequence[Results]) -> list[dict[str, Any]]:
    """A row per plain setting of the runs; `values` holds one entry where all the runs agree."""
    plain = [_plain_settings(run) for run in results]
    keys = list(dict.fromkeys(key for run in plain for key in run))
    rows = [{"key": key, "values": [run.get(key, "-") for run in plain]} for key in keys]
    return [{**row, "values": row["values"][:1] if len(set(row["values"])) == 1 else row["values"]} for row in rows]


def _plain_settings(run: Results) -> dict[str, str]:
    environment = run.get("environment")
    entries = {key: value for key, value in run.items() if key not in _RESULT_KEYS}
    entries |= environment if isinstance(environment, Mapping) else {}
    return {key: str(value) for key, value in entries.items() if isinstance(value, str | int | float)}


def _cut(name: str, width: int = 16) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
