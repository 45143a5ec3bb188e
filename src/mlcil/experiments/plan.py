"""What to run: one experiment, or a grid of published rows, of methods by protocols, or of what a file lists.

Methods and presets need torch, so they are imported by the functions that use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import build, option_names
from ..core.errors import UserError, unknown_name
from ..data.sources import kind_of
from ..training.config import RunConfig, RunSettings, make_config, read_config
from .grid import GridRun

if TYPE_CHECKING:
    from .presets import Preset

_SETTINGS = option_names(RunSettings)


def run_config(changes: Mapping[str, object], file: Path | None = None, preset: str | None = None) -> RunConfig:
    """The configuration of one run.

    Arguments:
        changes: settings and options of the method by name; they override the file or the preset.
        file: YAML file of settings.
        preset: name of a published row; `changes` must then have the data set.

    Raises:
        UserError: there are both a file and a preset, or something in them or in `changes` is wrong.
    """
    values, where = _named_values(changes, file, preset)
    return make_config(values, changes, where)


def early_settings(changes: Mapping[str, object], file: Path | None = None, preset: str | None = None) -> RunSettings:
    """The settings of one run, checked, before its method is imported; arguments as for `run_config`.

    The method may still have defaults of its own for some of them, but not for the data, the classes or the hardware.

    Raises:
        UserError: as for `run_config`, except for mistakes in the method and its options.
    """
    values, where = _named_values(changes, file, preset)
    merged = {**values, **changes}
    return build(RunSettings, {key: value for key, value in merged.items() if key in _SETTINGS}, where)


def _named_values(changes: Mapping[str, object], file: Path | None, preset: str | None) -> tuple[dict[str, Any], str]:
    """The settings of a file or a preset, and what an error calls them."""
    if file is not None and preset is not None:
        raise UserError(f"got both the file {file} and the preset {preset!r}, expected one of them")
    if preset is not None:
        from .presets import find_preset, preset_values

        return preset_values(find_preset(preset), changes.get("data")), f"preset {preset}"
    return ({}, "settings") if file is None else (read_config(file), str(file))


def default_folder(settings: RunSettings) -> Path:
    """The folder of a run for which none was named."""
    if settings.preset is not None:
        return Path("runs") / f"{settings.preset}-seed{settings.seed}"
    kind = kind_of(settings.data)
    protocol = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in settings.protocol)[:40]
    return Path("runs") / f"{settings.method}-{kind}-{protocol}-seed{settings.seed}"


def preset_runs(presets: Sequence[Preset], seeds: Sequence[int], changes: Mapping[str, object]) -> list[GridRun]:
    """The runs of published rows, in folders named like the presets; `changes` must have the data set."""
    from .presets import preset_values

    return _with_seeds({one.name: preset_values(one, changes.get("data")) for one in presets}, seeds, changes)


def method_runs(
    methods: Sequence[str], protocols: Sequence[str], seeds: Sequence[int], changes: Mapping[str, object]
) -> list[GridRun]:
    """Every method on every protocol.

    Arguments:
        methods: each NAME, or NAME:BUFFER such as er:20 or prs:total:1000.
        changes: settings and options that all runs share.
    """
    entries = {}
    for protocol in protocols:
        for text in methods:
            name, _, buffer = text.partition(":")
            values = {"method": name, "protocol": protocol} | ({"buffer": buffer} if buffer else {})
            entries[f"{_slug(protocol)}/{_slug(text)}"] = values
    return _with_seeds(entries, seeds, changes)


def file_runs(
    file: Path, seeds: Sequence[int], changes: Mapping[str, object], only: Sequence[str] | None = None
) -> list[GridRun]:
    """The runs that a YAML file lists.

    The file has `settings` that all runs share, and `runs`: names with the settings and `options` of each run.

    Arguments:
        only: names of the runs that are wanted; None for all.

    Raises:
        UserError: the file or a setting in it is wrong, or it does not list what is wanted.
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
    entries = {str(name): {**shared, **(own or {})} for name, own in runs.items()}
    if wrong := [name for name in only or () if name not in entries]:
        raise unknown_name(f"run in {file}", wrong[0], entries)
    return _with_seeds({name: entries[name] for name in only or entries}, seeds, changes)


def _with_seeds(
    entries: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], changes: Mapping[str, object]
) -> list[GridRun]:
    if "seed" in changes or any("seed" in values for values in entries.values()):
        raise UserError("a grid's seeds are given by --seeds; leave the setting seed out")
    # Neighbours differ in their seed, so that runs which start together do not wait for the same first session.
    made = [
        GridRun(f"{name}/seed-{seed}", _config(name, {**values, "seed": seed}, changes))
        for name, values in entries.items()
        for seed in seeds
    ]
    known = {key for run in made for key in option_names(type(run.config.options))}
    for key in changes:
        if key not in _SETTINGS and key not in known:
            raise unknown_name("key for these methods", key, (*_SETTINGS, *known))
    return made


def _config(name: str, values: Mapping[str, Any], changes: Mapping[str, object]) -> RunConfig:
    """The configuration of one run; an option in `changes` is ignored if the method does not have it."""
    from ..methods.registry import method_class

    method = method_class(str(changes.get("method", values.get("method", RunSettings().method))))
    mine = {key: value for key, value in changes.items() if key in _SETTINGS or key in option_names(method.Config)}
    return make_config(values, mine, name)


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)[:60]
