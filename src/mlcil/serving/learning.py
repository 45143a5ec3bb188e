"""Learning: a tagger starts from a table, and learns more labels from others, without the photos of earlier ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from ..core.checksums import DamagedFileError, set_aside_damaged
from ..core.config import as_dict, identity
from ..core.errors import UserError, reason_of
from ..core.state import State, part_of
from ..core.words import counted
from ..data.features import KeptStem
from ..data.protocol import Session
from ..evaluation.calibration import Calibration
from ..experiments.checks import check_run, check_weights
from ..methods.analytic import Analytic
from ..methods.base import Method
from ..training.config import RunConfig, make_config
from ..training.folder import RunFolder
from ..training.inference import infer
from ..training.launch import launch
from ..training.learner import Learner, Resumption, resumption
from ..training.prepare import kept_stem, make_feed, prepare_method
from ..training.progress import Reporter
from ..training.states import fitting, load_state
from .learn_report import (
    LabelChange,
    LearnReport,
    NewPhotos,
    Plan,
    estimated_changes,
    make_plan,
    measured_changes,
    too_similar,
    unlabelled,
)
from .lesson import counted_facts, make_session, work_folder
from .loading import weights_text
from .measuring import measured
from .records import LabelFacts, Step
from .restoring import restored
from .starting import start_config
from .step_data import Photos, StepData, StepLabels, read_check, read_step
from .tagger import Tagger

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FOLDS = 5  # parts into which the photos of a step are divided to measure on
# What a tagger is made of: settings, and options of methods.
FIXED = (
    *("method", "backbone", "weights", "image_size", "freeze", "runtime", "protocol", "order", "data", "buffer"),
    *("expansion", "power", "width", "heads"),
)


@dataclass(frozen=True)
class LearnOptions:
    """How to learn.

    Attributes:
        images: the folder or URL to which the paths in the table are relative; None for the table's own.
        labels: of the table that are to be learned; None for all.
        check: a table with labels that the tagger knew before, to measure what has changed.
        method, backbone, weights: of a new tagger; None for the defaults, see `starting.start_config`.
        settings: settings of the training and options of the method, by name.
        work: a folder for checkpoints, from which the same call goes on after an interruption; None for none.
    """

    images: str | None = None
    labels: tuple[str, ...] | None = None
    check: str | None = None
    method: str | None = None
    backbone: str | None = None
    weights: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    work: Path | None = None


def learn(
    tagger: Tagger | None, data: str, options: LearnOptions, console: Console | None = None
) -> tuple[Tagger, LearnReport]:
    """Learn the labels of a table.

    Arguments:
        tagger: learns more, and itself stays as it is; None starts a new one.
        data: the table, or any other data set.
        console: where to report; None for silence.

    Returns:
        The tagger that has learned, and what there is to say about it.

    Raises:
        UserError: the data cannot be read, or there is nothing to learn.
    """
    config = _config(tagger, data, options)
    lesson = _Lesson(tagger, config, options, Reporter(console or Console(quiet=True), []))
    try:
        return lesson.teach()
    finally:
        lesson.reporter.stop()


def _config(tagger: Tagger | None, data: str, options: LearnOptions) -> RunConfig:
    if tagger is None:
        return start_config(data, options.images, options.method, options.backbone, options.weights, options.settings)
    if tagger.slim:
        raise UserError(
            f"{tagger.path} was saved slim, without what further learning needs; take the tagger it is from"
        )
    given = {"method": options.method, "backbone": options.backbone, "weights": options.weights} | dict(
        options.settings
    )
    # How a run was computed on its machine, as with several devices, says nothing about this one.
    own = identity(tagger.config.settings) | {"options": as_dict(tagger.config.options)}
    has = own | own["options"] | {"weights": f"({tagger.weights or 'not recorded'})"}
    for key in FIXED:
        if given.get(key) is not None and str(given[key]) != str(has.get(key)):
            raise UserError(f"this tagger has {key} {has.get(key)}, which stays as it is; leave out {key}={given[key]}")
    changes = {key: value for key, value in given.items() if key not in FIXED}
    return make_config(own | {"data": data, "images": options.images}, changes)


class _Lesson:
    """One time that a tagger learns."""

    def __init__(self, before: Tagger | None, config: RunConfig, options: LearnOptions, reporter: Reporter) -> None:
        self.before, self.config, self.options, self.reporter = before, config, options, reporter
        self.settings = config.settings
        self.is_closed_form = self.settings.method == Analytic.name
        self.number = 1 if before is None else 1 + before.session
        reporter.work[:] = [0] * self.number

    def teach(self) -> tuple[Tagger, LearnReport]:
        """Read, plan, learn, measure."""
        began = time.monotonic()
        known = () if self.before is None else self.before.classes
        if self.before is None:  # before photos are decoded, which takes longer
            check_run(self.settings)
            check_weights(self.settings)
        labels, fabric = self._read(known), launch(self.settings)
        method = self._method(len(labels.train.classes))
        plan = make_plan(labels, self._ledger(), method, self.settings)
        for line in plan.lines():
            self.reporter.say(line)
        stem = kept_stem(self.settings, method.tagger.to(fabric.device), fabric.device)
        step, check = labels.opened(self.settings, stem, self.reporter.say), self._read_check(known, stem)
        self.reporter.findings(step.findings)
        method, session, calibration = self._learn(step, method, fabric)
        after = self._tagger(step, method, calibration, plan)
        after, words = self._measured(after, step, session, fabric)
        new = self._on_new_photos(after, step, session, fabric)
        noticed = too_similar(after, step.new_labels) if isinstance(method, Analytic) else []
        if self.before is not None and new is not None:
            noticed += unlabelled(self.before, new)
        changes = self._changes(after, new, check, fabric)
        checked = [one.facts for one in changes if one.facts is not None]
        self.reporter.findings(noticed)
        findings = (*step.findings, *noticed)
        report = LearnReport(plan, step.stated, words, tuple(changes), findings, time.monotonic() - began)
        return after.with_label_facts(checked), report

    def _read(self, known: tuple[str, ...]) -> StepLabels:
        if self.before is not None and not self.is_closed_form and self.settings.buffer != "0":
            raise UserError(
                f"{self.settings.method} trains on exemplars, which are images of earlier steps, and a tagger keeps "
                "none; make one without a buffer"
            )
        ledger = self._ledger()
        remembers = ledger is not None and ledger.remembers
        self.reporter.say(f"reading {self.settings.data}")
        labels = read_step(
            self.settings.data,
            self.settings,
            known,
            ledger if remembers else None,
            self.options.labels,
            not self.is_closed_form,
            self.reporter.say,
        )
        if not self.is_closed_form and not set(labels.stated) - set(known):
            raise UserError(f"{self.settings.method} learns new labels only, and the table has none; see mlcil methods")
        return labels

    def _read_check(self, known: tuple[str, ...], stem: KeptStem | None) -> Photos | None:
        """The photos on which the labels that the tagger knew before are measured, if there are any."""
        if self.options.check is None or not known:
            return None
        photos = read_check(self.options.check, self.settings, known, self.reporter.say, stem)
        for reason in photos.bad:
            self.reporter.say(f"left out: {reason}")
        return photos

    def _ledger(self) -> Any:
        return self.before.method.ledger if self.before and isinstance(self.before.method, Analytic) else None

    def _method(self, classes: int) -> Method:
        """The method, ready to learn; the tagger's own stays as it is."""
        if self.before is None:
            return prepare_method(self.config, classes)[0]
        state = self.before.method.state()
        copied = State({name: value.clone() for name, value in state.tensors.items()}, state.values)
        try:
            return self._restored(copied, self.before.classes, self.before.method)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise UserError(f"the tagger cannot go on with these settings: {reason_of(error)}") from error

    def _learn(self, step: StepData, method: Method, fabric: Fabric) -> tuple[Method, Session, Calibration | None]:
        """Teach the method, or the one of an interrupted lesson, which goes on where it stopped."""
        session = make_session(step, self.number, 0.0 if isinstance(method, Analytic) else self.settings.validation)
        work = self.options.work if method.trains(session) else None
        folder = work_folder(work, self.config, session, method, self.reporter.say)
        try:
            method, start = (method, None) if work is None else self._resumed(folder, session, method)
            if isinstance(method, Analytic) and method.is_all_in_sums:
                method.folds = FOLDS
            method.tagger.to(fabric.device)
            augment = self.settings.augment
            feed = make_feed(self.settings, step.train.store, method.tagger.backbone, fabric, augment)
            name = dict(zip(step.train.rows.tolist(), step.train.images.paths, strict=True)).__getitem__
            learner = Learner(method, self.settings, fabric, feed, folder, self.reporter, "", name)
            learner.learn(session, start, learner.open(session) if start is None else 0.0)
        finally:
            folder.close()
        return method, session, self._calibration(session, learner, method)

    def _resumed(self, folder: RunFolder, session: Session, method: Method) -> tuple[Method, Resumption | None]:
        """The method as an interrupted lesson has left it and where that stopped, or the method as it is and None."""
        progress = folder.progress_file(self.number)
        if not progress.exists():
            return method, None
        try:
            tensors, values = load_state(progress)
        except DamagedFileError as error:
            self.reporter.say(set_aside_damaged(error, "learning begins anew"))
            return method, None
        self.reporter.say(f"going on from {progress.parent}")
        with fitting(progress):
            state = State(part_of(tensors, "method."), values["method"])
            return self._restored(state, session.classes, method), resumption(tensors, values)

    def _restored(self, state: State, classes: tuple[str, ...], like: Method) -> Method:
        """A method with this state, with the normalisation of another one."""
        method = restored(self.config, state, classes, None, learns=True)
        old, new = like.tagger.backbone, method.tagger.backbone
        new.mean, new.std = old.mean, old.std
        return method

    def _calibration(self, session: Session, learner: Learner, method: Method) -> Calibration | None:
        before = None if self.before is None else self.before.calibration
        if method.thresholds() is not None or not self.settings.validation:
            return before
        rows, labels = session.validation
        scores = np.empty((0, session.stop), np.float32)
        if len(rows):
            scores = learner.infer(method.predict, rows)
        return (before or Calibration()).extended(scores, labels, len(session.indices) + len(rows))

    def _tagger(self, step: StepData, method: Method, calibration: Calibration | None, plan: Plan) -> Tagger:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = Step(
            self.number,
            now,
            Path(self.settings.data).name,
            len(step.train.rows),
            plan.returning,
            step.stated,
            step.new_labels,
        )
        method.tagger.cpu().eval().requires_grad_(False)
        old = () if self.before is None else self.before.earlier_labels
        facts = (*old, *(LabelFacts(name, self.number, now) for name in step.new_labels))
        steps = (*(() if self.before is None else self.before.steps), record)
        weights = weights_text(self.config) if self.before is None else self.before.weights
        chosen = None if self.before is None else self.before.chosen
        tagger = Tagger(self.config, method, counted_facts(facts, step, method), steps, calibration, chosen, weights)
        return tagger

    def _measured(self, tagger: Tagger, step: StepData, session: Session, fabric: Fabric) -> tuple[Tagger, str]:
        """The tagger with how well it gives the labels of the table, and on what that was measured, in words."""
        method = tagger.method
        if len(step.test.rows):
            words = f"{counted(len(step.test.rows), 'photo')} of {Path(self.settings.data).name} set aside"
            scores, labels = self._score(tagger, step.test, fabric), step.test.images.labels
        elif isinstance(method, Analytic) and method.held_out is not None:
            places, scores = method.held_out
            labels = session.labels[places]
            words = f"{counted(len(places), 'photo')} of {Path(self.settings.data).name}, cross-validated"
        else:
            return tagger, ""
        facts = measured(tagger, scores, labels, words)
        return tagger.with_label_facts(facts), words if facts else ""

    def _score(self, tagger: Tagger, photos: Photos, fabric: Fabric) -> Any:
        method = tagger.method
        if not len(photos.rows):
            return np.empty((0, len(tagger.classes)), np.float32)
        feed = make_feed(self.settings, photos.store, method.tagger.backbone, fabric)
        show = self.reporter.images("scoring photos")
        method.tagger.to(fabric.device)
        found = infer(method.predict, photos.rows, method.tagger, fabric, feed, self.settings.batch_size, show)
        method.tagger.cpu()
        return found

    def _on_new_photos(self, after: Tagger, step: StepData, session: Session, fabric: Fabric) -> NewPhotos | None:
        """The photos that the tagger had not seen before, scored by it as it was and as it is now."""
        if self.before is None:
            return None
        ledger, method = self._ledger(), after.method
        held_out = method.held_out if isinstance(method, Analytic) else None
        places = np.arange(len(session.indices)) if held_out is None else held_out.places
        if ledger is not None:
            places = places[ledger.find(session.fingerprints[places]) < 0]
        photos = replace(step.train, rows=session.indices[places])
        old = self._score(self.before, photos, fabric)
        if held_out is None:
            return NewPhotos(old, self._score(after, photos, fabric), session.labels[places])
        scores = held_out.scores[np.searchsorted(held_out.places, places)]
        return NewPhotos(old, scores, session.labels[places])

    def _changes(self, after: Tagger, new: NewPhotos | None, check: Photos | None, fabric: Fabric) -> list[LabelChange]:
        if self.before is None or new is None:
            return []
        if check is None:
            return estimated_changes(self.before, after, new)
        scores = self._score(self.before, check, fabric), self._score(after, check, fabric)
        words = f"{counted(len(check.rows), 'photo')} of {Path(str(self.options.check)).name}"
        seen = after.count_seen(check.images.fingerprints)
        how = f"{words}, {seen} of which it has learned from, which flatters it" if seen else words
        return measured_changes(self.before, after, scores, check.images.labels, how, keeps=not seen)
