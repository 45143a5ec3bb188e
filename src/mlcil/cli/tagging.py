"""The commands of people with photos: learn, predict, evaluate and whatever changes a tagger; each calls and prints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.errors import UserError
from ..core.escaping import printable
from ..core.pools import Pool
from ..core.remote import check_local
from ..core.words import counted
from ..data.xmp import BadSidecar
from ..data.xmp_writing import remove_tags, write_tags
from ..serving.changing import choose_thresholds, forget_labels, forget_step, merge, rename
from ..serving.learn_report import LearnReport
from ..serving.learning import LearnOptions, learn
from ..serving.predicted_parts import Parts, identity_of
from ..serving.predicting import Outcome, Wish, tag_photos
from ..serving.prediction_files import check_format, write_predictions
from ..serving.records import LabelFacts
from ..serving.tagger import Tagger
from .console import progress, say, to_stderr

SHOWN = 100  # labels that a table shows
CHANGE = 0.5  # percent points of AP below which a change is not worth a line


def run_learn(
    data: str | None, source: str | None, out: Path, options: LearnOptions, names: Sequence[str], console: Console
) -> None:
    """Start a tagger or let it learn more, and write it to a new folder.

    Arguments:
        data: the table; None where labels are only to be renamed.
        source: the tagger that learns more; None starts a new one.
        out: must be free, see `check_free`.
        names: renamings, as old=new; they come before the table is read.
    """
    tagger = None if source is None else Tagger.load(source)
    if names:
        tagger = rename(_needed(tagger), dict(_pair(text) for text in names))
    if data is None:
        if not names:
            raise UserError("nothing to learn: give a table, or --rename OLD=NEW")
        _needed(tagger).save(out)
    else:
        learned, report = learn(tagger, data, options, console)
        learned.save(out)
        if options.work is not None:
            shutil.rmtree(options.work, ignore_errors=True)
        show_report(learned, report, console)
    say(console, f"saved {out}")


def show_report(tagger: Tagger, report: LearnReport, console: Console) -> None:
    """Print what was learned, and what changed."""
    facts = [one for one in tagger.labels if one.name in report.labels]
    title = f"learned from {counted(tagger.steps[-1].images, 'photo')} in {report.seconds:.0f} s"
    is_older = any(one.measured and one.origin != report.measured for one in facts)
    console.print(label_table(tagger, facts, title, has_origin=is_older))
    say(
        console,
        f"measured on {report.measured}" if report.measured else "not measured: too few photos, or none set aside",
    )
    if report.changes:
        _show_changes(report, console)
    elif len(tagger.labels) > len(facts):
        say(console, "its other labels: not estimated, as there are too few new photos; --check TABLE measures them")


def _show_changes(report: LearnReport, console: Console) -> None:
    changes = report.changes
    mean = sum(one.change.ap or 0 for one in changes) / len(changes)
    known = counted(len(changes), "label")
    say(console, f"the {known} that it knew before: AP {mean:+.1f} points on average ({changes[0].how})")
    moved = sorted((one for one in changes if abs(one.change.ap or 0) >= CHANGE), key=lambda one: one.change.ap or 0)
    if not moved:
        return
    is_measured = moved[0].before is not None
    headings = ("AP before", "AP after", "precision before", "after", "recall before", "after")
    table = Table("label", title=f"labels whose AP changed by {CHANGE} or more")
    for heading in headings if is_measured else ("AP", "precision", "recall"):
        table.add_column(heading, justify="right")
    for one in moved[:SHOWN]:
        cells = [f"{value:+.1f}" if value is not None else "" for value in one.change]
        if one.before is not None and one.after is not None:
            cells = [_figure(value) for pair in zip(one.before, one.after, strict=True) for value in pair]
        table.add_row(Text(one.name), *cells)
    console.print(table)


def label_table(tagger: Tagger, facts: Sequence[LabelFacts], title: str, has_origin: bool = False) -> Table:
    """The labels of a tagger, one per line, and if wanted what their figures were measured on."""
    table = Table("label", title=title)
    for heading in ("step", "photos with it", "looked for on", "threshold", "AP", "precision", "recall"):
        table.add_column(heading, justify="right")
    if has_origin:
        table.add_column("measured on")
    thresholds = dict(zip(tagger.classes, tagger.thresholds, strict=True))
    for one in facts[:SHOWN]:
        counts = ["" if value is None else str(value) for value in (one.step, one.positives, one.images)]
        figures = [_figure(value) for value in (one.ap, one.precision, one.recall)]
        table.add_row(
            Text(one.name),
            *counts,
            f"{thresholds[one.name]:.2f}",
            *figures,
            *([Text(one.origin)] if has_origin else []),
        )
    if len(facts) > SHOWN:
        table.caption = f"and {len(facts) - SHOWN} more"
    return table


def run_predict(
    source: str, paths: Sequence[str], wish: Wish, out: Path | None, pool: Callable[[], Pool | None], console: Console
) -> Iterator[Outcome]:
    """Tag photos and write them to a file, or print them; yields what became of each, in order, as it goes.

    Arguments:
        pool: gives the processes that do it if there is a file; None for this one.
    """
    if out is not None:
        check_format(out)
    tagger = Tagger.load(source)
    tagger.thresholds_for(wish.threshold, wish.precision)  # a wish that cannot be met is said before the work
    if out is None:
        for outcome in tag_photos(tagger, paths, wish, progress()):
            if outcome.error is None:
                console.print(prediction_line(outcome), soft_wrap=True)
            yield _said(outcome)
        return
    parts = Parts(out, f"{identity_of(source, tagger)} {wish}")
    left = parts.left(paths)
    if before := len(paths) - len(left):
        to_stderr(f"going on: {counted(before, 'photo')} of {len(paths)} were tagged before")
    processes = pool()
    make = partial(Tagger.load, source) if processes else lambda: tagger
    parts.fill(left, make, wish, processes, progress(before))
    write_predictions(out, parts.outcomes(paths))
    say(console, f"wrote {out}: {counted(len(paths), 'photo')}")
    yield from map(_said, parts.outcomes(paths))
    parts.close()


def _said(outcome: Outcome) -> Outcome:
    """Say of a photo that cannot be read why."""
    if outcome.error is not None:
        to_stderr(f"left out: cannot read image {outcome.prediction.image}: {outcome.error}")
    return outcome


def write_sidecars(outcomes: Iterable[Outcome], adobe_names: bool, console: Console) -> bool:
    """Write the tags of photos into their sidecars; returns whether all could be read and written."""
    bad = 0

    def work() -> Iterator[tuple[Path, Callable[[Path], bool]]]:
        nonlocal bad
        for prediction, error in outcomes:
            bad += error is not None  # one photo that cannot be read keeps no other from its tags
            if error is None:
                yield Path(prediction.image), partial(write_tags, tags=prediction.names, adobe_names=adobe_names)

    return _each_sidecar(work(), console) and not bad


def remove_sidecars(paths: Sequence[str], console: Console) -> bool:
    """Take what `write_sidecars` wrote out of the sidecars again; returns whether all could be."""
    return _each_sidecar([(Path(one), remove_tags) for one in paths], console)


def _each_sidecar(work: Iterable[tuple[Path, Callable[[Path], bool]]], console: Console) -> bool:
    changed, bad = 0, 0
    for photo, deed in work:
        try:
            changed += deed(photo)
        except (BadSidecar, UserError) as error:
            bad += 1
            to_stderr(f"left out: the sidecar of {photo}: {error}")
    say(console, f"{counted(changed, 'sidecar')} changed")
    return not bad


def prediction_line(outcome: Outcome) -> Text:
    """One photo and its tags."""
    line = Text(f"{printable(outcome.prediction.image)}: ")
    tags = [f"{printable(tag.name)} {tag.probability:.2f}" for tag in outcome.prediction.tags]
    return line.append(", ".join(tags) or "no tag", style="bold" if tags else "dim")


def run_inspect(source: str, console: Console) -> None:
    """Print what a tagger is, what it knows, and what it learned from."""
    tagger = Tagger.load(source)
    settings = tagger.config.settings
    say(console, f"{tagger.path}: {settings.method} on {settings.backbone}, {tagger.size} pixels, {tagger.weights}")
    console.print(label_table(tagger, tagger.labels, counted(len(tagger.labels), "label"), has_origin=True))
    table = Table("step", "when", "photos", "seen before", "from", "new labels", title="what it learned from")
    for step in tagger.steps:
        names = Text(", ".join(step.new_labels))
        table.add_row(
            str(step.number), step.learned[:16], str(step.images), str(step.returning), Text(step.source), names
        )
    console.print(table)


def run_forget(source: str, labels: Sequence[str], steps: Sequence[int], out: Path, console: Console) -> None:
    """Write the tagger without some labels or steps."""
    check_free(out)
    if not labels and not steps:
        raise UserError("nothing to forget: give --label NAME or --step NUMBER")
    tagger = Tagger.load(source)
    for number in steps:
        tagger = forget_step(tagger, number)
    if labels:
        tagger = forget_labels(tagger, labels)
    tagger.save(out)
    say(console, f"saved {out}: {counted(len(tagger.labels), 'label')}")


def run_merge(first: str, second: str, out: Path, console: Console) -> None:
    """Write two taggers as one."""
    check_free(out)
    tagger = merge(Tagger.load(first), Tagger.load(second))
    tagger.save(out)
    say(console, f"saved {out}: {counted(len(tagger.labels), 'label')}")


def run_thresholds(
    source: str, given: Sequence[str], precision: float | None, out: Path | None, console: Console
) -> None:
    """Print the thresholds of a tagger, or write it with others."""
    tagger = Tagger.load(source)
    if given or precision is not None:
        if out is None:
            raise UserError("give --out FOLDER for the tagger with these thresholds; the old one stays as it is")
        tagger = choose_thresholds(tagger, dict(_threshold(text) for text in given), precision)
        tagger.save(out)
        say(console, f"saved {out}")
    table = Table("label", "threshold", "whose")
    for name, value in zip(tagger.classes, tagger.thresholds, strict=True):
        whose = "chosen" if name in (tagger.chosen or {}) else "the tagger's own"
        table.add_row(Text(name), f"{value:.4f}", whose)
    console.print(table)


def run_export(source: str, onnx: Path | None, slim: Path | None, console: Console) -> None:
    """Write a tagger as an ONNX model, or without what only further learning needs."""
    if onnx is None and slim is None:
        raise UserError("nothing to write: give --onnx FILE or --slim FOLDER")
    tagger = Tagger.load(source)
    if slim is not None:
        tagger.save(slim, slim=True)
        say(console, f"saved {slim}: it can tag, but not learn more")
    if onnx is not None:
        from ..serving.export import export_onnx

        made = export_onnx(tagger, onnx)
        say(
            console,
            f"wrote {made.path} ({made.size / 1e6:.1f} MB), at most {made.difference:.0e} from the tagger's own",
        )
        say(console, f"wrote {made.script}: python {made.script} {made.path} photo.jpg")


def _threshold(text: str) -> tuple[str, float | None]:
    name, value = _pair(text)
    if value == "auto":
        return name, None
    try:
        return name, float(value)
    except ValueError:
        raise UserError(f"got threshold {value!r} for {name!r}, expected a number from 0 to 1, or auto") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name.strip() or not value.strip():
        raise UserError(f"got {text!r}, expected NAME=VALUE")
    return name.strip(), value.strip()


def _needed(tagger: Tagger | None) -> Tagger:
    if tagger is None:
        raise UserError("--rename needs --from, the tagger whose labels are to be renamed")
    return tagger


def check_free(out: Path) -> None:
    """Say at once, and not after the work, that a folder is taken or cannot be written."""
    check_local(out)
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already; choose another --out, nothing is ever overwritten")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
