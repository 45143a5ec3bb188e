"""Why a run loses against joint training: what can be read from its folder, and what its features could give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..core.words import listed
from ..evaluation.diagnosis import Drift, NewClasses, Stage, drifts, map_of, new_classes, of_images, waterfall
from ..evaluation.scores import ScoredImages, load_scores, scores_file
from ..serving.diagnosing import RunHeads, joint_features, run_heads
from .collect import collect
from .comparison import in_common_rows
from .runs import Collection, RunRecord

PSEUDO_LABELS = ("images", "threshold", "target", "per_image", "true_per_image", "precision", "recall")


@dataclass(frozen=True)
class Diagnosis:
    """Where a run loses, in percent of AP and percent points.

    Attributes:
        runs: the run alone, as the tables of a report take it.
        joint: the joint run, if there is one.
        drift: of the old classes, for each session after the first and for all together.
        new_classes: of each session, by the run's scores right after it.
        joint_new_classes: the same by the joint run's scores; empty without one.
        heads: heads in closed form on the run's features; None if they were not computed.
        stages: the way from joint training to the run; empty without `heads`.
        notes: what is missing and why, in sentences without a full stop.
    """

    runs: Collection
    joint: RunRecord | None
    drift: list[Drift]
    new_classes: list[NewClasses]
    joint_new_classes: list[NewClasses]
    heads: RunHeads | None
    stages: list[Stage]
    notes: list[str]

    @property
    def run(self) -> RunRecord:
        """The run."""
        return self.runs.groups[0].runs[0]

    def as_dict(self) -> dict[str, Any]:
        """All of it in terms of JSON."""
        pseudo = {key: self.run.pseudo_labels(key) for key in PSEUDO_LABELS}
        return {
            "run": str(self.run.path),
            "joint": None if self.joint is None else str(self.joint.path),
            "session": len(self.run.result.sessions),
            "mAP": self.run.result.last_map,
            "drift": [one._asdict() for one in self.drift],
            "new_classes": [one._asdict() for one in self.new_classes],
            "joint_new_classes": [one._asdict() for one in self.joint_new_classes],
            "pseudo_labels": [
                {"session": session} | {key: found.get(session) for key, found in pseudo.items()}
                for session in sorted(pseudo["per_image"])
            ],
            "closed_form": None
            if self.heads is None
            else {
                "last_trunk": self.heads.last._asdict(),
                "first_trunk": None if self.heads.first is None else self.heads.first._asdict(),
            },
            "stages": [one._asdict() for one in self.stages],
            "notes": self.notes,
        }


def diagnose_run(
    path: Path, joint: Path | None = None, quick: bool = False, say: Callable[[str], None] = lambda text: None
) -> Diagnosis:
    """Find where a run loses.

    Arguments:
        path: the folder of a run with at least one finished session.
        joint: the folder of a run that learned the same classes in one session, on the same data.
        quick: leave out what needs the run's data and model.
        say: called with a line about each step.

    Raises:
        UserError: a folder does not hold one run, or the joint run does not fit.
    """
    found = _one_run(path)
    run, notes = found.groups[0].runs[0], [*found.problems]
    other = None if joint is None else _one_run(joint).groups[0].runs[0]
    sessions, reference = _scores(run, other)
    own, theirs = [], []
    for result, scored in zip(run.result.sessions, sessions, strict=True):
        own.append(new_classes(result.session, scored, result.new_classes))
        if reference is not None:
            theirs.append(new_classes(result.session, of_images(reference, scored.rows), result.new_classes))
    heads = None if quick else _heads(run, say, notes)
    stages: list[Stage] = []
    if heads is not None:
        goal = None if reference is None else map_of(reference.scores, reference.labels)
        features = None if other is None else _joint_features(other, run, say, notes)
        stages = waterfall(goal, features, heads.last, run.result.last_map)
    return Diagnosis(found, other, drifts(sessions), own, theirs, heads, stages, notes)


def _one_run(path: Path) -> Collection:
    """A collection of one run."""
    found = collect([path])
    runs = [run for group in found.groups for run in group.runs]
    if len(runs) > 1:
        raise UserError(f"{path}: expected the folder of one run, got {listed(str(run.path) for run in runs)}")
    return found


def _scores(run: RunRecord, joint: RunRecord | None) -> tuple[list[ScoredImages], ScoredImages | None]:
    """The scores after each session, and those of the joint run for the last images and classes of the run."""
    numbers = [one.session for one in run.result.sessions]
    if joint is None:
        return [load_scores(scores_file(run.path, number)) for number in numbers], None
    if (count := len(joint.result.sessions)) > 1:
        raise UserError(f"joint: {joint.path} learned its classes in {count} sessions, expected a run of one session")
    *sessions, reference = in_common_rows([*[run] * len(numbers), joint], [*numbers, 1])
    try:
        return sessions, _matched(reference, sessions[-1])
    except UserError as error:
        raise UserError(f"joint: {joint.path} cannot be set beside {run.path}: {error}") from None


def _matched(joint: ScoredImages, last: ScoredImages) -> ScoredImages:
    """The scores of a joint run for the images, classes and labels of `last`.

    Raises:
        UserError: it lacks some of them.
    """
    if missing := [name for name in last.classes if name not in joint.classes]:
        raise UserError(f"it does not know the classes {listed(missing)}")
    if gone := np.setdiff1d(last.rows, joint.rows).size:
        raise UserError(f"{gone} of {len(last.rows)} test images are not among its own")
    chosen = of_images(joint, last.rows)
    columns = [joint.classes.index(name) for name in last.classes]
    labels = chosen.labels[:, columns]
    # A joint run may know labels that no session of the other gave.
    if wrong := int(((labels != last.labels) & (labels >= 0) & (last.labels >= 0)).any(axis=1).sum()):
        raise UserError(f"the labels of {wrong} of {len(last.rows)} test images differ")
    return ScoredImages(chosen.scores[:, columns], last.labels, last.rows, last.classes)


def _heads(run: RunRecord, say: Callable[[str], None], notes: list[str]) -> RunHeads | None:
    """The heads in closed form, or a note why there are none."""
    try:
        heads = run_heads(run.path, len(run.result.sessions), bool(run.pseudo_labels("per_image")), say)
    except UserError as error:
        notes.append(f"nothing is said about features and labels, as the run's data or model cannot be used: {error}")
        return None
    notes += [heads.note] if heads.note else []
    return heads


def _joint_features(joint: RunRecord, run: RunRecord, say: Callable[[str], None], notes: list[str]) -> float | None:
    """What the features of the joint run give, where that can be compared."""
    if set(joint.result.classes) != set(run.result.classes):
        notes.append(
            "the joint run knows further classes, so its features are not compared, and the step from it to the run's "
            "features also holds what closed-form heads gain or lose against trained ones"
        )
        return None
    try:
        return joint_features(joint.path, say)
    except UserError as error:
        notes.append(f"nothing is said about the features of the joint run, as it cannot be used: {error}")
        return None
