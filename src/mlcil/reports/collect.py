"""Runs as they lie on disk, gathered into groups of the same experiment with other seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.config import about, as_dict
from ..core.errors import UserError
from ..core.files import read_json
from ..data.published import BENCHMARKS
from ..evaluation.results import load_results
from ..experiments.grid import GRID_FILE
from ..experiments.presets import Preset, all_presets
from ..methods.registry import method_class
from ..training.config import RunSettings, flatten, make_config, read_config
from ..training.folder import parse_lines

# What may tell two groups of one method apart, the most telling first; then whatever else differs.
_TELLING = ("buffer", "backbone", "weights", "epochs")
_FILES = ("config.yaml", "results.json")  # either makes a folder a run's
_DEFAULTS = {field.name: field.default for field in fields(RunSettings)}
_NOT_IDENTITY = {"seed", *(field.name for field in fields(RunSettings) if about(field).machine)}
_NOT_PUBLISHED = {*_NOT_IDENTITY, "data", "images"}
_NOTES = {"threshold": "threshold", "pseudo_labels_per_image": "per_image", "target": "target"}
# With a smaller part of a benchmark's test images it is a slice; a few may be missing from the whole, because all of
# their labels are difficult ones or crowds.
_WHOLE = 0.95


@dataclass(frozen=True)
class RunRecord:
    """One run folder, read.

    Attributes:
        path: the folder.
        results: results.json, with at least one session.
        config: config.yaml as flat keys, a method's own options as options.KEY, defaults filled in.
        metrics: the lines of metrics.jsonl.
        launches: of environment.json, one per start of the run.
    """

    path: Path
    results: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    launches: Sequence[Mapping[str, Any]]

    @property
    def is_finished(self) -> bool:
        """Whether all sessions are done."""
        return bool(self.results.get("finished"))

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The sessions done so far; see `evaluation.results.SessionResult`."""
        return list(self.results["sessions"])

    @cached_property
    def pseudo_labels(self) -> dict[int, Mapping[str, Any]]:
        """What the run tells of each session's pseudo labels, by session; see `evaluation.pseudo_label_quality`."""
        lines = [line for line in self.metrics if isinstance(line.get("pseudo_labels"), Mapping)]
        told = {int(line["session"]): line["pseudo_labels"] for line in lines if "session" in line}
        # An older run tells part of it in its notes.
        notes = {one["session"]: one["notes"] for one in self.sessions if "pseudo_labels_per_image" in one["notes"]}
        return told or {
            session: {ours: found.get(theirs) for theirs, ours in _NOTES.items()} for session, found in notes.items()
        }

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings that make it another experiment than others; weights count by content, wherever they lie."""
        settings = {key: value for key, value in self.config.items() if key not in _NOT_IDENTITY}
        digests = [(launch.get("weights") or {}).get("sha256") for launch in self.launches]
        return settings | {"weights": next(filter(None, digests), settings["weights"])}


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ in the seed alone, by seed.

    Attributes:
        name: unlike that of any other group with the same `setting`.
        setting: data set and protocol, such as "digits B0-C2".
        preset: the published row that the runs were started from, if any.
    """

    name: str
    setting: str
    runs: Sequence[RunRecord]
    preset: Preset | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.runs[0].results.get("method", "run"))

    @property
    def finished(self) -> list[RunRecord]:
        """The runs that are done, the only ones to average over."""
        return [run for run in self.runs if run.is_finished]

    @cached_property
    def changes(self) -> list[str]:
        """Where the runs depart from their preset, its data included, as "key: preset's -> theirs"."""
        if self.preset is None:
            return []
        # Of what the preset leaves alone, it wants the default.
        wanted, here = flatten(make_config(self.preset.values).to_dict()), self.runs[0].config
        return _other_data(self.preset.kind, self.runs) + [
            f"{key.removeprefix('options.')}: {value} -> {here.get(key)}"
            for key, value in wanted.items()
            if key not in _NOT_PUBLISHED and str(here.get(key)) != str(value)
        ]

    @property
    def shown(self) -> Sequence[RunRecord]:
        """The finished runs, or those that got furthest: figures after different sessions have no mean."""
        furthest = max(len(run.sessions) for run in self.runs)
        return self.finished or [run for run in self.runs if len(run.sessions) == furthest]

    def published_sessions(self) -> dict[int, float]:
        """The paper's mAP by number of classes seen, empty unless the runs go through the same sessions."""
        if self.preset is None or self.runs[0].config["protocol"] != self.preset.values.get("protocol"):
            return {}
        paper = self.preset.published.sessions
        run = max(self.runs, key=lambda run: len(run.sessions))
        counts = [len(one["classes"]) for one in run.sessions]
        has_all = len(counts) == len(paper) if run.is_finished else len(counts) <= len(paper)
        return dict(zip(counts, paper, strict=False)) if has_all else {}


