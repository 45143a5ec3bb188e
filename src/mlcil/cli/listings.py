"""Tables of what there is: methods, their options, settings, data sets, presets."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from ..core.config import about
from ..data.sources import SOURCES
from ..experiments.presets import Preset, all_presets, find_preset, preset_group
from ..methods.registry import all_methods, method_class
from ..training.config import RunSettings, flatten, make_config


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
    if method.setting_defaults:
        changed = ", ".join(f"{key} {value}" for key, value in method.setting_defaults.items())
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


def preset_table(group: str | None) -> Table:
    """Every preset in a line, or those of a group, with the mAP that the paper prints."""
    presets = list(all_presets().values()) if group is None else preset_group(group)
    title = "presets" if group is None else f"presets of {group}"
    table = Table(_key("name"), "what it is", "groups", _figure("average"), _figure("last"), title=title)
    for preset in presets:
        figures = preset.published
        groups = ", ".join(one for one in preset.groups if not preset.name.startswith(f"{one}/"))
        table.add_row(preset.name, preset.about, groups, _printed(figures.average_map), _printed(figures.last_map))
    return table


def preset_page(name: str) -> Group:
    """One preset: its settings beside the defaults, what the paper prints of it, and the command to run it."""
    preset = find_preset(name)
    command = f"mlcil run --preset {preset.name} --data {preset.kind}:PATH"
    return Group(_preset_settings(preset), "", _preset_figures(preset), "", Text(command, no_wrap=True))


def _preset_settings(preset: Preset) -> Table:
    config = make_config(preset.values)
    given, made = flatten(preset.values), flatten(config.to_dict())
    own = {f"options.{field.name}": field.default for field in dataclasses.fields(config.options)}
    defaults = {field.name: field.default for field in dataclasses.fields(RunSettings)} | own
    table = Table(_key("key"), "value", "default", title=f"{preset.name}: {preset.about}")
    for key, value in made.items():
        if key in given or value != defaults[key]:
            table.add_row(key.removeprefix("options."), _word(value), _word(defaults[key]))
    return table


def _preset_figures(preset: Preset) -> Table:
    figures = preset.published
    named = {"average": figures.average_map, "last": figures.last_map, "CF1": figures.cf1, "OF1": figures.of1}
    cells = named | {f"S{number}": value for number, value in enumerate(figures.sessions, start=1)}
    table = Table(title="published: mAP over and after the sessions, F1 at 0.8", caption=figures.where)
    for heading in cells:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row(*map(_printed, cells.values()))
    return table


def _figure(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _printed(value: float | None) -> str:
    return "-" if value is None else str(value)  # no more digits than the paper has


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _key(title: str) -> Column:
    return Column(title, no_wrap=True)  # a name that is cut cannot be typed


def _options(config: type[Any], title: str, caption: str) -> Table:
    table = Table(_key("key"), "default", "allowed", "what it does", "paper", title=title, caption=caption)
    for field in dataclasses.fields(config):
        one = about(field)
        kind = str(field.type).replace(" | None", " or none")
        table.add_row(field.name, _word(field.default), one.allowed() or kind, one.help, one.paper)
    return table
