"""Write the tables of these pages that come from the code: `make docs`.

A page marks the place of a table, which is replaced whenever this script runs:

    <!-- generated: options krt -->
    <!-- end of generated -->
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from runpy import run_path

from mlcil.core.config import about, as_text, describe
from mlcil.methods.base import MethodConfig
from mlcil.methods.registry import all_methods
from mlcil.methods.rehearsal import RehearsalConfig

DOCS = Path(__file__).parent
METHODS = {name: one for name, one in all_methods().items() if one.__module__.startswith("mlcil.")}  # no plugins
BLOCK = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def table(header: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; `header` has its column titles separated by commas."""
    titles = header.split(",")
    lines = [" | ".join(cells) for cells in (titles, *rows)]
    return "".join(f"| {line} |\n" for line in lines).replace("\n", f"\n|{'---|' * len(titles)}\n", 1)


def options_of(config: type, base: type | None) -> str:
    """The options that a configuration adds to `base`, or has with another default or other choices."""
    known = {one.name: (one.default, about(one)) for one in dataclasses.fields(base)} if base else {}
    own = {one.name for one in dataclasses.fields(config) if known.get(one.name) != (one.default, about(one))}
    rows = []
    for one in describe(config):
        choices = one.allowed.partition("one of ")[2]
        allowed = ", ".join(f"`{choice}`" for choice in choices.split(", ")) if choices else one.allowed
        if one.key in own:
            rows.append([f"`{one.key}`", f"`{one.default}`", allowed, one.help.replace("|", "\\|"), one.paper])
    return table("key,default,allowed,meaning,source", rows)


def method_options(name: str) -> str:
    """The options of a method that are not those of all methods, or of all methods with a buffer."""
    config = METHODS[name].Config
    return options_of(config, RehearsalConfig if issubclass(config, RehearsalConfig) else MethodConfig)


def methods() -> str:
    """All methods with a link to their page; a variant such as krt_with_kd is on the page of its method."""
    pages = {name: name if (DOCS / "methods" / f"{name}.md").exists() else name.split("_")[0] for name in METHODS}
    rows = [
        [f"`{name}`", one.summary, one.family, one.buffer_use, f"[{pages[name]}.md]({pages[name]}.md)"]
        for name, one in METHODS.items()
    ]
    return table("name,what it does,family,buffer,page", rows)


def method_settings() -> str:
    """The settings for which methods have other defaults than the rest."""
    changed = {name: one.setting_defaults for name, one in METHODS.items() if one.setting_defaults}
    rows = [
        [f"`{name}`", "`" + " ".join(f"{key}={as_text(value)}" for key, value in values.items()) + "`"]
        for name, values in changed.items()
    ]
    return table("method,settings", rows)


def coco(sample: str, protocol: str) -> str:
    """The rows that were measured on a sample of MS-COCO."""
    return str(run_path(str(DOCS / "measurements" / "coco_rows.py"))["table"](sample, protocol))


def trust(name: str, size: str) -> str:
    """What a script of trust/ found when it was last run at a size, short or full."""
    found = json.loads((DOCS / "measurements" / "trust" / size / f"{name}.json").read_text())
    rows = [
        [one["name"], one["value"] if isinstance(one["value"], str) else f"{one['value']:,.6g}", one["wanted"]]
        for one in found["figures"]
    ]
    return f"    {found['command']}\n\n{found['seconds'] / 60:.1f} minutes.\n\n{table('what,found,wanted', rows)}"


BLOCKS: dict[str, Callable[..., str]] = {
    "options": method_options,
    "common_options": lambda: options_of(MethodConfig, None),
    "buffer_options": lambda: options_of(RehearsalConfig, MethodConfig),
    "methods": methods,
    "method_settings": method_settings,
    "coco": coco,
    "trust": trust,
}


def generated(text: str) -> str:
    """A page with its tables renewed."""

    def block(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return match[1] + BLOCKS[name](*arguments) + match[3]

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text()
        if (after := generated(before)) != before:
            page.write_text(after)
            print(f"{page.relative_to(DOCS)} is up to date now")