@dataclass(frozen=True)
class Collection:
    """What a report is made of.

    Attributes:
        groups: in the order in which their first run was named.
        problems: a line for each folder that could not be shown.
        commands: that started the grids among them.
    """

    groups: Sequence[Group]
    problems: Sequence[str]
    commands: Sequence[str] = ()

    @property
    def settings(self) -> list[str]:
        """The data sets and protocols that occur, in order."""
        return list(dict.fromkeys(group.setting for group in self.groups))

    def of_setting(self, setting: str) -> list[Group]:
        """The groups of one data set and protocol."""
        return [group for group in self.groups if group.setting == setting]


def collect(paths: Sequence[Path]) -> Collection:
    """Read run folders, and the run folders within other folders such as a grid's.

    Raises:
        UserError: none of them holds a run with a finished session.
    """
    runs: list[RunRecord] = []
    problems: list[str] = []
    commands: list[str] = []
    # By its real place, so that a run that is named in two ways is read once.
    folders: dict[Path, Path] = {}
    for folder in (found for path in paths for found in _folders(path, problems, commands)):
        folders.setdefault(folder.resolve(), folder)
    for folder in folders.values():
        try:
            runs.append(read_run(folder))
        except UserError as error:
            has_failed = any(line.startswith(f"{folder} failed: ") for line in problems)  # which says why
            problems += [] if has_failed else [str(error)]
    if not runs:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"nothing to report: {problems[0] if problems else 'no run was named'}{others}")
    return Collection(_grouped(runs, problems), problems, list(dict.fromkeys(commands)))


def read_run(folder: Path) -> RunRecord:
    """Read one run folder.

    Raises:
        UserError: it is damaged, or no session of it is finished.
    """
    if not (folder / "results.json").exists():
        raise UserError(f"{folder}: no session is finished yet")
    results = load_results(folder)
    if not results["sessions"]:
        raise UserError(f"{folder}: no session is finished yet")
    metrics, launches = folder / "metrics.jsonl", folder / "environment.json"
    return RunRecord(
        folder,
        results,
        _config(folder / "config.yaml", results),
        parse_lines(metrics) if metrics.exists() else [],
        _launches(launches) if launches.exists() else [],
    )


def _config(file: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run as flat keys. One that it lacks is younger than the run, which had today's default."""
    stored = flatten(read_config(file)) if file.exists() else {}
    known = {key: value for key, value in results.items() if key in _DEFAULTS} | stored
    if not isinstance(known.get("seed", 0), int):
        raise UserError(f"{file}: seed is {known['seed']!r}, expected a whole number")
    return _DEFAULTS | _option_defaults(str(known.get("method"))) | known


def _option_defaults(method: str) -> dict[str, Any]:
    try:
        return flatten({"options": as_dict(method_class(method).Config())})
    except UserError:  # of a package that is not installed here
        return {}


def _launches(file: Path) -> list[dict[str, Any]]:
    record = read_json(file)
    launches = record.get("launches") if isinstance(record, dict) else None
    if not isinstance(launches, list) or not all(isinstance(one, dict) for one in launches):
        raise UserError(f"{file} is not a list of launches")
    return launches


def _folders(path: Path, problems: list[str], commands: list[str]) -> Iterator[Path]:
    """The run folders that a path names or holds; what else is to be said of it goes to the lists."""
    if not path.exists():
        problems.append(f"{path} does not exist")
        return
    path = path.parent if path.name in _FILES else path
    if _is_run(path):
        yield path
        return
    for grid in sorted(path.rglob(GRID_FILE)):
        _read_grid(grid, problems, commands)
    found = sorted({file.parent for name in _FILES for file in path.rglob(name)})
    if not found:
        problems.append(f"{path} holds no run")
    yield from found


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in _FILES)


