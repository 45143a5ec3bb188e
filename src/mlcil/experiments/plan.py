"""Which runs a grid consists of: published rows, methods by protocols, or what a file lists; each with every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core.config import option_names
from ..core.errors import UserError, unknown_name
from ..methods.registry import method_class
from ..training.config import RunConfig, RunSettings, make_config, read_config
from .grid import GridRun
from .presets import Preset, preset_values

_SHARED = {field.name for field in fields(RunSettings)}


def preset_runs(
    presets: Sequence[Preset], data: str | None, seeds: Sequence[int], changes: Mapping[str, Any]
) -> list[GridRun]:
    """The runs of published rows, in folders named like the presets.

    Arguments:
        data: the data set, such as coco:PATH.
        changes: settings and options that win over the presets'.

    Raises:
        UserError: the data set is missing, or a setting is wrong.
    """
    return _with_seeds({one.name: preset_values(one, data) for one in presets}, seeds, changes)


def method_runs(
    methods: Sequence[str], protocols: Sequence[str], seeds: Sequence[int], changes: Mapping[str, Any]
) -> list[GridRun]:
    """Every method on every protocol.

    Arguments:
        methods: each NAME, or NAME:BUFFER such as er:20 or prs:total:1000.
        changes: settings and options of all of them.

    Raises:
        UserError: a name or a setting is wrong.
    """
    entries = {}
    for protocol in protocols:
        for text in methods:
            name, _, buffer = text.partition(":")
            values = {"method": name, "protocol": protocol} | ({"buffer": buffer} if buffer else {})
            entries[f"{_slug(protocol)}/{_slug(text)}"] = values
    return _with_seeds(entries, seeds, changes)


def file_runs(file: Path, seeds: Sequence[int], changes: Mapping[str, Any]) -> list[GridRun]:
    """The runs that a YAML file lists.

    It has `settings`, shared by all, and `runs`, by name: each the settings and `options` of its own.

    Raises:
        UserError: the file or a setting in it is wrong.
    """
    listed = read_config(file)
    for key in listed:
        if key not in ("settings", "runs"):
            raise unknown_name(f"key in {file}", key, ("settings", "runs"))
    shared, runs = listed.get("settings") or {}, listed.get("runs")
    if not isinstance(runs, dict) or not runs:
        raise UserError(f"{file} lists no runs, expected a mapping `runs` from names to settings")
    if not isinstance(shared, dict) or not all(isinstance(own or {}, dict) for own in runs.values()):
        raise UserError(f"{file}: `settings` and each of `runs` must map names to values")
    return _with_seeds({str(name): {**shared, **(own or {})} for name, own in runs.items()}, seeds, changes)


def _with_seeds(
    entries: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], changes: Mapping[str, Any]
) -> list[GridRun]:
    if "seed" in changes or any("seed" in values for values in entries.values()):
        raise UserError("a grid's seeds are given by --seeds; leave out the setting seed")
    # Neighbours differ in the seed: runs that start together then have no first session to wait for.
    made = [
        GridRun(f"{name}/seed-{seed}", _config(name, {**values, "seed": seed}, changes))
        for name, values in entries.items()
        for seed in seeds
    ]
    known = {key for run in made for key in option_names(type(run.config.options))}
    for key in changes:
        if key not in _SHARED and key not in known:
            raise unknown_name("key for these methods", key, (*_SHARED, *known))
    return made


def _config(name: str, values: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """The configuration; an option in `changes` goes to the methods that have it."""
    method = method_class(str(changes.get("method", values.get("method", RunSettings().method))))
    mine = {key: value for key, value in changes.items() if key in _SHARED or key in option_names(method.Config)}
    return make_config(values, mine, name)


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)[:60]
