"""Presets: every row that the KRT paper publishes, with the settings to run it and the numbers to compare with.

The rows are files under `rows`. A preset's settings come from `paper.yaml`, the file of its kind of data, the
`_protocol.yaml` of its folder, the `setting_defaults` of its method and its own file; later ones override earlier ones.
Options under `krt` in the shared files go to every method that has them.
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


def all_presets() -> dict[str, Preset]:
    """Every preset by its name, sorted by folder and then by row."""
    return dict(_presets())


def find_preset(name: str) -> Preset:
    """The preset with this name.

    Raises:
        UserError: there is no such preset.
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
    """Every group with the number of its rows."""
    counts = Counter(group for preset in _presets().values() for group in preset.groups)
    return dict(sorted(counts.items()))


def preset_values(preset: Preset, data: str | None) -> dict[str, Any]:
    """The settings and options that run a preset, as `make_config` takes them.

    Arguments:
        data: the data set, as for `--data`; its kind may differ from the preset's.

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
    """Read the presets of a folder with the layout of `rows`.

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
    except UserError as error:  # the files are part of the package, so it is not the user's mistake
        raise ValueError(f"preset {name}: {error}") from error
    return Preset(name, row["about"], (*row["groups"], folder), kind, values, _published(name, row["published"]))


def _resolve(method: type[Method], layers: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of all layers, and give them the types that they have in a run's config.yaml."""
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


def _check_keys(where: str, values: Mapping[str, object], allowed: Iterable[str]) -> None:
    if unknown := set(values) - set(allowed):
        raise ValueError(f"Got the keys {sorted(unknown)} in {where}, expected some of {list(allowed)}")
