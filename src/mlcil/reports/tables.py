"""The tables of a report and of `mlcil show`; `table` knows how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..evaluation.results import RunResult
from .runs import Collection, Group, RunRecord
from .table import KNOWN, KNOWN_NOTE, NOTHING, Cell, Row, Table, fixed, shorten, spread, spreads

# What a preset publishes: the metric, and the field of `Published` that holds it.
_PUBLISHED = {"average mAP": "average_map", "last mAP": "last_map", "CF1@0.8": "cf1", "OF1@0.8": "of1"}
_PSEUDO_LABELS = {  # the heading, and the name and the decimals of the number
    "threshold": ("threshold", 3),
    "target per image": ("target", 2),
    "per image": ("per_image", 2),
    "truly per image": ("true_per_image", 2),
    "precision": ("precision", 1),
    "recall": ("recall", 1),
}


def final_value(result: RunResult, name: str) -> float | None:
    """A metric after the last session; None where it is undefined.

    Arguments:
        name: "average mAP", "last mAP" or the name of a metric. A run of a single session has learned all classes at
            once, so it has no average, no forgetting and no BWT.
    """
    if len(result.sessions) < 2 and name in ("average mAP", "forgetting", "BWT"):
        return None
    averages = {"average mAP": result.average_map, "last mAP": result.last_map}
    return averages[name] if name in averages else result.sessions[-1].metrics.get(name)


def session_table(result: RunResult) -> Table:
    """One run, session by session."""
    metrics = ["mAP", *_listed_metrics([result])]
    rows = []
    for one in result.sessions:
        cells: list[Cell] = [one.session, shorten(one.new_classes), len(one.classes), one.images]
        rows.append(Row([*cells, *map(one.metrics.get, metrics), round(one.train_seconds)]))
    averages = [NOTHING if value is None else fixed(value) for value in (result.average_map, result.last_map)]
    state = "" if result.finished else " (unfinished)"
    protocol = result.protocol + (", with negatives" if result.negatives == "labelled" else "")
    mark, note = (KNOWN, KNOWN_NOTE) if result.allow_known_classes else ("", "")
    title = f"{result.method}{mark}, {result.data}, {protocol}{state}: average mAP {averages[0]}, last {averages[1]}"
    headings = ["session", "new classes", "seen", "images", *metrics, "seconds"]
    return Table("run", title, note, headings, rows)


def comparison_tables(collection: Collection) -> list[Table]:
    """What `mlcil show` prints of several runs: the summary, and the sessions of each setting."""
    return [summary(collection), *(sessions(collection, setting) for setting in collection.settings)]


def summary(collection: Collection) -> Table:
    """A row per group with the metrics of its finished runs."""
    finished = [run.result for group in collection.groups for run in group.finished]
    metrics = ["average mAP", "last mAP", *_listed_metrics(finished)]
    rows = []
    for group in _by_setting(collection):
        buffer = group.runs[0].result.buffer
        cells: list[Cell] = [int(buffer) if buffer.isdecimal() and len(buffer) < 20 else buffer]
        cells += [len(group.finished), len(group.runs) - len(group.finished) or None]
        cells += [spread(final_value(run.result, name) for run in group.finished) for name in metrics]
        rows.append((group, cells))
    note = (
        "Percent over the test images: mean ± sample deviation over the seeds, from finished runs only. Forgetting is "
        "the AP after the last session minus the best AP that a class ever had, BWT that AP minus the one after the "
        "class's own session; both are means over old classes, in percent points. A run of one session has no average. "
        "ECE is the expected calibration error of the scores."
    )
    if any(name.endswith("@stored") for name in metrics):
        note += (
            " Stored thresholds are one per class, found by the method or on images that the run set aside; those "
            "images also give the scaling behind the calibrated ECE."
        )
    headings = ["buffer", "seeds", "unfinished", *metrics]
    return _of_groups(collection, "summary", "Summary", note, headings, rows).without_empty_columns()


def published(collection: Collection) -> Table | None:
    """Measured values beside published ones, with what was changed; None if no run was started from a preset."""
    pairs = [(group, group.preset) for group in _by_setting(collection) if group.preset is not None]
    if not pairs:
        return None
    used = {
        name: field
        for name, field in _PUBLISHED.items()
        if any(getattr(preset.published, field) is not None for _, preset in pairs)
    }
    rows = []
    for group, preset in pairs:
        cells: list[Cell] = [preset.name, _changed_settings(group)]
        for name, field in used.items():
            measured = spread(final_value(run.result, name) for run in group.finished)
            paper = getattr(preset.published, field)
            cells += [measured, paper, None if measured is None or paper is None else measured.mean - paper]
        rows.append((group, cells))
    headings = [f"{name}{what}" for name in used for what in ("", " published", " difference")]
    note = (
        "A row can be compared with the paper only as far as nothing was changed; the settings that differ from the "
        "published ones are named in it."
    )
    return _of_groups(collection, "published", "Measured and published", note, ["preset", "changed", *headings], rows)


def sessions(collection: Collection, setting: str) -> Table:
    """The mAP after each session, by the number of classes seen."""
    groups = collection.of_setting(setting)
    steps = class_counts(groups)
    rows, shown = [], set()
    for group in groups:
        measured = group.map_by_classes()
        rows.append(Row([group.label, *map(measured.get, steps)], group.method, setting))
        paper = group.published_sessions()
        if group.preset is not None and paper and group.preset.name not in shown:
            shown.add(group.preset.name)
            rows.append(Row([f"published: {group.preset.name}", *map(paper.get, steps)], group.method, setting))
    headings = ["method", *(f"{step} classes" for step in steps)]
    note = _footnoted("Percent.", groups)
    return Table(f"sessions-{setting}", f"mAP after each session: {setting}", note, headings, rows)


def per_class(collection: Collection, setting: str) -> Table | None:
    """The AP of each class after the last session; None if no class has one."""
    note = (
        "AP in percent, mean ± sample deviation over the seeds; for an unfinished run after its latest session. "
        "The column session says in which session the class arrives."
    )
    name, title = f"classes-{setting}", f"AP of each class after the last session: {setting}"
    return _of_classes(collection, setting, (name, title, note), lambda result: result.sessions[-1].ap)


def forgetting(collection: Collection, setting: str) -> Table | None:
    """What each old class lost; None if there is no old class."""
    note = "AP after the last session minus the best AP that the class ever had, in percent points."
    name, title = f"forgetting-{setting}", f"Forgetting of each class: {setting}"
    return _of_classes(collection, setting, (name, title, note), RunResult.forgetting_per_class)


def pseudo_labels(collection: Collection) -> Table | None:
    """What methods put in place of unknown old labels; None if no run did."""
    rows = []
    for group in _by_setting(collection):
        found = [
            spreads((run.pseudo_labels(key) for run in group.shown), decimals)
            for key, decimals in _PSEUDO_LABELS.values()
        ]
        for session in sorted({session for course in found for session in course}):
            cells: list[Cell] = [session, *(course.get(session) for course in found)]
            rows.append((group, cells))
    note = "Counted on the session's unaugmented training images, against labels that the method never sees."
    headings = ["session", *_PSEUDO_LABELS]
    table = _of_groups(collection, "pseudo-labels", "Pseudo labels of old classes", note, headings, rows)
    return table.without_empty_columns() if rows else None


def cost(collection: Collection) -> Table:
    """Time, memory and devices of the runs."""
    headings = ["training s", "images/s", "wall clock s", "peak memory MB", "peak GPU MB", "kept MB"]
    launched = ["device", "processes", "threads"]
    rows = []
    for group in _by_setting(collection):
        runs = group.shown
        results = [run.result for run in runs]
        cells: list[Cell] = [spread((sum(one.train_seconds for one in result.sessions) for result in results), 0)]
        cells += [spread(map(_images_per_second, runs)), spread(map(_wall_seconds, runs), 0)]
        cells += [_peak(runs, "peak_memory_mb"), _peak(runs, "gpu_memory_mb")]
        cells += [spread(result.sessions[-1].bytes_kept / 1e6 for result in results)]
        rows.append((group, cells + [_launch_values(runs, key) for key in launched]))
    note = (
        "Per run: training time alone; wall clock time including pseudo labels and evaluation; the largest memory of "
        "a process; and the size of what the method keeps after the last session, including the model."
    )
    return _of_groups(collection, "cost", "Cost", note, headings + launched, rows).without_empty_columns()


def environment(collection: Collection) -> Table:
    """What the runs were computed with, a row per distinct environment."""
    names: dict[tuple[Cell, ...], list[str]] = {}
    for group, run in [(one, run) for one in collection.groups for run in one.runs]:
        for facts in dict.fromkeys(_facts(launch) for launch in run.launches or [{}]):
            names.setdefault(facts, []).append(f"{group.name} seed {run.result.seed}")
    rows = [Row([*facts, len(found), shorten(found, 60)]) for facts, found in names.items()]
    headings = ["machine", "python", "torch", "mlcil", "revision", "weights sha256", "device", "number", "runs"]
    return Table("environment", "Environment", "A run that was continued elsewhere is in several rows.", headings, rows)


def class_counts(groups: Sequence[Group]) -> list[int]:
    """The numbers of classes seen at which any of the runs was measured, in increasing order."""
    return sorted({len(one.classes) for group in groups for run in group.runs for one in run.result.sessions})


def _listed_metrics(results: Sequence[RunResult]) -> list[str]:
    """The metrics that tables show besides mAP: all but the variants of F1 that papers do not print."""
    # The longest list first, because the order of the metrics is the same in all of them.
    lists = sorted((result.sessions[-1].metrics for result in results), key=len, reverse=True)
    names = dict.fromkeys(name for one in lists for name in one)
    return [one for one in names if not (one == "mAP" or one.endswith("@0.5") or one.startswith("CF1 of means"))]


def _by_setting(collection: Collection) -> list[Group]:
    return [group for setting in collection.settings for group in collection.of_setting(setting)]


def _of_groups(
    collection: Collection,
    name: str,
    title: str,
    note: str,
    headings: Sequence[str],
    rows: Sequence[tuple[Group, list[Cell]]],
) -> Table:
    """A table whose rows belong to a group. The setting is a column if there are several, else part of the title."""
    has_many = len(collection.settings) > 1
    about = ["method", "setting"] if has_many else ["method"]
    named = [
        Row([group.label, *([group.setting] if has_many else []), *cells], group.method, group.setting)
        for group, cells in rows
    ]
    whole = title if has_many else f"{title}: {collection.settings[0]}"
    return Table(name, whole, _footnoted(note, [group for group, _ in rows]), [*about, *headings], named)


def _footnoted(note: str, groups: Sequence[Group]) -> str:
    """The note, and what the mark beside a method means if one has it."""
    is_marked = any(KNOWN in group.label for group in groups)
    return f"{note} {KNOWN_NOTE}" if is_marked else note


def _of_classes(
    collection: Collection,
    setting: str,
    texts: tuple[str, str, str],
    values: Callable[[RunResult], Mapping[str, float | None]],
) -> Table | None:
    """A row per class and a column per group; `texts` are the table's name, title and note."""
    groups = collection.of_setting(setting)
    by_group = [(group, [values(run.result) for run in group.shown]) for group in groups]
    columns = {group.label: spreads(found) for group, found in by_group if any(found)}
    known = {name for _, found in by_group for one in found for name in one}
    rows = []
    for name, arrivals in _arrivals(groups).items():
        if name in known:
            session: Cell = arrivals[0] if len(arrivals) == 1 else ", ".join(map(str, arrivals))
            rows.append(Row([name, session, *(column.get(name) for column in columns.values())], setting=setting))
    methods = {group.label: group.method for group in groups}
    name, title, note = texts
    headings = ["class", "session", *columns]
    return Table(name, title, _footnoted(note, groups), headings, rows, methods) if rows else None


