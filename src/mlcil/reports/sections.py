"""The sections of a report's page, and their tables and figures as files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import UserError
from ..core.files import write_atomically, write_text
from .attention_maps import maps_for_report
from .cost_figure import costs
from .figures import forgetting_strips, map_curves
from .heat_maps import heat_map
from .runs import Collection, Group
from .style import NARROW, WIDE, house_style, to_inline, to_png, to_svg
from .table import Table, to_csv, to_latex, to_markdown
from .tables import cost, environment, forgetting, per_class, published, sessions, summary
from .tables import pseudo_labels as pseudo_label_table
from .training_figures import losses, pseudo_labels

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

SettingFigure = Callable[[Collection, str, int], "Figure | None"]
SettingTable = Callable[[Collection, str], Table | None]
GroupFigure = Callable[[Group], "Figure | None"]
_FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


class Heading(NamedTuple):
    """The name of a section in the navigation, its title, and what the reader must know if no table's note says it."""

    name: str
    title: str
    note: str = ""


HEADINGS = {
    "summary": Heading("Summary", "Summary"),
    "published": Heading("Published", "Measured and published"),
    "curves": Heading(
        "Curves",
        "mAP as classes arrive",
        "Each mark is the mAP over all classes seen so far, the mean over seeds with a band of one sample "
        "deviation. A horizontal dashed line is a run that learned all classes at once; open marks on a "
        "dotted line are published values.",
    ),
    "classes": Heading(
        "Classes",
        "What became of each class",
        "Average precision of every class after every session. A row that darkens to the right is a class "
        "being forgotten; an empty cell is a class not yet seen or without a positive test image.",
    ),
    "forgetting": Heading(
        "Forgetting",
        "What was forgotten",
        "A dot is an old class: its AP after the last session minus the best it ever had. The upright bar is "
        "the mean; 0 means that nothing was lost.",
    ),
    "pseudo-labels": Heading(
        "Pseudo labels",
        "Pseudo labels",
        "What methods put in place of the labels of old classes that a session's images lack, measured "
        "against the truth that the method never sees.",
    ),
    "losses": Heading(
        "Losses",
        "Losses",
        "Each term of the loss over the epochs of all sessions; the first seed in bold, the others as thin lines.",
    ),
    "cost": Heading(
        "Cost",
        "Cost",
        "A bar is the mean over sessions and seeds, a dot is a session. Memory is the peak of the largest process.",
    ),
    "attention": Heading(
        "Attention",
        "Where the models look",
        "Where in a test image a model finds each tag, and where the parts learned in each session look.",
    ),
    "environment": Heading("Environment", "Environment"),
}


@dataclass(frozen=True)
class Drawing:
    """A figure on the page.

    Attributes:
        key: the name of its file without the ending.
        caption: the text above it.
        wide, narrow: the elements for a desktop and for a phone; `wide` alone if it fits both.
        picture: a picture as a data URI, instead of the elements.
        method, setting: what a reader may filter by; the method is empty if the figure shows several.
    """

    key: str
    caption: str
    setting: str
    method: str = ""
    wide: Markup | str = ""
    narrow: Markup | str = ""
    picture: str = ""


@dataclass(frozen=True)
class Block:
    """What a section says about one setting, or about all settings if `setting` is empty."""

    setting: str
    drawings: Sequence[Drawing] = ()
    table: Table | None = None
    is_grid: bool = False  # whether the drawings are small and stand side by side
    is_table_folded: bool = True
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    key: str
    heading: Heading
    blocks: Sequence[Block]