def _read_grid(file: Path, problems: list[str], commands: list[str]) -> None:
    """Note how a grid was started, and a line for each run of it that ended by a failure."""
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
    settings = _settings(firsts)
    names = [_name(run, settings, firsts) for run in firsts]
    return [
        Group(name, setting, ones, _preset(ones)) for name, setting, ones in zip(names, settings, members, strict=True)
    ]


def _one_per_seed(runs: Sequence[RunRecord], problems: list[str]) -> list[RunRecord]:
    """The runs by seed. The same seed twice is no second sample: the run that got further counts."""
    by_seed: dict[int, RunRecord] = {}
    for run in sorted(runs, key=lambda run: -len(run.sessions)):
        kept = by_seed.setdefault(run.config["seed"], run)
        if kept is not run:
            problems.append(f"{run.path} repeats {kept.path} with the same settings and seed, and is left out")
    return [by_seed[seed] for seed in sorted(by_seed)]


def _settings(runs: Sequence[RunRecord]) -> list[str]:
    """The setting of each run in words; others in the same words get a number."""
    known: dict[str, list[tuple[str, ...]]] = {}
    texts = []
    for run in runs:
        exact, text = tuple(str(run.config.get(key)) for key in ("data", "images", "protocol")), _setting(run)
        found = known.setdefault(text, [])
        found += [] if exact in found else [exact]
        place = found.index(exact)
        texts.append(f"{text} #{place + 1}" if place else text)
    return texts


def _setting(run: RunRecord) -> str:
    """The data set and the protocol, in a few words."""
    kind, _, rest = str(run.config["data"]).partition(":")
    place = Path(rest.split(",")[0]).name if kind != "digits" and rest else kind
    lists = str(run.config["protocol"]).split("|")
    is_named = len(lists) > 1 or "," in lists[0]
    sizes = "+".join(str(len(names.split(","))) for names in lists)
    return f"{place} {f'{sizes} classes' if is_named else lists[0]}"


def _name(run: RunRecord, settings: Sequence[str], firsts: Sequence[RunRecord]) -> str:
    """The method, and what distinguishes the group from others of this method on the same data and protocol."""
    method = str(run.results.get("method", "run"))
    setting = next(text for text, other in zip(settings, firsts, strict=True) if other is run)
    pairs = zip(settings, firsts, strict=True)
    twins = [other for text, other in pairs if text == setting and other.results.get("method") == method]
    keys = dict.fromkeys([*_TELLING, *(key for twin in twins for key in twin.identity)])
    # The fewest of them that still tell this group from every other.
    told: list[str] = []
    rivals = [twin for twin in twins if twin is not run]
    for key in keys:
        left = [twin for twin in rivals if str(twin.identity.get(key)) == str(run.identity.get(key))]
        if len(left) < len(rivals):
            told.append(f"{key.removeprefix('options.')} {_brief(run, key, twins)}")
            rivals = left
    return f"{method} ({', '.join(told)})" if told else method


def _brief(run: RunRecord, key: str, twins: Sequence[RunRecord]) -> str:
    """The value of a setting, as short as tells the runs apart: the end of a path, all of it, or its content's hash."""
    values = {str(twin.identity.get(key)) for twin in twins}
    for text in (_last_part, lambda one, key: str(one.config.get(key))):
        if len({text(twin, key) for twin in twins}) >= len(values):
            return text(run, key)
    return str(run.identity.get(key))[:8]


def _last_part(run: RunRecord, key: str) -> str:
    return str(run.config.get(key)).rpartition("/")[2]


def _preset(runs: Sequence[RunRecord]) -> Preset | None:
    named = [str(run.config["preset"]) for run in runs if run.config.get("preset")]
    return all_presets().get(named[0]) if named else None


def _other_data(kind: str, runs: Sequence[RunRecord]) -> list[str]:
    """How the data differ from those of a published row, as far as the runs tell."""
    here = str(runs[0].config["data"])
    if here.partition(":")[0] != kind:
        return [f"data: {kind} -> {here}"]
    counts = [int(run.sessions[-1]["test_images"]) for run in runs if run.is_finished]
    whole = BENCHMARKS[kind].test_images
    changed = [f"test images: {whole} -> {counts[0]}"] if counts and counts[0] < _WHOLE * whole else []
    options = [part for part in here.split(",")[1:] if "=" in part and not part.startswith("images=")]
    return changed + [f"data option {option.replace('=', ': default -> ', 1)}" for option in options]
