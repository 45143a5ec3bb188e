"""The tables of a report: what they say of a collection of runs; `cells` knows how they look."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .cells import Cell, Row, Seeds, Spread, Table, spread
from .collect import Collection, Group, RunRecord
from .table import NOTHING, class_counts, shorten

Getter = Callable[[RunRecord], float | None]
_STORED_NOTE = (
    "Stored thresholds are those of each class that the run found on images set aside, or its method. ECE is the "
    "expected calibration error of the scores, calibrated of those scaled by temperature and shift."
)


def summary(collection: Collection) -> Table:
    """A row per group: the figures that papers print, over the finished runs."""
    finished = [run for group in collection.groups for run in group.finished]
    stored = any(_f1("cf1@stored")(run) is not None for run in finished)
    figures = {"average mAP": average_map, "last mAP": last_map, "CF1@0.8": _f1("cf1@0.8"), "OF1@0.8": _f1("of1@0.8")}
    figures |= _calibrated(finished) if stored else {}
    figures |= {"forgetting": _last_value("forgetting"), "BWT": _last_value("bwt")}
    rows = []
    for group in _by_setting(collection):
        cells = [group.setting, label(group), _buffer(group), Seeds(len(group.finished), len(group.runs))]
        cells += [spread(map(figure, group.finished)) for figure in figures.values()]
        rows.append(_row(group, cells))
    note = (
        "Percent, over the test images; the mean over seeds ± its sample deviation, over finished runs only. "
        "Forgetting is AP after the last session minus the best AP that a class ever had, BWT minus the AP after its "
        "own session; both are means over old classes in percent points. A run of one session has no average."
    )
    headings = ["setting", "method", "buffer", "seeds", *figures]
    return Table("summary", "Summary", f"{note} {_STORED_NOTE}" if stored else note, headings, rows, (0, 1))


def published(collection: Collection) -> Table | None:
    """Measured against published figures, and what was changed; None if no run was started from a preset."""
    pairs = [(group, group.preset) for group in _by_setting(collection) if group.preset is not None]
    if not pairs:
        return None
    used = [one for one in _COMPARED if any(getattr(preset.published, one[1]) is not None for _, preset in pairs)]
    headings = ["setting", "method", "preset", "changed"]
    headings += [f"{name}{what}" for name, _, _ in used for what in ("", " published", " difference")]
    rows = []
    for group, preset in pairs:
        cells: list[Cell] = [group.setting, label(group), preset.name, _changed(group)]
        for _, field, measure in used:
            cells += _against(spread(map(measure, group.finished)), getattr(preset.published, field))
        rows.append(_row(group, cells))
    note = (
        "A row compares with the paper only as far as nothing was changed: the settings that differ from the "
        "published ones are named beside it. CF1 and OF1 are at a threshold of 0.8."
    )
    return Table("published", "Measured and published", note, headings, rows, (0, 1, 2, 3))


def sessions(collection: Collection, setting: str) -> Table:
    """mAP after each session, by the number of classes seen."""
    groups = collection.of_setting(setting)
    steps = class_counts([run.results for group in groups for run in group.runs])
    rows, shown = [], set()
    for group in groups:
        by_count = [{len(one["classes"]): one["map"] for one in run.sessions} for run in group.shown]
        rows.append(_row(group, [label(group), *(spread(one.get(step) for one in by_count) for step in steps)]))
        paper = group.published_sessions()
        if group.preset is not None and paper and group.preset.name not in shown:
            shown.add(group.preset.name)
            rows.append(_row(group, [f"published: {group.preset.name}", *map(paper.get, steps)]))
    headings = ["method", *(f"{step} classes" for step in steps)]
    return _of_setting(collection, setting, "sessions", "mAP after each session", "Percent.", headings, rows)


def per_class(collection: Collection, setting: str) -> Table | None:
    """AP of each class after the last session; None without classes."""
    note = (
        "AP in percent, the mean over seeds ± its sample deviation; of an unfinished run, after its latest session. "
        "The column session tells which one brings the class."
    )
    return _by_class(collection, setting, "classes", "AP of each class after the last session", note, "ap")


def forgetting(collection: Collection, setting: str) -> Table | None:
    """What each old class lost; None if nothing could be forgotten."""
    note = "AP after the last session minus the best AP that the class ever had, in percent points."
    return _by_class(collection, setting, "forgetting", "Forgetting of each class", note, "forgetting_per_class")


def pseudo_labels(collection: Collection) -> Table | None:
    """What methods put in place of unknown old labels; None if no run told."""
    columns = {"threshold": 3, "target": 2, "per_image": 2, "true_per_image": 2, "precision": 1, "recall": 1}
    rows = []
    for group in _by_setting(collection):
        told = [run.pseudo_labels for run in group.shown]
        for session in sorted({session for one in told for session in one}):
            records = [one[session] for one in told if session in one]
            figures = [
                spread((_number(record.get(key)) for record in records), decimals) for key, decimals in columns.items()
            ]
            rows.append(_row(group, [group.setting, label(group), session, *figures]))
    headings = ["setting", "method", "session", "threshold", "target per image"]
    headings += ["per image", "truly per image", "precision", "recall"]
    note = "Counted on the session's training images without augmentation, against labels that the method never sees."
    table = Table("pseudo-labels", "Pseudo labels of old classes", note, headings, rows, (0, 1))
    return _without_empty(table) if rows else None


def cost(collection: Collection) -> Table:
    """What the runs took."""
    headings = ["setting", "method", "training s", "images/s", "wall clock s"]
    headings += ["peak memory MB", "peak GPU MB", "kept MB", "device", "processes", "threads"]
    rows = []
    for group in _by_setting(collection):
        runs = group.shown
        cells: list[Cell] = [group.setting, label(group), spread(map(_train_seconds, runs), 0)]
        cells += [spread(map(_rate, runs)), spread(map(_wall_seconds, runs), 0)]
        cells += [_peak(runs, "peak_memory_mb"), _peak(runs, "gpu_memory_mb"), spread(map(_kept_megabytes, runs))]
        rows.append(_row(group, [*cells, *(_of_launches(runs, key) for key in ("device", "processes", "threads"))]))
    note = (
        "Per run: seconds of training alone; wall clock with pseudo labels and evaluation, of the launches that ended "
        "a session; the largest memory of a process; what the method keeps after the last session, model included."
    )
    return _without_empty(Table("cost", "Cost", note, headings, rows, (0, 1, 8)))


def environment(collection: Collection) -> Table:
    """What the runs were computed with, a row per distinct environment."""
    runs_by_facts: dict[tuple[Cell, ...], list[str]] = {}
    for group, run in [(one, run) for one in collection.groups for run in one.runs]:
        for facts in dict.fromkeys(_facts(launch) for launch in run.launches or [{}]):
            runs_by_facts.setdefault(facts, []).append(f"{group.name} seed {run.config['seed']}")
    rows = [Row([*facts, len(names), shorten(names, 60)]) for facts, names in runs_by_facts.items()]
    headings = ["machine", "python", "torch", "mlcil", "revision", "weights sha256", "device", "number", "runs"]
    note = "A run that was continued elsewhere stands in several rows."
    return Table("environment", "Environment", note, headings, rows, (*range(7), 8))


def all_tables(collection: Collection) -> list[Table]:
    """Every table that has something to say, in reading order."""
    found: list[Table | None] = [summary(collection), published(collection)]
    for setting in collection.settings:
        found += [make(collection, setting) for make in (sessions, per_class, forgetting)]
    found += [pseudo_labels(collection), cost(collection), environment(collection)]
    return [table for table in found if table is not None]


def label(group: Group) -> str:
    """The group's name, marked if none of its runs is finished."""
    return group.name if group.finished else f"{group.name} (unfinished)"


