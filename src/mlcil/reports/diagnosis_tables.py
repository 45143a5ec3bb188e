"""The tables of a diagnosis, each with a sentence that says what it measures, and its conclusion."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group
from rich.text import Text

from ..core.files import write_json, write_text
from ..evaluation.diagnosis import Stage
from .diagnosis import Diagnosis
from .table import Cell, Row, Table, fixed, to_markdown, to_terminal
from .tables import pseudo_labels

WORTH = 0.5  # points; what is smaller is not worth acting on
_KEPT = "Nothing is lost here."

# For each stage what it is called, what to do if it loses, and what to say if it gains.
_STAGES = {
    "joint": ("joint training", "", ""),
    "joint_features": (
        "closed form on the joint run's features, all labels",
        "Closed-form heads are weaker than the joint run's own: this part is the yardstick's, not the method's.",
        "Closed-form heads are better than the joint run's own: the goal itself could be higher.",
    ),
    "all_labels": (
        "closed form on the run's features, all labels",
        "The features are worse: hold them if old classes drift; if not, train them more or begin with better ones.",
        "The features are better than the joint run's: leave the trunk as it is.",
    ),
    "united": (
        "... with the labels that the sessions gave",
        "Labels are missing that no session gave: have them annotated, or fill them in with pseudo labels.",
        _KEPT,
    ),
    "separate": (
        "... with an image that returns taken for a new one",
        "A session takes old classes for absent on images that show them: restore these labels, or leave them out.",
        _KEPT,
    ),
    "own_session": (
        "... with each head from its own session's images",
        "New heads see no image without a new class: keep a buffer, add negatives, or sum over all sessions.",
        _KEPT,
    ),
    "run": (
        "the run itself",
        "Separate heads on the same features do better: the method's heads have drifted, or were trained too little.",
        "The method makes up for a part of the losses above.",
    ),
}
_HEADS = {
    "all_labels": "all true labels",
    "united": "labels that the sessions gave, an image counted once",
    "separate": "the same, an image counted anew in each of its sessions",
    "restored": "the same, old labels filled in by the final model",
    "own_session": "each session's heads from its own images alone",
}


def diagnosis_tables(found: Diagnosis) -> list[Table]:
    """All tables that have something to say, in reading order."""
    pseudo = pseudo_labels(found.runs)
    tables = [drift_table(found), new_class_table(found), pseudo, heads_table(found), stage_table(found)]
    return [table for table in tables if table is not None]


def diagnosis_view(found: Diagnosis) -> Group:
    """What to print: each table with its note, and below them the conclusion."""
    parts = [part for table in diagnosis_tables(found) for part in (to_terminal(table), Text(f"{table.note}\n"))]
    closing = conclusion(found)
    last = [Text(closing, style="bold")] if closing else []
    return Group(*parts, *last, *(Text(f"Note: {note}.") for note in found.notes))


def write_diagnosis(found: Diagnosis, out: Path) -> Path:
    """Write diagnosis.json and diagnosis.md into a folder; returns the first."""
    closing = [conclusion(found), *(f"Note: {note}." for note in found.notes)]
    texts = [*map(to_markdown, diagnosis_tables(found)), *(f"{line}\n" for line in closing if line)]
    write_text(out / "diagnosis.md", "\n".join(texts))
    write_json(out / "diagnosis.json", found.as_dict())
    return out / "diagnosis.json"


def drift_table(found: Diagnosis) -> Table | None:
    """What each session did to the classes before it; None if there is only one session."""
    if not found.drift:
        return None
    rows = [Row([str(one.session) if one.session else "all", *one[1:]]) for one in found.drift]
    note = (
        "Mean AP of the classes known before a session, on the test images until then, by the model before and after "
        "it: the difference, by training, is what the session destroyed or gained. The same model on all test images "
        "shows what a larger test set costs, by images. Both together are forgetting as it is usually reported; the "
        "last line adds up, for each class, all sessions after its own, as BWT does."
    )
    headings = ["session", "old classes", "before", "after", "after, all images", "by training", "by images"]
    return Table("drift", "Drift of old classes", note, headings, rows)


def new_class_table(found: Diagnosis) -> Table:
    """How much the new classes of each session suffer from images without any of them."""
    rows = []
    for place, one in enumerate(found.new_classes):
        cells: list[Cell] = [*one, one.cost]
        if found.joint_new_classes:
            normal = found.joint_new_classes[place]
            cells += [normal.shown, normal.everywhere, normal.cost]
        rows.append(Row(cells))
    measured = ["with one", "all images", "cost"]
    joint = [f"joint: {heading}" for heading in measured] if found.joint_new_classes else []
    note = (
        "Mean AP of a session's new classes after it, on the test images that show at least one of them and on all "
        "test images of the session: the difference is what images without any new class cost, of which new heads may "
        "have seen none."
    )
    note += " Beside it the joint run on the same images and classes, to show what is normal." if joint else ""
    return Table(
        "new-classes",
        "New classes, without and with other images",
        note,
        ["session", "new classes", *measured, *joint],
        rows,
    )


def heads_table(found: Diagnosis) -> Table | None:
    """What heads in closed form reach on the run's features; None if they were not computed."""
    if found.heads is None:
        return None
    last, first = found.heads.last._asdict(), found.heads.first and found.heads.first._asdict()
    rows = []
    for key, name in _HEADS.items():
        if last[key] is None:
            continue
        cells: list[Cell] = [name, last[key]]
        if first is not None:
            cells += [first[key], None if first[key] is None else last[key] - first[key]]
        rows.append(Row(cells))
    number = len(found.run.result.sessions)
    note = (
        "mAP on the last test images of heads solved by ridge regression on the pooled features, for what they are "
        "given to learn from; unknown labels count as absent."
    )
    headings = ["closed-form heads from", f"features after session {number}"]
    if first is not None:
        headings += ["before the first", "difference"]
        note += " The difference is what training the features has given or cost."
    return Table("closed-form", "What the features could give", note, headings, rows)


def stage_table(found: Diagnosis) -> Table | None:
    """The way from joint training to the run; None if it was not computed."""
    if not found.stages:
        return None
    rows = [Row([_STAGES[one.key][0], one.map, one.change, advice(one)]) for one in found.stages]
    goal = "joint training" if found.joint is not None else "what the features could give"
    note = f"mAP on the last test images, from {goal} to the run; each line takes away one more thing."
    return Table("waterfall", "Where the points go", note, ["", "mAP", "change", "what to do"], rows)


def advice(stage: Stage) -> str:
    """What a stage suggests."""
    _, loss, gain = _STAGES[stage.key]
    if stage.change is None:
        return "The goal." if stage.key == "joint" else "The most that heads on these features give."
    if abs(stage.change) < WORTH:
        return _KEPT
    return loss if stage.change < 0 else gain


def conclusion(found: Diagnosis) -> str:
    """The largest loss in a sentence; empty where the stages are unknown."""
    steps = [one for one in found.stages if one.change is not None and one.key != "joint_features"]
    if not steps:
        return ""
    worst = min(steps, key=lambda one: one.change or 0.0)
    assert worst.change is not None
    if worst.change > -WORTH:
        return "No stage loses points."
    return f"The largest loss is {fixed(-worst.change)} points at '{_STAGES[worst.key][0]}'. {advice(worst)}"
