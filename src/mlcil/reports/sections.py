"""The sections of a report's page, and their tables and figures as files."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import UserError
from ..core.files import write_text
from .attention_maps import maps_for_report
from .figures import forgetting_strips, losses, map_curves
from .heat_maps import heat_map
from .runs import Collection, Group
from .style import free_name, save_png, to_inline, to_svg
from .table import Table, to_csv, to_latex, to_markdown
from .tables import cost, environment, forgetting, per_class, pseudo_labels, published, sessions, summary

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

SettingFigure = Callable[[Collection, str], "Figure | None"]
SettingTable = Callable[[Collection, str], Table | None]
GroupFigure = Callable[[Group], "Figure | None"]
_FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


# By section, its title on the page and what the reader must know if no table's note says it.
_TEXTS = {
    "summary": ("Summary", ""),
    "published": ("Measured and published", ""),
    "curves": (
        "mAP as classes arrive",
        "Each mark is the mAP over all classes seen so far, the mean over seeds with a band of one sample "
        "deviation. A horizontal dashed line is a run that learned all classes at once; open marks on a "
        "dotted line are published values.",
    ),
    "classes": (
        "What became of each class",
        "Average precision of every class after every session. A row that darkens to the right is a class "
        "being forgotten; an empty cell is a class not yet seen or without a positive test image.",
    ),
    "forgetting": (
        "What was forgotten",
        "A dot is an old class: its AP after the last session minus the best it ever had. The upright bar is "
        "the mean; 0 means that nothing was lost.",
    ),
    "pseudo-labels": ("Pseudo labels", ""),
    "losses": (
        "Losses",
        "Each term of the loss over the epochs of all sessions; the first seed in bold, the others as thin lines.",
    ),
    "cost": ("Cost", ""),
    "attention": (
        "Where the models look",
        "The tags of a few test images, and where in them a model finds each.",
    ),
    "environment": ("Environment", ""),
}


@dataclass(frozen=True)
class Drawing:
    """A figure on the page, which a reader may filter by setting and method."""

    key: str  # the name of its file without the ending
    caption: str
    setting: str
    method: str = ""  # empty if the figure shows several
    svg: Markup | str = ""
    picture: str = ""  # a picture as a data URI, instead of the SVG


@dataclass(frozen=True)
class Block:
    """What a section says about one setting, or about all settings if `setting` is empty."""

    setting: str
    drawings: Sequence[Drawing] = ()
    table: Table | None = None
    is_grid: bool = False  # whether the drawings are small and stand side by side
    is_table_folded: bool = True
    note: str = ""


class Section(NamedTuple):
    """A part of the page."""

    key: str
    title: str
    note: str
    blocks: Sequence[Block]


class SectionWriter:
    """Makes the sections of the page, and writes their tables and figures as files.

    Arguments:
        out: the folder of the report.
        say: called with a line about each step.
    """

    def __init__(self, collection: Collection, out: Path, say: Callable[[str], None]) -> None:
        self.collection, self.out, self.say = collection, out, say
        self.files: dict[str, set[str]] = {"tables": set(), "figures": set()}

    def sections(self, images: int) -> list[Section]:
        """Every section that has something to show, in reading order."""
        whole = self.collection
        blocks = {
            "summary": self._over_all(summary(whole)),
            "published": self._over_all(published(whole)),
            "curves": self._per_setting("curves", map_curves, sessions, is_table_folded=False),
            "classes": self._per_group("classes", heat_map, per_class),
            "forgetting": self._per_setting("forgetting", forgetting_strips, forgetting),
            "pseudo-labels": self._over_all(pseudo_labels(whole)),
            "losses": self._per_group("losses", losses),
            "cost": self._over_all(cost(whole)),
            "attention": [self._maps(setting, images) for setting in whole.settings if images],
            "environment": self._over_all(environment(whole)),
        }
        shown = {key: [one for one in found if one.drawings or one.table or one.note] for key, found in blocks.items()}
        return [Section(key, *_TEXTS[key], found) for key, found in shown.items() if found]

    def _over_all(self, table: Table | None) -> list[Block]:
        """A table about all settings."""
        return [Block("", table=self._table(table), is_table_folded=False)]

    def _per_setting(
        self, key: str, draw: SettingFigure, tabulate: SettingTable, is_table_folded: bool = True
    ) -> list[Block]:
        """A figure and a table for each setting."""
        blocks = []
        for setting in self.collection.settings:
            figure = draw(self.collection, setting)
            drawings = [self._drawing(f"{key}-{setting}", _TEXTS[key][0], setting, figure)] if figure else []
            table = self._table(tabulate(self.collection, setting))
            blocks.append(Block(setting, drawings, table, is_table_folded=is_table_folded))
        return blocks

    def _per_group(self, key: str, draw: GroupFigure, tabulate: SettingTable | None = None) -> list[Block]:
        """A figure for each group, and a table for each setting."""
        blocks = []
        for setting in self.collection.settings:
            drawn = [(group, draw(group)) for group in self.collection.of_setting(setting)]
            drawings = [
                self._drawing(f"{key}-{setting}-{group.name}", group.label, setting, figure, group.method)
                for group, figure in drawn
                if figure is not None
            ]
            table = self._table(tabulate(self.collection, setting)) if tabulate else None
            blocks.append(Block(setting, drawings, table, is_grid=True))
        return blocks

    def _table(self, table: Table | None) -> Table | None:
        if table is None:
            return None
        named = replace(table, name=self._free_name("tables", table.name))
        for ending, render in _FORMATS.items():
            write_text(self.out / "tables" / f"{named.name}.{ending}", render(named))
        return named

    def _drawing(self, name: str, caption: str, setting: str, figure: Figure, method: str = "") -> Drawing:
        """Write the figure as files, and make an element of the page from it."""
        key = self._free_name("figures", name)
        self.say(f"figure {key}")
        svg = to_svg(figure, key)
        write_text(self.out / "figures" / f"{key}.svg", svg)
        save_png(figure, self.out / "figures" / f"{key}.png")
        return Drawing(key, caption, setting, method, to_inline(svg, f"{caption}, {setting}"))

    def _maps(self, setting: str, images: int) -> Block:
        """Pictures of the first group that has maps, trying cross-attention first; else the reason why none has."""
        groups = sorted(
            self.collection.of_setting(setting), key=lambda group: not group.runs[0].config.get("options.ica")
        )
        reasons: list[str] = []
        for group in groups:
            self.say(f"attention maps of {group.runs[0].path}")
            try:
                maps = maps_for_report(group.runs[0].path, images)
            except UserError as error:
                reasons.append(str(error))
                continue
            return Block(setting, [self._picture(group, *entry) for entry in maps])
        return Block(setting, note=reasons[0])

    def _picture(self, group: Group, caption: str, figure: Figure) -> Drawing:
        key = self._free_name("figures", f"attention-{group.setting}-{group.name}")
        file = self.out / "figures" / f"{key}.png"
        save_png(figure, file, dpi=figure.dpi)
        picture = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
        return Drawing(key, f"{group.label}: {caption}", group.setting, group.method, picture=picture)

    def _free_name(self, folder: str, name: str) -> str:
        """The name made fit for a file, with a number if another file of the folder has it."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80]
        return free_name(slug, self.files[folder])