def average_map(run: RunRecord) -> float | None:
    """The mean of mAP over sessions; None for a run of one session, which learned all classes at once."""
    return None if len(run.sessions) < 2 else _number(run.results.get("average_map"))


def last_map(run: RunRecord) -> float | None:
    """mAP after the last session."""
    return _number(run.sessions[-1].get("map"))


def _last_value(key: str) -> Getter:
    """Of the last session; None if it is the only one."""
    return lambda run: None if len(run.sessions) < 2 else _number(run.sessions[-1].get(key))


def _f1(key: str) -> Getter:
    return lambda run: _number((run.sessions[-1].get("f1") or {}).get(key))


def _kept_megabytes(run: RunRecord) -> float | None:
    kept = _number(run.sessions[-1].get("bytes_kept")) if run.sessions else None
    return None if kept is None else kept / 1e6


def _ece(key: str) -> Getter:
    return lambda run: _number((run.sessions[-1].get("calibration") or {}).get(key))


def _calibrated(runs: Sequence[RunRecord]) -> dict[str, Getter]:
    """The figures at stored thresholds and of calibration, as far as any of the runs has them."""
    figures = {"CF1@stored": _f1("cf1@stored"), "OF1@stored": _f1("of1@stored"), "ECE": _ece("ece")}
    figures |= {"ECE calibrated": _ece("ece_calibrated")}
    return {name: figure for name, figure in figures.items() if any(figure(run) is not None for run in runs)}


# What a preset publishes: the heading, the field of `Published`, and the same of a run.
_COMPARED: tuple[tuple[str, str, Getter], ...] = (
    ("average mAP", "average_map", average_map),
    ("last mAP", "last_map", last_map),
    ("CF1", "cf1", _f1("cf1@0.8")),
    ("OF1", "of1", _f1("of1@0.8")),
)


def _by_setting(collection: Collection) -> list[Group]:
    return [group for setting in collection.settings for group in collection.of_setting(setting)]


def _row(group: Group, cells: list[Cell]) -> Row:
    return Row(cells, group.method, group.setting)


def _buffer(group: Group) -> Cell:
    text = str(group.runs[0].config.get("buffer", NOTHING))
    return int(text) if text.isdecimal() else text


