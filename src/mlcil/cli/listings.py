"""Tables of what there is: methods, their options, settings, data sets."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.table import Column, Table

from ..core.config import about
from ..data.sources import SOURCES
from ..methods.registry import all_methods, method_class
from ..training.config import RunSettings


def method_table() -> Table:
    """Every method in a line."""
    table = Table(_key("name"), "what it does", "family", "buffer", "reference", title="methods")
    for name, method in all_methods().items():
        table.add_row(name, method.summary, method.family, method.buffer_use, method.reference)
    return table


def method_options(name: str) -> Table:
    """Every option of a method, with default, range and paper section."""
    method = method_class(name)
    lines = ["options of this method, by --set or under options:", f"reference: {method.reference}"]
    if method.recipe:
        changed = ", ".join(f"{key} {value}" for key, value in method.recipe.items())
        lines.append(f"settings with another default: {changed}")
    return _options(method.Config, f"{name}: {method.summary}", "\n".join(lines))


def setting_table() -> Table:
    """Every setting that all runs have."""
    return _options(RunSettings, "settings of a run", "by their own flag, by --set, or in the YAML file")


def source_table() -> Table:
    """Every kind of data set, with its options."""
    table = Table(_key("--data"), "what it reads", "options (after a comma, as key=value)", title="data sets")
    for source in SOURCES.values():
        table.add_row(source.usage, source.summary, "\n".join(f"{key}: {text}" for key, text in source.options.items()))
    return table


def _key(title: str) -> Column:
    return Column(title, no_wrap=True)  # a name that is cut cannot be typed


def _options(config: type[Any], title: str, caption: str) -> Table:
    table = Table(_key("key"), "default", "allowed", "what it does", "paper", title=title, caption=caption)
    for field in dataclasses.fields(config):
        one = about(field)
        default = "none" if field.default is None else str(field.default)
        kind = str(field.type).replace(" | None", " or none")
        table.add_row(field.name, default, one.allowed() or kind, one.help, one.paper)
    return table