def _arrivals(groups: Sequence[Group]) -> dict[str, list[int]]:
    """The session in which a class arrives, or several where groups order classes differently.

    Runs of a single session only count where there is no other.
    """
    results = sorted((run.result for group in groups for run in group.runs), key=lambda one: len(one.sessions) < 2)
    found: dict[str, list[int]] = {}
    for result in results:
        for session in result.sessions:
            for name in session.new_classes:
                known = found.setdefault(name, [])
                if session.session not in known and (len(result.sessions) > 1 or not known):
                    known.append(session.session)
    return found


def _changed_settings(group: Group) -> str:
    keys = [change.partition(":")[0] for change in group.changes]
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more if keys else "nothing"


def _images_per_second(run: RunRecord) -> float | None:
    """The training speed, from the last epoch of each session."""
    last = {line["session"]: line for line in run.epochs}
    seconds = sum(line["seconds"] for line in last.values())
    return sum(line["epoch"] * line["images"] for line in last.values()) / seconds if seconds else None


def _wall_seconds(run: RunRecord) -> float | None:
    return sum(line["session_seconds"] for line in run.evaluations) if run.evaluations else None


def _peak(runs: Sequence[RunRecord], key: str) -> int | None:
    known = [line[key] for run in runs for line in run.evaluations if line[key] is not None]
    return round(max(known)) if known else None


def _launch_values(runs: Sequence[RunRecord], key: str) -> Cell:
    values = list(dict.fromkeys(launch[key] for run in runs for launch in run.launches if launch.get(key) is not None))
    found: Cell = values[0] if len(values) == 1 else ", ".join(map(str, values)) or None
    return found


def _facts(launch: Mapping[str, Any]) -> tuple[Cell, ...]:
    versions, weights = launch.get("versions") or {}, launch.get("weights") or {}
    revision, _, dirty = str(launch.get("git_revision") or "").partition("-")
    short = revision[:12] + (f"-{dirty}" if dirty else "")
    packages = (versions.get("torch"), versions.get("mlcil"))
    sha256 = str(weights.get("sha256") or "")[:12]
    return (launch.get("system"), launch.get("python"), *packages, short or None, sha256 or None, launch.get("device"))
