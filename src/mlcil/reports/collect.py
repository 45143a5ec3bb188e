"""Finding run folders, gathering them into groups, and giving the groups names that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.errors import UserError
from ..core.files import read_json
from ..data import class_lists
from ..experiments.grid import GRID_FILE
from ..experiments.presets import Preset, all_presets
from .runs import Collection, Group, RunRecord, read_run

# The settings to name first where two groups of one method differ; any other setting comes after these.
_TELLING = ("buffer", "backbone", "weights", "epochs")
_FILES = ("config.yaml", "results.json")  # either of them makes a folder a run folder


def collect(paths: Sequence[Path]) -> Collection:
    """Read run folders, and the run folders inside other folders such as a grid's.

    Raises:
        UserError: none of them holds a run with a finished session.
    """
    runs: list[RunRecord] = []
    problems: list[str] = []
    commands: list[str] = []
    # Keyed by the resolved path, so that a run that is named in two ways is read once.
    folders: dict[Path, Path] = {}
    for folder in (found for path in paths for found in _folders(path, problems, commands)):
        folders.setdefault(folder.resolve(), folder)
    for folder in folders.values():
        try:
            runs.append(read_run(folder))
        except UserError as error:
            is_explained = any(line.startswith(f"{folder} failed: ") for line in problems)
            problems += [] if is_explained else [str(error)]
    if not runs:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"found no run: {problems[0] if problems else 'no run was named'}{others}")
    return Collection(_grouped(runs, problems), problems, list(dict.fromkeys(commands)))


def distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    """For each run its method, and the settings that distinguish it from other runs of the method on the same data.

    Runs that differ only in the seed get the same name.
    """
    settings = _settings(runs)
    names = []
    for run, setting in zip(runs, settings, strict=True):
        others = zip(runs, settings, strict=True)
        twins = [one for one, other in others if other == setting and one.result.method == run.result.method]
        names.append(_name(run, twins))
    return names


def _folders(path: Path, problems: list[str], commands: list[str]) -> Iterator[Path]:
    """The run folders that a path names or holds; adds to the problems and to the commands of grids."""
    if not path.exists():
        problems.append(f"{path} does not exist")
        return
    path = path.parent if path.name in _FILES else path
    if any((path / name).exists() for name in _FILES):
        yield path
        return
    for grid in sorted(path.rglob(GRID_FILE)):
        _read_grid(grid, problems, commands)
    found = sorted({file.parent for name in _FILES for file in path.rglob(name)})
    if not found:
        problems.append(f"{path} holds no run")
    yield from found


def _read_grid(file: Path, problems: list[str], commands: list[str]) -> None:
    """Add the command that started a grid, and a problem for each of its runs that failed."""
    try:
        grid = read_json(file)
        failed = [one for one in grid["runs"] if one["status"] == "failed"]
        problems += [f"{file.parent / one['name']} failed: {one['error']}" for one in failed]
        commands += [grid["command"]] if grid.get("command") else []
    except (UserError, KeyError, TypeError, AttributeError):
        problems.append(f"{file} is damaged")


def _grouped(runs: Sequence[RunRecord], problems: list[str]) -> list[Group]:
    alike: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.identity, sort_keys=True, default=str), []).append(run)
    members = [_one_per_seed(ones, problems) for ones in alike.values()]
    firsts = [ones[0] for ones in members]
    named = zip(distinct_names(firsts), _settings(firsts), members, strict=True)
    return [Group(name, setting, ones, _preset(ones)) for name, setting, ones in named]


def _one_per_seed(runs: Sequence[RunRecord], problems: list[str]) -> list[RunRecord]:
    """The runs by seed. A repeated seed is not a second sample: the run that got further counts."""
    by_seed: dict[int, RunRecord] = {}
    for run in sorted(runs, key=lambda run: -len(run.result.sessions)):
        kept = by_seed.setdefault(run.result.seed, run)
        if kept is not run:
            problems.append(f"{run.path} repeats {kept.path} with the same settings and seed, and is left out")
    return [by_seed[seed] for seed in sorted(by_seed)]


def _settings(runs: Sequence[RunRecord]) -> list[str]:
    """The data set and protocol of each run in a few words, with a number where the words are not enough."""
    known: dict[str, list[tuple[str, ...]]] = {}
    texts = []
    for run in runs:
        text, exact = _setting(run), (run.result.data, str(run.config.get("images")), run.result.protocol)
        found = known.setdefault(text, [])
        found += [] if exact in found else [exact]
        place = found.index(exact)
        texts.append(f"{text} #{place + 1}" if place else text)
    return texts


def _setting(run: RunRecord) -> str:
    kind, _, rest = run.result.data.partition(":")
    data = kind if kind == "digits" else Path((rest or kind).split(",")[0]).name or kind
    protocol = run.result.protocol
    if class_lists.is_list(protocol):
        protocol = "+".join(str(len(names)) for names in class_lists.parse(protocol)) + " classes"
    return f"{data} {protocol}" + (" with negatives" if run.result.negatives == "labelled" else "")


def _name(run: RunRecord, twins: Sequence[RunRecord]) -> str:
    """The method, and the fewest settings that distinguish the run from its twins."""
    parts: list[str] = []
    rivals = [twin for twin in twins if twin is not run]
    for key in dict.fromkeys([*_TELLING, *(key for twin in twins for key in twin.identity)]):
        left = [twin for twin in rivals if str(twin.identity.get(key)) == str(run.identity.get(key))]
        if len(left) < len(rivals):
            parts.append(f"{key.removeprefix('options.')} {_short_value(run, key, twins)}")
            rivals = left
    return f"{run.result.method} ({', '.join(parts)})" if parts else run.result.method


def _short_value(run: RunRecord, key: str, twins: Sequence[RunRecord]) -> str:
    """A setting's value in the shortest form that differs between the twins: end of a path, whole path, or hash."""
    different = len({str(twin.identity.get(key)) for twin in twins})
    whole = [str(twin.config.get(key)) for twin in twins]
    ends = [value.rpartition("/")[2] for value in whole]
    hashes = [str(twin.identity.get(key))[:8] for twin in twins]
    values = next((one for one in (ends, whole) if len(set(one)) >= different), hashes)
    return next(value for twin, value in zip(twins, values, strict=True) if twin is run)


def _preset(runs: Sequence[RunRecord]) -> Preset | None:
    named = [run.result.preset for run in runs if run.result.preset]
    return all_presets().get(named[0]) if named else None
