"""Presets: every row that the KRT paper publishes, with the settings to run it and the numbers to compare with.

The rows are files under `rows`. A preset's settings come from `paper.yaml`, the file of its kind of data, the
`_protocol.yaml` of its folder, the `setting_defaults` of its method and its own file; later ones override earlier ones.
Options under `krt` in the shared files go to every method that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

import yaml

from ..core.config import option_names
from ..core.errors import UserError, unknown_name
from ..methods.registry import method_class
from ..training.config import make_config

_PROTOCOL = "_protocol.yaml"  # in each folder: what its rows have in common


@dataclass(frozen=True)
class Published:
    """The numbers that the paper reports for a row, mAP and F1 in percent; None where it reports none.

    Attributes:
        average_map, last_map: from the first table that has the row.
        cf1, of1: after the last session.
        sessions: mAP after each session, from the appendix; empty if the appendix does not list the row.
        where: the tables that have the row, with any other numbers that they give for it.
    """

    average_map: float | None = None
    last_map: float | None = None
    cf1: float | None = None
    of1: float | None = None
    sessions: tuple[float, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class Preset:
    """A published row.

    Attributes:
        name: folder and row, such as coco-b0-c10/krt-r-20.
        about: the row in words.
        groups: the tables and figures that it belongs to, and its folder.
        kind: the kind of data set that it was published for, "coco" or "voc".
        values: the settings and options, as `make_config` takes them, without the data set.
        published: the published numbers.
    """

    name: str
    about: str
    groups: tuple[str, ...]
    kind: str
    values: Mapping[str, Any]
    published: Published


@cache
def all_presets() -> Mapping[str, Preset]:
    """Every preset by its name, sorted by folder and then by row."""
    rows = files(__package__) / "rows"
    found = [preset for entry in rows.iterdir() if entry.is_dir() for preset in _read_folder(rows, entry)]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: one.name.split("/"))})


def find_preset(name: str) -> Preset:
    """The preset with this name.

    Raises:
        UserError: there is no such preset.
    """
    presets = all_presets()
    if name not in presets:
        folder = name.partition("/")[0]
        raise unknown_name("preset", name, [one for one in presets if one.startswith(f"{folder}/")] or presets)
    return presets[name]


def preset_group(name: str) -> list[Preset]:
    """The presets of a table, a figure or a folder.

    Raises:
        UserError: there is no such group.
    """
    presets = all_presets().values()
    found = [preset for preset in presets if name in preset.groups]
    if not found:
        raise unknown_name("group of presets", name, {group for preset in presets for group in preset.groups})
    return found


def preset_values(preset: Preset, data: object) -> dict[str, Any]:
    """The settings and options that run a preset, as `make_config` takes them.

    Arguments:
        data: the data set, as for `--data`; its kind may differ from the preset's.

    Raises:
        UserError: no data set is given.
    """
    if data is None:
        raise UserError(f"preset {preset.name} needs --data {preset.kind}:PATH")
    return {**preset.values, "data": data, "preset": preset.name}


def _read_folder(rows: Traversable, folder: Traversable) -> list[Preset]:
    protocol = _read(folder / _PROTOCOL)
    kind = protocol["kind"]
    layers = [_read(rows / "paper.yaml"), _read(rows / f"{kind}.yaml"), protocol]
    presets = []
    for file in folder.iterdir():
        if file.name != _PROTOCOL:
            row, name = _read(file), f"{folder.name}/{file.name.removesuffix('.yaml')}"
            figures = row["published"]
            published = Published(**{**figures, "sessions": tuple(figures.get("sessions", ()))})
            values = _resolve(name, layers, row["settings"])
            presets.append(Preset(name, row["about"], (*row["groups"], folder.name), kind, values, published))
    return presets


def _resolve(name: str, layers: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of all layers, and give them the types that they have in a run's config.yaml."""
    method = method_class(own["method"])
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for layer in layers:
        settings |= layer["settings"]
        options |= {key: value for key, value in layer["krt"].items() if key in option_names(method.Config)}
    settings |= {**method.setting_defaults, **own}
    settings["options"] = options | own.get("options", {})
    made = make_config(settings, where=f"preset {name}").to_dict()
    return {key: made[key] for key in settings} | {
        "options": {key: made["options"][key] for key in settings["options"]}
    }


def _read(file: Traversable) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return values
