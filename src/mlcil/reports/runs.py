"""What a report is made of: runs as read from their folders, and groups of runs that differ only in the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.config import about
from ..core.errors import UserError, shown
from ..core.files import read_json
from ..core.kinds import is_kind
from ..data.published import BENCHMARKS
from ..data.sources import kind_if_there
from ..evaluation.results import RunResult, load_results
from ..experiments.presets import Preset
from ..training.config import RunSettings, flatten, make_config, read_config
from ..training.folder import parse_lines
from .table import KNOWN, Spread, spreads

_NOT_IDENTITY = {"seed", *(field.name for field in fields(RunSettings) if about(field).machine)}
_NOT_PUBLISHED = {*_NOT_IDENTITY, "data", "images"}
_OFTEN_NONE = ("peak_memory_mb", "gpu_memory_mb", "mAP")  # of an evaluation
# A run with fewer than this part of a benchmark's labelled test images used a slice of the data; a few may be missing
# because all of their labels are marked as difficult or as crowds.
_WHOLE = 0.95


@dataclass(frozen=True)
class RunRecord:
    """One run folder, read.

    Attributes:
        result: results.json, with at least one session.
        config: config.yaml as flat keys; options of the method are called options.KEY.
        metrics: the lines of metrics.jsonl.
        launches: the entries of environment.json, one for each time the run was started or continued.
    """

    path: Path
    result: RunResult
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    launches: Sequence[Mapping[str, Any]]

    @property
    def epochs(self) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about an epoch: session, epoch, losses, images, seconds of the session so far."""
        return [line for line in self.metrics if "losses" in line]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The lines of metrics.jsonl about an evaluation: session, seconds of clock and processor, peak memory."""
        return [line for line in self.metrics if "mAP" in line]

    def pseudo_labels(self, key: str) -> dict[int, float | None]:
        """A number about the pseudo labels of each session that has some; see `evaluation.pseudo_label_quality`."""
        lines = [line for line in self.metrics if "pseudo_labels" in line]
        return {line["session"]: line["pseudo_labels"].get(key) for line in lines}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings that make this another experiment than others; weights count by content, not by path."""
        settings = {key: value for key, value in self.config.items() if key not in _NOT_IDENTITY}
        digests = [(launch.get("weights") or {}).get("sha256") for launch in self.launches]
        return settings | {"weights": next(filter(None, digests), settings.get("weights"))}


@dataclass(frozen=True)
class Group:
    """Runs of one experiment that differ only in the seed, ordered by it.

    Attributes:
        name: different from that of any other group with the same `setting`.
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
        return self.runs[0].result.method

    @property
    def label(self) -> str:
        """The group's name, marked if its weights may know the classes and if none of its runs is finished."""
        name = self.name + (KNOWN if self.runs[0].result.allow_known_classes else "")
        return name if self.finished else f"{name} (unfinished)"

    @property
    def finished(self) -> list[RunRecord]:
        """The finished runs, the only ones to average over."""
        return [run for run in self.runs if run.result.finished]

    @property
    def shown(self) -> list[RunRecord]:
        """The finished runs, or else those that got furthest: values after different sessions have no mean."""
        furthest = max(len(run.result.sessions) for run in self.runs)
        return self.finished or [run for run in self.runs if len(run.result.sessions) == furthest]

    def map_by_classes(self) -> dict[int, Spread]:
        """The mAP at each number of classes seen, in increasing order."""
        found = spreads({len(one.classes): one.map for one in run.result.sessions} for run in self.shown)
        return dict(sorted(found.items()))

    def is_joint(self, steps: Sequence[int]) -> bool:
        """Whether the group learned at once all the classes that others reach in these steps."""
        return len(steps) > 1 and list(self.map_by_classes()) == [steps[-1]]

    @cached_property
    def changes(self) -> list[str]:
        """How the runs differ from their preset, including its data, as "key: published -> used"."""
        if self.preset is None:
            return []
        # What the preset does not mention was published with the default.
        wanted, used = flatten(make_config(self.preset.values).to_dict()), self.runs[0].config
        return _data_changes(self.preset.kind, self.runs) + [
            f"{key.removeprefix('options.')}: {value} -> {used.get(key)}"
            for key, value in wanted.items()
            if key not in _NOT_PUBLISHED and str(used.get(key)) != str(value)
        ]

    def published_sessions(self) -> dict[int, float]:
        """The published mAP by number of classes seen; empty unless the runs go through the same sessions."""
        if self.preset is None or self.runs[0].result.protocol != self.preset.values.get("protocol"):
            return {}
        paper = self.preset.published.sessions
        result = max((run.result for run in self.runs), key=lambda result: len(result.sessions))
        counts = [len(one.classes) for one in result.sessions]
        has_all = len(counts) == len(paper) if result.finished else len(counts) <= len(paper)
        return dict(zip(counts, paper, strict=False)) if has_all else {}


