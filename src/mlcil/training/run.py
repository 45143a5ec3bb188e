"""A whole run: for each session learn, evaluate, keep; from wherever it stands to results.json."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console

from ..core.checksums import DamagedFileError
from ..core.errors import UserError
from ..core.files import sha256_of
from ..core.state import State, divided, part_of, prefixed
from ..data.images import Level
from ..data.protocol import Protocol, Session, is_back
from ..data.review import review_protocol
from ..data.sources import Found
from ..evaluation.calibration import DEFAULT_THRESHOLD, FEWEST_IMAGES, Calibration, stored_thresholds
from ..evaluation.pseudo_label_quality import pseudo_label_quality
from ..evaluation.results import HEADER, RunResult, SessionResult, evaluate, load_results, session_from_dict
from ..evaluation.scores import ScoredImages, scores_file
from ..methods.base import Method
from .config import RunConfig
from .folder import RunFolder
from .inference import in_all, infer, on_first
from .launch import launch
from .learner import Learned, Learner, Resumption
from .prepare import kept_stem, make_feed, prepare_method, review_weights
from .progress import Reporter
from .run_data import prepare_run_data, read_run_data
from .states import fitting, load_session, load_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def run(
    config: RunConfig,
    out: Path,
    console: Console | None = None,
    found: Found | None = None,
    _change: Callable[[Protocol], Protocol] = lambda one: one,
) -> RunResult:
    """Run an experiment, or continue it where it was interrupted.

    Arguments:
        config: what to run.
        out: the run's folder; a used one must hold the same configuration.
        console: where to report; None for silence.
        found: what `data.sources.read` gave for the configuration's data, if it was read already.
        _change: what to make of the protocol before anything uses it; for `mlcil.testing`.

    Returns:
        What was measured, as results.json holds it.

    Raises:
        UserError: something in the configuration, the data or the folder is wrong.
    """
    fabric = launch(config.settings)
    folder = RunFolder(out, partial(on_first, fabric))
    try:
        folder.open(config)
        return _Run(config, folder, fabric, console or Console(quiet=True), found, _change).execute()
    finally:
        folder.close()


class _Run:
    """One launch of a run."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        fabric: Fabric,
        console: Console,
        found: Found | None,
        change: Callable[[Protocol], Protocol],
    ) -> None:
        self.config, settings = config, config.settings
        self.settings = settings
        self.folder, self.fabric = folder, fabric
        self.reporter = Reporter(console if fabric.global_rank == 0 else Console(quiet=True), [])
        say = self.reporter.say
        folder.set_aside_damaged(say)
        whole, before = in_all(fabric, lambda: read_run_data(settings, folder, say, found))
        say(f"making the backbone {settings.backbone}, weights: {settings.weights or 'none'}")
        self.method, self.weight_file = prepare_method(config, len(whole.train.classes))
        self.method.tagger.to(fabric.device)
        stem = in_all(fabric, lambda: kept_stem(settings, self.method.tagger, fabric.device))
        self.data, self.sessions, self.record = in_all(
            fabric, lambda: prepare_run_data(whole, before, settings, folder, say, stem, change)
        )
        folder.save_record(self.record)
        self.findings = [
            *self.data.whole.findings,
            *review_protocol(self.data.whole, self.data.protocol, self.sessions),
            *review_weights(settings),
        ]
        self.reporter.findings(self.findings)
        self.reporter.work = [
            len(one.indices) * settings.epochs_of(one.number) if self.method.trains(one) else 0 for one in self.sessions
        ]
        backbone = self.method.tagger.backbone
        feed = make_feed(settings, self.data.train, backbone, fabric, settings.augment)
        self.test_feed = make_feed(settings, self.data.test, backbone, fabric)
        digest, name = self.record.train_digest, self.data.whole.train.paths.__getitem__
        self.learner = Learner(self.method, settings, fabric, feed, folder, self.reporter, digest, name)
        self.results: list[SessionResult] = []
        self.calibration = Calibration() if settings.validation else None

    def execute(self) -> RunResult:
        """Do what is left to do."""
        start = self._restore()
        self._score_again()
        if len(self.results) < len(self.sessions):
            self.folder.log_environment(self._facts())
        try:
            for session in self.sessions[len(self.results) :]:
                self._run_session(session, start)
                start = None
        finally:
            self.reporter.stop()
            self.learner.scalars.close()
        self.reporter.findings([one for one in self.findings if one.level == Level.FIX_FIRST])
        return self._write_results()

    def _run_session(self, session: Session, start: Resumption | None) -> None:
        """Learn, evaluate, keep."""
        began, worked, opening = time.monotonic(), time.process_time(), 0.0
        if start is None:
            opening = self.learner.open(session)
            self._log_pseudo_label_quality(session)
        learned = self.learner.learn(session, start, opening)
        self._calibrate(session)
        scored, state = self._score(session, self.method), self.method.state()
        result = self._measure(learned, scored, state)
        self.results.append(result)
        # Of this process's threads together, which other programs on the machine do not change.
        busy = {"processor_seconds": time.process_time() - worked}
        cost = {"session_seconds": time.monotonic() - began, **busy, **_peak_memory(self.fabric.device)}
        self.folder.log({"session": session.number, "epoch": learned.epochs, "mAP": result.map, **cost})
        self._keep(session.number, result, scored, state)
        defined = {name: value for name, value in result.metrics.items() if value is not None}
        self.learner.scalars.write("test", defined, session.number)
        self.reporter.result(result)

    def _calibrate(self, session: Session) -> None:
        """Find thresholds and a temperature for the new classes on images that nothing was trained on."""
        if self.calibration is None:
            return
        rows, labels = session.validation
        scores = np.empty((0, session.stop), np.float32)
        if len(rows):
            scores = self.learner.infer(self.method.predict, rows)
        images = len(session.indices) + len(rows)
        back = int(session.is_back.sum() + is_back(labels, session.first).sum())
        self.calibration = self.calibration.extended(scores, labels, images, back)
        if not self.calibration.parts[-1].is_enough and self.method.thresholds() is None:
            self.reporter.say(
                f"  session {session.number}: {len(rows)} images were set aside, too few to calibrate with, so its "
                f"classes keep the default threshold {DEFAULT_THRESHOLD} and their scores as they are; with at least "
                f"{FEWEST_IMAGES} (raise validation, or add images) they get their own"
            )

    def _score(self, session: Session, method: Method) -> ScoredImages:
        """Score the test images of the sessions so far."""
        rows = self.data.protocol.test_rows(session.stop)
        tagger, size = method.tagger, self.settings.batch_size
        show = self.reporter.images("scoring test images")
        scores = infer(method.predict, rows, tagger, self.fabric, self.test_feed, size, show)
        return ScoredImages(scores, self.data.protocol.data.test.labels[rows, : session.stop], rows, session.classes)

    def _score_again(self) -> None:
        """Compute scores that are missing or damaged from the state after their session; the state is not touched."""
        for session in self.sessions[: len(self.results)]:
            file = scores_file(self.folder.path, session.number)
            if not self.folder.lacks_scores(session.number, self.reporter.say):
                continue
            self.reporter.say(f"computing {file} again")
            with torch.random.fork_rng(devices=[]):  # initial weights are drawn before they are overwritten
                blank = replace(self.config, settings=replace(self.settings, weights=None))
                method, _ = prepare_method(blank, len(self.data.whole.train.classes))
                tensors, values = load_session(self.folder.state_file(session.number))
                method.load_state(State(part_of(tensors, "method."), values["method"]))
            method.tagger.to(self.fabric.device)
            self.folder.save_scores(session.number, self._score(session, method))

    def _measure(self, learned: Learned, scored: ScoredImages, state: State) -> SessionResult:
        size = sum(value.numel() * value.element_size() for value in state.tensors.values())
        return evaluate(
            scored,
            self.results,
            images=learned.images,
            train_seconds=learned.seconds,
            bytes_kept=size,
            notes=self.method.notes(),
            thresholds=stored_thresholds(self.method.thresholds(), self.calibration),
            calibration=self.calibration,
        )

    def _keep(self, number: int, result: SessionResult, scored: ScoredImages, state: State) -> None:
        """Write what a session leaves; with its state on disk the session is finished."""
        self.folder.save_scores(number, scored)
        found = {} if self.calibration is None else {"calibration": self.calibration.to_values()}
        state, rest = divided(state, self.method.only_for_learning)
        values = {"method": state.values, "result": asdict(result)} | found
        rest = State(prefixed("method.", rest.tensors), rest.values)
        self.folder.save_session(number, State(prefixed("method.", state.tensors), values), rest)
        self.folder.drop_progress(number)
        self._write_results()

    def _log_pseudo_label_quality(self, session: Session) -> None:
        """Note how right the session's pseudo labels are; nothing but the report reads it."""
        pseudo, notes = self.method.pseudo_labels(), self.method.notes()
        if pseudo is not None:
            truth = self.data.protocol.data.train.labels[session.indices, : session.first]
            found = {key: notes.get(key) for key in ("threshold", "target")} | pseudo_label_quality(pseudo, truth)
            self.folder.log({"session": session.number, "epoch": 0, "pseudo_labels": found})

    def _restore(self) -> Resumption | None:
        """Load the newest state; returns where training goes on if it is from within a session."""
        finished = min(self.folder.finished_sessions(), len(self.sessions))
        self.results += [self._earlier_result(number) for number in range(1, finished)]
        newest, start = None, None
        if finished:
            file = self.folder.state_file(finished)
            with fitting(file):
                newest = load_session(file, self.method.only_for_learning)
                self.results.append(session_from_dict(newest[1]["result"]))
                if self.calibration is not None:
                    self.calibration = Calibration.from_values(newest[1]["calibration"])
        progress = self.folder.progress_file(finished + 1)
        if finished < len(self.sessions) and progress.exists():
            newest, file = load_state(progress), progress
        if newest is not None:
            with fitting(file):
                start = self.learner.resume(*newest)
            self.reporter.say(f"continuing {self.folder.path} after session {finished}")
        self.folder.forget_metrics(finished + 1, 0 if start is None else start.position.epoch + 1)
        return start

    def _earlier_result(self, number: int) -> SessionResult:
        """The result of a session before the newest one; if its state is damaged, as results.json has it."""
        try:
            return self.folder.result_after(number)
        except DamagedFileError as error:
            try:
                result = load_results(self.folder.path).sessions[number - 1]
            except (UserError, IndexError):
                raise error from None
            self.reporter.say(f"{error.file} is damaged: {error.reason}; its result is taken from results.json")
            return result

    def _write_results(self) -> RunResult:
        header = {name: getattr(self.settings, name) for name in HEADER}
        finished = len(self.results) == len(self.sessions)
        result = RunResult(
            **header,
            negatives="labelled" if self.data.protocol.has_negatives else "none",
            data_digest=self.record.digest,
            bad_images=self.data.bad_images,
            finished=finished,
            sessions=[*self.results],
        )
        self.folder.write_results(result)
        return result

    def _facts(self) -> dict[str, Any]:
        file = self.weight_file
        return {
            "seed": self.settings.seed,
            "device": str(self.fabric.device),
            "processes": self.fabric.world_size,
            "threads": torch.get_num_threads(),
            "weights": None if file is None else {"file": str(file), "sha256": sha256_of(file)},
        }


def _peak_memory(device: torch.device) -> dict[str, float | None]:
    """The most memory that the process, and the GPU if it has one, has used so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    gpu = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
    return {"peak_memory_mb": used, "gpu_memory_mb": gpu}