def _against(measured: Spread | None, paper: float | None) -> list[Cell]:
    difference = None if measured is None or paper is None else measured.mean - paper
    return [measured, paper, difference]


def _changed(group: Group) -> str:
    keys = [change.partition(":")[0] for change in group.changes]
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more if keys else "nothing"


def _by_class(collection: Collection, setting: str, key: str, title: str, note: str, field: str) -> Table | None:
    """A row per class and a column per group, from a mapping of each run's last session."""
    groups = collection.of_setting(setting)
    finals = {label(group): [run.sessions[-1].get(field) or {} for run in group.shown] for group in groups}
    finals = {name: maps for name, maps in finals.items() if any(maps)}
    rated = {name for maps in finals.values() for one in maps for name in one}
    rows = []
    for name, places in _sessions_of_classes(groups).items():
        if name in rated:
            figures = [spread(_number(one.get(name)) for one in maps) for maps in finals.values()]
            session = places[0] if len(places) == 1 else ", ".join(map(str, places))
            rows.append(Row([name, session, *figures], setting=setting))
    headings = ["class", "session", *finals]
    return _of_setting(collection, setting, key, title, note, headings, rows) if rows else None


def _sessions_of_classes(groups: Sequence[Group]) -> dict[str, list[int]]:
    """Which session brings a class: several where groups differ in the order. Joint runs do not count."""
    runs = sorted((run for group in groups for run in group.runs), key=lambda run: len(run.sessions) < 2)
    found: dict[str, list[int]] = {}
    for run in runs:
        for session in run.sessions:
            for name in session["new_classes"]:
                places = found.setdefault(name, [])
                if session["session"] not in places and (len(run.sessions) > 1 or not places):
                    places.append(session["session"])
    return found


def _of_setting(
    collection: Collection, setting: str, key: str, title: str, note: str, headings: list[str], rows: list[Row]
) -> Table:
    # Two settings may be the same but for signs that a file's name does without.
    slugs = [re.sub(r"[^a-z0-9]+", "-", one.lower()).strip("-") for one in collection.settings]
    place = collection.settings.index(setting)
    again = slugs[:place].count(slugs[place])
    slug = f"{slugs[place]}-{again + 1}" if again else slugs[place]
    return Table(f"{key}-{slug}", f"{title}: {setting}", note, headings, rows)


def _train_seconds(run: RunRecord) -> float | None:
    known = [_number(session.get("train_seconds")) for session in run.sessions]
    return sum(seconds for seconds in known if seconds is not None) if any(known) else None


def _rate(run: RunRecord) -> float | None:
    """Images per second of training, from the last epoch of each session."""
    epochs: dict[Any, tuple[float, float]] = {}
    for line in (line for line in run.metrics if "losses" in line):
        epoch, images, seconds = (_number(line.get(key)) for key in ("epoch", "images", "seconds"))
        if epoch is not None and images is not None and seconds is not None:
            epochs[line.get("session")] = (epoch * images, seconds)
    shown, spent = (sum(values) for values in zip((0.0, 0.0), *epochs.values(), strict=True))
    return shown / spent if spent else None


def _wall_seconds(run: RunRecord) -> float | None:
    """The sum over sessions; None unless it is known of each."""
    known = {line.get("session"): line.get("session_seconds") for line in run.metrics if "map" in line}
    values = [_number(known.get(session["session"])) for session in run.sessions]
    return None if None in values else sum(value for value in values if value is not None)


def _peak(runs: Sequence[RunRecord], key: str) -> int | None:
    known = [_number(line.get(key)) for run in runs for line in run.metrics]
    return max((round(value) for value in known if value is not None), default=None)


def _of_launches(runs: Sequence[RunRecord], key: str) -> Cell:
    values = dict.fromkeys(launch.get(key) for run in runs for launch in run.launches if launch.get(key) is not None)
    return next(iter(values), None) if len(values) < 2 else ", ".join(map(str, values))


def _facts(launch: Mapping[str, Any]) -> tuple[Cell, ...]:
    versions, weights = launch.get("versions") or {}, launch.get("weights") or {}
    revision, _, dirty = str(launch.get("git_revision") or "").partition("-")
    short = revision[:12] + (f"-{dirty}" if dirty else "")
    packages = (versions.get("torch"), versions.get("mlcil"))
    sha256 = str(weights.get("sha256") or "")[:12]
    return (launch.get("system"), launch.get("python"), *packages, short or None, sha256 or None, launch.get("device"))


def _without_empty(table: Table) -> Table:
    """The table without the columns in which there is nothing."""
    kept = [column for column in range(len(table.headings)) if any(row.cells[column] is not None for row in table.rows)]
    return replace(
        table,
        headings=[table.headings[column] for column in kept],
        rows=[replace(row, cells=[row.cells[column] for column in kept]) for row in table.rows],
        is_text=tuple(new for new, column in enumerate(kept) if column in table.is_text),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