@dataclass(frozen=True)
class Collection:
    """All groups of a report.

    Attributes:
        groups: in the order in which their first run was given.
        problems: a line for each folder that could not be shown.
        commands: the commands that started the grids among the runs.
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


def read_run(folder: Path) -> RunRecord:
    """Read one run folder.

    Raises:
        UserError: it is damaged, or no session of it is finished.
    """
    results, metrics, launches = (folder / name for name in ("results.json", "metrics.jsonl", "environment.json"))
    result = load_results(results) if results.exists() else None
    if result is None or not result.sessions:
        raise UserError(f"{folder}: no session is finished yet")
    return RunRecord(
        folder,
        result,
        flatten(read_config(folder / "config.yaml")),
        _read_metrics(metrics) if metrics.exists() else [],
        _read_launches(launches) if launches.exists() else [],
    )


def _read_metrics(file: Path) -> list[dict[str, Any]]:
    lines = parse_lines(file)
    for line in lines:
        needed = ("images", "seconds") if "losses" in line else ("session_seconds",) if "mAP" in line else ()
        is_right = (
            all(is_kind(line.get(key), float) for key in ("session", "epoch", *needed))
            and all(is_kind(line.get(key), float | None) for key in _OFTEN_NONE)
            and all(is_kind(line.get(key, {}), dict[str, float | None]) for key in ("losses", "pseudo_labels"))
        )
        if not is_right:
            raise UserError(f"{file} has a line that is not about an epoch or a session: {shown(line)}")
        line |= {key: line.get(key) for key in _OFTEN_NONE[:2] if "mAP" in line}
    return lines


def _read_launches(file: Path) -> list[dict[str, Any]]:
    found = read_json(file)
    launches = found.get("launches") if isinstance(found, dict) else None
    if not isinstance(launches, list) or not all(map(_is_launch, launches)):
        raise UserError(f"{file} does not list the launches of a run, each with its command")
    return launches


def _is_launch(launch: Any) -> bool:
    if not isinstance(launch, dict):
        return False
    nested = [launch.get(key) or {} for key in ("weights", "versions")]
    facts = [value for key, value in launch.items() if key not in ("weights", "versions", "command")]
    facts += [value for one in nested if isinstance(one, dict) for value in one.values()]
    command = launch.get("command")
    if not all(isinstance(one, dict) for one in nested) or any(isinstance(one, list | dict) for one in facts):
        return False
    return isinstance(command, list) and bool(command) and all(isinstance(word, str) for word in command)


def _data_changes(kind: str, runs: Sequence[RunRecord]) -> list[str]:
    """How the data differ from those of a published row, as far as the results show it."""
    used = runs[0].result.data
    if kind_if_there(used) not in (kind, None):
        return [f"data: {kind} -> {used}"]
    counts = [run.result.sessions[-1].test_images for run in runs if run.result.finished]
    whole = BENCHMARKS[kind].test_images
    slices = [f"test images: {whole} -> {counts[0]}"] if counts and counts[0] < _WHOLE * whole else []
    options = [part for part in used.split(",")[1:] if "=" in part and not part.startswith("images=")]
    return slices + [f"data option {option.replace('=', ': default -> ', 1)}" for option in options]
