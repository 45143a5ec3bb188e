"""Tables that list the methods and their options, the settings, the data sets and the presets."""

from __future__ import annotations

import dataclasses

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from ..core.config import as_text, describe
from ..data.sources import SOURCES
from ..experiments.presets import Preset, all_presets, find_preset, preset_group
from ..methods.registry import all_methods, method_class
from ..training.config import RunSettings, flatten, make_config


def method_table() -> Table:
    """All methods, one per line."""
    table = Table(_key("name"), "what it does", "family", "buffer", "reference", title="methods")
    for name, method in all_methods().items():
        table.add_row(name, method.summary, method.family, method.buffer_use, method.reference)
    return table


def method_options(name: str) -> Table:
    """All options of a method, with their defaults and legal values."""
    method = method_class(name)
    lines = ["set them by --set KEY=VALUE, or under `options` in a YAML file", f"reference: {method.reference}"]
    if method.setting_defaults:
        changed = ", ".join(f"{key} {as_text(value)}" for key, value in method.setting_defaults.items())
        lines.append(f"this method has other defaults for these settings: {changed}")
    return _options(method.Config, f"{name}: {method.summary}", "\n".join(lines))


def setting_table() -> Table:
    """All settings of a run."""
    caption = "set them by --set KEY=VALUE or in a YAML file; some have an option of `mlcil run`"
    return _options(RunSettings, "settings of a run", caption)


def source_table() -> Table:
    """All kinds of data sets, with their options."""
    table = Table(_key("--data"), "what it reads", "options, added as ,key=value", title="data sets")
    for source in SOURCES.values():
        table.add_row(source.usage, source.summary, "\n".join(f"{key}: {text}" for key, text in source.options.items()))
    return table


def preset_table(group: str | None) -> Table:
    """All presets, or those of a group, one per line, with the mAP that the paper reports."""
    presets = list(all_presets().values()) if group is None else preset_group(group)
    title = "presets" if group is None else f"presets of {group}"
    table = Table(_key("name"), "what it is", "groups", _figure("average"), _figure("last"), title=title)
    for preset in presets:
        figures = preset.published
        groups = ", ".join(one for one in preset.groups if not preset.name.startswith(f"{one}/"))
        table.add_row(preset.name, preset.about, groups, _printed(figures.average_map), _printed(figures.last_map))
    return table


def preset_page(name: str) -> Group:
    """One preset: its settings beside the defaults, the published numbers, and the command that runs it."""
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
            table.add_row(key.removeprefix("options."), as_text(value), as_text(defaults[key]))
    return table


def _preset_figures(preset: Preset) -> Table:
    figures = preset.published
    named = {"average": figures.average_map, "last": figures.last_map, "CF1": figures.cf1, "OF1": figures.of1}
    cells = named | {f"S{number}": value for number, value in enumerate(figures.sessions, start=1)}
    title = "published: mAP, also after each session, and F1 at threshold 0.8"
    table = Table(*map(_figure, cells), title=title, caption=figures.where)
    table.add_row(*map(_printed, cells.values()))
    return table


def _figure(title: str) -> Column:
    return Column(title, justify="right", no_wrap=True)


def _printed(value: float | None) -> str:
    return "-" if value is None else str(value)  # with the digits that the paper prints


def _key(title: str) -> Column:
    return Column(title, no_wrap=True)  # a truncated name could not be typed


def _options(config: type, title: str, caption: str) -> Table:
    table = Table(_key("key"), "default", "allowed", "what it does", "source", title=title, caption=caption)
    for row in describe(config):
        table.add_row(*row)
    return table