class SectionWriter:
    """Makes the sections of the page, and writes their tables and figures as files.

    Arguments:
        out: the folder of the report.
        say: called with a line about each step.
    """

    def __init__(self, collection: Collection, out: Path, say: Callable[[str], None]) -> None:
        self.collection, self.out, self.say = collection, out, say
        self.files: set[str] = set()

    def sections(self, images: int) -> list[Section]:
        """Every section that has something to show, in reading order."""
        whole = self.collection
        blocks = {
            "summary": self._over_all(summary(whole), is_folded=False),
            "published": self._over_all(published(whole), is_folded=False),
            "curves": self._per_setting("curves", map_curves, sessions, is_table_folded=False),
            "classes": self._per_group("classes", heat_map, per_class),
            "forgetting": self._per_setting("forgetting", forgetting_strips, forgetting),
            "pseudo-labels": self._per_setting("pseudo-labels", pseudo_labels)
            + self._over_all(pseudo_label_table(whole)),
            "losses": self._per_group("losses", losses),
            "cost": self._per_setting("cost", costs) + self._over_all(cost(whole)),
            "attention": [self._maps(setting, images) for setting in whole.settings if images],
            "environment": self._over_all(environment(whole), is_folded=False),
        }
        return [Section(key, HEADINGS[key], found) for key, found in blocks.items() if found]

    def _over_all(self, table: Table | None, is_folded: bool = True) -> list[Block]:
        """A table about all settings."""
        return [Block("", table=self._table(table), is_table_folded=is_folded)] if table else []

    def _per_setting(
        self, key: str, draw: SettingFigure, tabulate: SettingTable | None = None, is_table_folded: bool = True
    ) -> list[Block]:
        """A figure and a table for each setting."""
        blocks = []
        for setting in self.collection.settings:
            wide, narrow = (draw(self.collection, setting, width) for width in (WIDE, NARROW))
            name, title = f"{key}-{setting}", HEADINGS[key].title
            drawings = [self._drawing(name, title, setting, wide, narrow)] if wide else []
            blocks += self._with_table(Block(setting, drawings, is_table_folded=is_table_folded), tabulate)
        return blocks

    def _per_group(self, key: str, draw: GroupFigure, tabulate: SettingTable | None = None) -> list[Block]:
        """A figure for each group, and a table for each setting."""
        blocks = []
        for setting in self.collection.settings:
            drawn = [(group, draw(group)) for group in self.collection.of_setting(setting)]
            drawings = [
                self._drawing(f"{key}-{setting}-{group.name}", group.label, setting, figure, method=group.method)
                for group, figure in drawn
                if figure is not None
            ]
            blocks += self._with_table(Block(setting, drawings, is_grid=True), tabulate)
        return blocks

    def _with_table(self, block: Block, tabulate: SettingTable | None) -> list[Block]:
        """The block with the table of its setting; nothing if it has neither drawings nor a table."""
        table = tabulate(self.collection, block.setting) if tabulate is not None else None
        if table is not None:
            return [replace(block, table=self._table(table))]
        return [block] if block.drawings else []

    def _table(self, table: Table) -> Table:
        named = replace(table, name=self._free_name("tables", table.name))
        for ending, render in _FORMATS.items():
            write_text(self.out / "tables" / f"{named.name}.{ending}", render(named))
        return named

    def _drawing(
        self, name: str, caption: str, setting: str, wide: Figure, narrow: Figure | None = None, method: str = ""
    ) -> Drawing:
        """Write the wide figure as files, and make elements of the page from both."""
        key, description = self._free_name("figures", name), f"{caption}, {setting}"
        self.say(f"figure {key}")
        svg = to_svg(wide, key)
        write_text(self.out / "figures" / f"{key}.svg", svg)
        self._write_png(key, to_png(wide))
        small = to_inline(to_svg(narrow, f"{key} narrow"), description) if narrow is not None else ""
        return Drawing(key, caption, setting, method, to_inline(svg, description), small)

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
        stream = io.BytesIO()
        with house_style():
            figure.savefig(stream, format="png", metadata={"Software": None})
        data, key = stream.getvalue(), self._free_name("figures", f"attention-{group.setting}-{group.name}")
        self._write_png(key, data)
        picture = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        return Drawing(key, f"{group.label}: {caption}", group.setting, group.method, picture=picture)

    def _write_png(self, key: str, png: bytes) -> None:
        def write(partial: Path) -> None:
            partial.write_bytes(png)

        write_atomically(self.out / "figures" / f"{key}.png", write)

    def _free_name(self, folder: str, name: str) -> str:
        """The name made fit for a file, with a number if another file of the folder has it."""
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:80]
        numbered = (f"{slug}-{number}" if number > 1 else slug for number in count(1))
        free = next(one for one in numbered if f"{folder}/{one}" not in self.files)
        self.files.add(f"{folder}/{free}")
        return free
