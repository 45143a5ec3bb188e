"""Presets: each row that the KRT paper publishes, with the settings to run it and the figures to compare with.

The rows are files under `rows`. A preset's settings are those of `paper.yaml`, of its kind of data, of its folder's
`_protocol.yaml`, of its method's `setting_defaults` and of its own file; the later wins. Options under `krt` in the
shared files are given to every method that has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from ..core.config import option_names
from ..core.errors import UserError, unknown_name
from ..methods.base import Method
from ..methods.krt import KRTConfig
from ..methods.registry import method_class
from ..training.config import make_config

_PROTOCOL = "_protocol.yaml"  # in each folder, what its rows share


@dataclass(frozen=True)
class Published:
    """What the paper prints of a row, mAP and F1 in percent; None where it prints nothing.

    Attributes:
        average_map, last_map: as in the first table that has the row.
        cf1, of1: after the last session.
        sessions: mAP after each session, from the appendix; empty if it does not list the row.
        where: which tables, with their other figures for the same row.
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
        kind: of the data set that it was published for, "coco" or "voc".
        values: what `make_config` takes, all but the data set.
        published: the figures.
    """

    name: str
    about: str
    groups: tuple[str, ...]
    kind: str
    values: Mapping[str, Any]
    published: Published


def all_presets() -> dict[str, Preset]:
    """Every preset by its name, by folder and then by row."""
    return dict(_presets())


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none.
    """
    presets = _presets()
    if name not in presets:
        folder = name.partition("/")[0]
        raise unknown_name("preset", name, [one for one in presets if one.startswith(f"{folder}/")] or presets)
    return presets[name]


def preset_group(name: str) -> list[Preset]:
    """The presets of a table, a figure or a folder.

    Raises:
        UserError: there is no such group.
    """
    found = [preset for preset in _presets().values() if name in preset.groups]
    if not found:
        raise unknown_name("group of presets", name, group_names())
    return found


def group_names() -> dict[str, int]:
    """Every group with its number of rows."""
    counts = Counter(group for preset in _presets().values() for group in preset.groups)
    return dict(sorted(counts.items()))


def preset_values(preset: Preset, data: str | None) -> dict[str, Any]:
    """What `make_config` takes to run a preset.

    Arguments:
        data: the data set as of `--data`; it may be of another kind than the preset's.

    Raises:
        UserError: no data set is given.
    """
    if data is None:
        raise UserError(f"preset {preset.name} needs --data {preset.kind}:PATH")
    return deepcopy(dict(preset.values)) | {"data": data, "preset": preset.name}


@cache
def _presets() -> Mapping[str, Preset]:
    return read_presets(files(__package__) / "rows")


def read_presets(rows: Traversable) -> dict[str, Preset]:
    """The presets of a folder laid out as `rows`.

    Raises:
        ValueError: a file has an unknown key or a setting that no run takes.
    """
    paper = _read_shared(rows / "paper.yaml")
    found = [preset for entry in rows.iterdir() if entry.is_dir() for preset in _folder(rows, entry, paper)]
    return {preset.name: preset for preset in sorted(found, key=lambda preset: preset.name.split("/"))}


def _folder(rows: Traversable, folder: Traversable, paper: Mapping[str, Any]) -> list[Preset]:
    protocol = _read_shared(folder / _PROTOCOL, "kind")
    layers = [paper, _read_shared(rows / f"{protocol['kind']}.yaml"), protocol]
    own = [file for file in folder.iterdir() if file.name.endswith(".yaml") and file.name != _PROTOCOL]
    return [_preset(folder.name, protocol["kind"], layers, file) for file in own]


def _preset(folder: str, kind: str, layers: Sequence[Mapping[str, Any]], file: Traversable) -> Preset:
    row = _read(file, ("about", "groups", "settings", "published"))
    name = f"{folder}/{file.name.removesuffix('.yaml')}"
    method = method_class(row["settings"]["method"])
    try:
        values = _resolve(method, layers, row["settings"])
    except UserError as error:  # the files are ours, so it is not the user's mistake
        raise ValueError(f"preset {name}: {error}") from error
    return Preset(name, row["about"], (*row["groups"], folder), kind, values, _published(name, row["published"]))


def _resolve(method: type[Method], layers: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the settings over one another, and give them the types that they have in a run's config.yaml."""
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for layer in layers:
        settings |= layer["settings"]
        options |= {key: value for key, value in layer["krt"].items() if key in option_names(method.Config)}
    settings |= {**method.setting_defaults, **own}
    settings["options"] = options | own.get("options", {})
    made = make_config(settings).to_dict()
    return {key: made[key] for key in settings} | {
        "options": {key: made["options"][key] for key in settings["options"]}
    }


def _published(name: str, figures: Mapping[str, Any]) -> Published:
    _check_keys(name, figures, option_names(Published))
    return Published(**{**figures, "sessions": tuple(figures.get("sessions", ()))})


def _read_shared(file: Traversable, *further: str) -> dict[str, Any]:
    values = _read(file, ("settings", "krt", *further))
    _check_keys(f"krt of {file.name}", values["krt"], option_names(KRTConfig))
    return values


def _read(file: Traversable, keys: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    _check_keys(file.name, values, keys)
    return values


def _check_keys(where: str, values: Mapping[str, Any], allowed: Iterable[str]) -> None:
    if unknown := set(values) - set(allowed):
        raise ValueError(f"Got the keys {sorted(unknown)} in {where}, expected some of {list(allowed)}")
