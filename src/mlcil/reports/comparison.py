"""Two runs, or two methods over several seeds, compared class by class on the same test images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from ..core.errors import UserError
from ..core.words import counted
from ..evaluation.paired import ClassDifference, Difference, paired_difference
from ..evaluation.scores import ScoredImages, load_scores, scores_file
from ..training.data_record import ImageKey, data_file, keys_of, read_record
from .collect import collect, distinct_names
from .runs import RunRecord
from .table import Row, Table, fixed, to_terminal

_MARK = "*"
_FEW_SEEDS = 5  # with fewer, resampling the seeds misses more than a fifth of the variance between them


class RunComparison(NamedTuple):
    """What was compared, and the outcome. The two sides are called first and second."""

    first: str
    second: str
    runs: list[tuple[RunRecord, RunRecord]]  # one pair per seed
    sessions: list[tuple[int, int]]  # the sessions compared in each pair, counted from 1
    notes: list[str]  # what was left out or is unusual
    difference: Difference

    def as_dict(self) -> dict[str, Any]:
        """All of it in terms of JSON; AP in percent, differences in percent points."""
        found = self.difference
        return {
            "first": self.first,
            "second": self.second,
            "runs": [_pair_as_dict(*entry) for entry in zip(self.runs, self.sessions, strict=True)],
            "notes": self.notes,
            "mAP": {key: getattr(found, key) for key in ("first", "second", "difference")}
            | {"interval": list(found.interval), "is_more_than_noise": found.is_more_than_noise},
            "classes": [one._asdict() | {"interval": list(one.interval)} for one in found.classes],
            "classes_without_positives": found.without_positives,
            "level": found.level,
            "resamples": found.resamples,
            "test_images": found.images,
        }


def compare_runs(
    first: Sequence[Path], second: Sequence[Path], session: int | None = None, resamples: int = 1000
) -> RunComparison:
    """Compare two runs, or two sets of runs that are paired by their seeds.

    Arguments:
        first, second: run folders, or folders that hold run folders; each side is one experiment.
        session: compare after this session. None for the last one after which all runs know the same classes, so
            that a joint run is compared with the end of the others.
        resamples: how often to resample the test images.

    Raises:
        UserError: there is nothing to compare, or the runs of one side differ in more than the seed.
    """
    notes: list[str] = []
    pairs = _pair_up(_find_runs(first, notes), _find_runs(second, notes), notes)
    flat = [run for pair in pairs for run in pair]
    numbers = _choose_sessions(flat, session)
    scored = in_common_rows(flat, numbers)
    name, other = _side_names(*pairs[0])
    try:
        difference = paired_difference(list(zip(scored[::2], scored[1::2], strict=True)), resamples)
    except UserError as error:
        raise UserError(f"cannot compare {name} with {other}: {error}") from None
    return RunComparison(name, other, pairs, list(zip(numbers[::2], numbers[1::2], strict=True)), notes, difference)


def in_common_rows(runs: Sequence[RunRecord], sessions: Sequence[int]) -> list[ScoredImages]:
    """The scores of each run after its session; the same row is the same image, in whatever order a run has them."""
    numbers: dict[ImageKey, int] = {}
    found = []
    keys_by_run: dict[Path, list[ImageKey]] = {}
    for run, session in zip(runs, sessions, strict=True):
        if run.path not in keys_by_run:
            keys_by_run[run.path] = keys_of(read_record(data_file(run.path)).test)
        keys = keys_by_run[run.path]
        scored = load_scores(scores_file(run.path, session))
        rows = [numbers.setdefault(keys[row], len(numbers)) for row in scored.rows.tolist()]
        found.append(scored._replace(rows=np.array(rows, np.int64)))
    return found


def comparison_view(comparison: RunComparison) -> Group:
    """What to print: a table of the classes, and below it the conclusion."""
    lines = [Text(verdict(comparison), style="bold"), *map(Text, _remarks(comparison))]
    return Group(to_terminal(class_table(comparison)), *lines)


def class_table(comparison: RunComparison) -> Table:
    """The AP of each class in both runs, the largest difference first, and the mAP in the last row."""
    found, numbers = comparison.difference, comparison.sessions[0]
    count = len(found.classes) + len(found.without_positives)
    after = f"session {numbers[0]}" if numbers[0] == numbers[1] else f"sessions {numbers[0]} and {numbers[1]}"
    title = f"{comparison.second} against {comparison.first}, {counted(count, 'class', 'classes')} after {after}"
    mean = ClassDifference("mAP", found.first, found.second, found.difference, found.interval)
    rows = [
        Row([*one[:4], *one.interval, _MARK if one.interval.excludes_zero else ""])
        for one in [*sorted(found.classes, key=lambda entry: -entry.difference), mean]
    ]
    level = _percent(found.level)
    headings = ["AP of class", comparison.first, comparison.second, "difference", f"{level} from", "to", ""]
    return Table("comparison", title, "", headings, rows)


def verdict(comparison: RunComparison) -> str:
    """The outcome in one sentence."""
    found = comparison.difference
    sign = 1.0 if found.difference >= 0 else -1.0
    # "below" reverses the sign of the difference, and with it the ends of the interval.
    ends = sorted(sign * end for end in found.interval)
    size, low, high = _rounded([sign * found.difference, *ends])
    side = "above" if sign > 0 else "below"
    seeds = f" and {found.pairs} seeds" if found.pairs > 1 else ""
    outcome = "more than noise" if found.is_more_than_noise else "the interval includes 0, no more than noise"
    return (
        f"{comparison.second} is {size} points {side} {comparison.first} ({_percent(found.level)} interval "
        f"{low} to {high} over {found.images:,} test images{seeds}): {outcome}."
    )


def _find_runs(paths: Sequence[Path], notes: list[str]) -> list[RunRecord]:
    """The runs of one side by folder, which may differ only in the seed; adds a note for each that is left out."""
    found = collect(paths)
    notes += found.problems
    if len(found.groups) > 1:
        got = _listed(group.name for group in found.groups)
        raise UserError(f"{_listed(paths)}: expected runs that differ only in the seed, got {got}")
    return sorted(found.groups[0].runs, key=lambda run: run.path)


def _pair_up(
    first: Sequence[RunRecord], second: Sequence[RunRecord], notes: list[str]
) -> list[tuple[RunRecord, RunRecord]]:
    """Pairs of runs with the same seed; adds a note for each side whose seeds the other side lacks."""
    ours, theirs = ({run.result.seed: run for run in side} for side in (first, second))
    common = [seed for seed in ours if seed in theirs]
    if not common and len(first) == len(second) == 1:
        notes.append(f"the runs have different seeds, {_listed(ours)} and {_listed(theirs)}")
        return [(first[0], second[0])]
    if not common:
        raise UserError(f"the two sides have no seed in common: {_listed(ours)} and {_listed(theirs)}")
    for side, other in ((ours, theirs), (theirs, ours)):
        if alone := [seed for seed in side if seed not in other]:
            folder = side[alone[0]].path.parent
            notes.append(f"of {folder}, seed {_listed(alone)} left out, because the other side lacks it")
    return [(ours[seed], theirs[seed]) for seed in common]


def _listed(entries: Iterable[object]) -> str:
    return ", ".join(map(str, entries))


def _choose_sessions(runs: Sequence[RunRecord], session: int | None) -> list[int]:
    """The number of the session to compare, for each run."""
    reached = [{frozenset(one.classes): one.session for one in run.result.sessions} for run in runs]
    if session is not None:
        for run, numbers in zip(runs, reached, strict=True):
            if session not in numbers.values():
                raise UserError(
                    f"session: got {session}, but {run.path} has finished {counted(len(numbers), 'session')}"
                )
        return [session] * len(runs)
    common = set(reached[0]).intersection(*reached[1:])
    if not common:
        paths = _listed(run.path for run in runs)
        raise UserError(f"there is no session after which all of these runs know the same classes: {paths}")
    last = max(common, key=len)
    return [numbers[last] for numbers in reached]


def _side_names(first: RunRecord, second: RunRecord) -> tuple[str, str]:
    names = distinct_names([first, second])
    if names[0] == names[1] and first.result.seed != second.result.seed:
        names = [f"{name} (seed {run.result.seed})" for name, run in zip(names, (first, second), strict=True)]
    return (names[0], names[1]) if names[0] != names[1] else (str(first.path), str(second.path))


def _remarks(comparison: RunComparison) -> list[str]:
    found = comparison.difference
    marked = sum(one.interval.excludes_zero for one in found.classes)
    chance = fixed((1 - found.level) * len(found.classes))
    lines = [
        f"{marked} of {counted(len(found.classes), 'class', 'classes')} marked {_MARK} (the interval excludes 0); "
        f"about {chance} would be marked by chance if the runs did not differ."
    ]
    if found.without_positives:
        lines.append(f"Left out, as no test image or every one shows it: {', '.join(found.without_positives)}.")
    return [*lines, _about_seeds(found.pairs), *(f"Note: {note}." for note in comparison.notes)]


def _about_seeds(count: int) -> str:
    if count == 1:
        return "One seed: the interval covers the choice of test images, not the luck of the seed."
    narrow = "; with so few seeds it is likely too narrow" if count < _FEW_SEEDS else ""
    return f"{count} seeds, also resampled: the interval covers the choice of test images and of seeds{narrow}."


def _pair_as_dict(runs: tuple[RunRecord, RunRecord], sessions: tuple[int, int]) -> dict[str, Any]:
    return {
        side: {"folder": str(run.path), "seed": run.result.seed, "session": session}
        for side, run, session in zip(("first", "second"), runs, sessions, strict=True)
    }


def _rounded(values: Sequence[float]) -> list[str]:
    """The values with one decimal, or with two if one decimal would round a value to 0."""
    decimals = 2 if any(value != 0 and round(value, 1) == 0 for value in values) else 1
    return [fixed(value, decimals) for value in values]


def _percent(level: float) -> str:
    return f"{100 * level:g} %"
