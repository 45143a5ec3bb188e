"""A whole run: from a configuration to results.json, from wherever it stands."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from ..core.allocation import keep_freed_memory
from ..core.files import sha256_of
from ..core.randomness import Stream, derive_seed
from ..core.state import State, part_of, prefixed
from ..data.protocol import Protocol, Session
from ..evaluation.calibration import Calibration, stored_thresholds
from ..evaluation.pseudo_label_quality import pseudo_label_quality
from ..evaluation.results import (
    HEADER,
    RunResult,
    SessionFacts,
    SessionResult,
    evaluate,
    session_from_dict,
    write_results,
)
from ..evaluation.scores import ScoredImages, save_scores, scores_file
from ..methods.base import TrainingSet
from .bases import SharedBase, base_name
from .config import RunConfig
from .folder import RunFolder, load_state, parse_lines, save_state
from .inference import TrainingInference, infer, on_first
from .loop import Hooks, Position, SessionTraining
from .prepare import make_feeds, prepare_data, prepare_method
from .progress import Reporter
from .scalars import ScalarLog


class _Taught(NamedTuple):
    """How a session's training went.

    Attributes:
        epochs: number of epochs trained; 0 where the method has nothing to train.
        seconds: training time, also where another run did the training.
    """

    epochs: int
    seconds: float


def run(
    config: RunConfig,
    out: Path,
    console: Console | None = None,
    _change: Callable[[Protocol], Protocol] = lambda one: one,
) -> RunResult:
    """Run an experiment, or continue it where it was interrupted.

    Arguments:
        config: what to run.
        out: the run's folder; a used one must hold the same configuration.
        console: where to report; None for silence.
        _change: what to make of the protocol before anything uses it; for `mlcil.testing`.

    Returns:
        What was measured, as results.json holds it.

    Raises:
        UserError: something in the configuration, the data or the folder is wrong.
    """
    settings = config.settings
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    fabric = Fabric(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=settings.strategy,  # type: ignore[arg-type]
        precision=settings.precision,  # type: ignore[arg-type]
    )
    fabric.launch()
    if fabric.device.type == "cpu":
        keep_freed_memory()
    folder = RunFolder(out)
    try:
        on_first(fabric, lambda: folder.open(config))
        return _Run(config, folder, fabric, console or Console(quiet=True), _change).execute()
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
        change: Callable[[Protocol], Protocol],
    ) -> None:
        self.settings, self.folder, self.fabric = config.settings, folder, fabric
        self.is_writer = fabric.global_rank == 0
        self.reporter = Reporter(console if self.is_writer else Console(quiet=True), [])
        self.data = prepare_data(self.settings, self.reporter.say, change)
        self.sessions = self.data.protocol.sessions(self.settings.validation, self.settings.seed)
        self.method, self.weight_file = prepare_method(config, self.data.total_classes)
        self.reporter.work = [
            len(one.indices) * self.settings.epochs_of(one.number) if self.method.trains(one) else 0
            for one in self.sessions
        ]
        self.method.tagger.to(fabric.device)
        self.loader, self.test_loader = make_feeds(
            self.settings, self.data, self.method.tagger.backbone, fabric, self.reporter.say
        )
        self.infer = TrainingInference(self.method.tagger, fabric, self.loader, self.settings.batch_size)
        self.scalars = ScalarLog(folder.path if self.settings.tensorboard and self.is_writer else None)
        self.results: list[SessionResult] = []
        self.calibration = Calibration() if self.settings.validation else None
        self._base: str | None = None  # the name of the first session among shared ones

    def execute(self) -> RunResult:
        """Do what is left to do."""
        position, saved = self._restore()
        if len(self.results) < len(self.sessions):
            on_first(self.fabric, lambda: self.folder.log_environment(self._facts()))
        try:
            for session in self.sessions[len(self.results) :]:
                self._session(session, position, saved)
                position, saved = None, {}
        finally:
            self.reporter.stop()
            self.scalars.close()
        return self._write_results()

    def _session(self, session: Session, position: Position | None, saved: dict[str, Tensor]) -> None:
        method, began, learning = self.method, time.monotonic(), 0.0
        if position is None:
            torch.manual_seed(derive_seed(Stream.BEFORE_SESSION, self.settings.seed, session.number))
            method.before_session(session, self.infer)
            learning = time.monotonic() - began
            on_first(self.fabric, lambda: self._audit(session))
        training = method.training_set(session)
        taught = self._teach(session, training, position, saved)
        torch.manual_seed(derive_seed(Stream.AFTER_SESSION, self.settings.seed, session.number))
        learning -= time.monotonic()
        method.after_session(session, self.infer)
        learning += time.monotonic()
        self._calibrate(session)
        # Without an epoch, what comes before and after training is all the learning there is.
        seconds = taught.seconds if taught.epochs else learning
        scored, state = self._score(session), method.state()
        result = self._measure(training, scored, state, seconds)
        self.results.append(result)
        wall = time.monotonic() - began
        on_first(self.fabric, lambda: self._keep(session, result, scored, state, taught.epochs, wall))
        defined = {name: value for name, value in result.metrics.items() if value is not None}
        self.scalars.write("test", defined, session.number)
        self.reporter.result(result)

    def _measure(self, training: TrainingSet, scored: ScoredImages, state: State, seconds: float) -> SessionResult:
        size = sum(value.numel() * value.element_size() for value in state.tensors.values())
        facts = SessionFacts(training.shown, seconds, size, self.method.notes())
        thresholds = stored_thresholds(self.method.thresholds(), self.calibration)
        return evaluate(scored, self.results, facts, thresholds, self.calibration)

    def _calibrate(self, session: Session) -> None:
        """Find thresholds and a temperature for the new classes on images that nothing was trained on."""
        if self.calibration is None:
            return
        rows, labels = session.validation
        scores = self.infer(self.method.predict, rows) if len(rows) else np.empty((0, session.stop), np.float32)
        images = len(session.indices) + len(rows)
        self.calibration = self.calibration.extended(scores, labels, session.first, images)

    def _teach(
        self, session: Session, training: TrainingSet, position: Position | None, saved: dict[str, Tensor]
    ) -> _Taught:
        """Train the session, if the method has anything to train in it."""
        if not self.method.trains(session):
            self.method.tagger.to(self.fabric.device)  # what has grown; otherwise setting up an optimiser does it
            self.reporter.session(session.number, session.new_classes, training.shown, epochs=0, done=1.0)
            self.reporter.stop()
            return _Taught(0, 0.0)
        loop = SessionTraining(self.method, session.number, training, self.settings, self.fabric, self.loader, saved)
        return self._train(session, training, loop, position)

    def _train(
        self, session: Session, training: TrainingSet, loop: SessionTraining, position: Position | None
    ) -> _Taught:
        """Train, or take over a first session that another run has trained."""
        base = self._shared_base(session, training, is_new=position is None)
        with nullcontext() if base is None else base.claim(self.reporter.say):
            given = base.take() if base is not None and position is None else None
            if given is not None:
                self.reporter.say("session 1 is taken from another run that started alike")
                on_first(self.fabric, lambda: self.folder.log(*given["epochs"]))
                return _Taught(loop.epochs, given["seconds"])
            done = 0.0 if position is None else loop.part_done(position)
            self.reporter.session(session.number, session.new_classes, training.shown, loop.epochs, done)
            seconds = loop.run(self._hooks(session, loop.epochs), position).seconds
            if base is not None and self.is_writer:
                records = [one for one in parse_lines(self.folder.metrics) if "losses" in one]
                base.give({"seconds": seconds, "epochs": records})
        return _Taught(loop.epochs, seconds)

    def _shared_base(self, session: Session, training: TrainingSet, is_new: bool) -> SharedBase | None:
        """Where the session is shared, if it is one that can be."""
        if session.number > 1 or self.settings.bases is None or not self.method.base_is_finetuning:
            return None
        if is_new:  # later the model is no longer the one to be named
            self._base = base_name(self.method, session, training, self.settings, self.fabric)
        if self._base is None:
            return None
        return SharedBase(Path(self.settings.bases) / f"{self._base}.safetensors", self.method, self.fabric)

    def _audit(self, session: Session) -> None:
        """Note how right the session's pseudo labels are; nothing but the report reads it."""
        pseudo, notes = self.method.pseudo_labels(), self.method.notes()
        if pseudo is not None:
            truth = self.data.protocol.data.train.labels[session.indices, : session.first]
            found = {key: notes.get(key) for key in ("threshold", "target")} | pseudo_label_quality(pseudo, truth)
            self.folder.log({"session": session.number, "epoch": 0, "pseudo_labels": found})

    def _keep(
        self, session: Session, result: SessionResult, scored: ScoredImages, state: State, epochs: int, seconds: float
    ) -> None:
        cost = {"session_seconds": seconds, **_peak_memory(self.fabric.device)}
        self.folder.log({"session": session.number, "epoch": epochs, "mAP": result.map, **cost})
        save_scores(scores_file(self.folder.path, session.number), scored)
        found = {} if self.calibration is None else {"calibration": self.calibration.to_values()}
        values = {"method": state.values, "result": asdict(result)} | found
        save_state(self.folder.state_file(session.number), prefixed("method.", state.tensors), values)
        self.folder.progress_file(session.number).unlink(missing_ok=True)
        self._write_results()

    def _hooks(self, session: Session, epochs: int) -> Hooks:
        def on_epoch(record: dict[str, Any]) -> None:
            on_first(self.fabric, lambda: self.folder.log(record))
            self.reporter.epoch(record, epochs)
            done = (
                sum(self.settings.epochs_of(one.number) for one in self.sessions[: session.number - 1])
                + record["epoch"]
            )
            self.scalars.write("loss", record["losses"], done)

        def save(position: Position, tensors: dict[str, Tensor]) -> None:
            file, state = self.folder.progress_file(session.number), self.method.state()
            values = {"method": state.values, "position": asdict(position), "base": self._base}
            both = prefixed("method.", state.tensors) | prefixed("run.", tensors)
            on_first(self.fabric, lambda: save_state(file, both, values))

        return Hooks(lambda position, done: self.reporter.step(position.epoch, done), on_epoch, save)

    def _score(self, session: Session) -> ScoredImages:
        rows = self.data.protocol.test_rows(session.stop)
        scores = infer(
            self.method.predict,
            rows,
            self.method.tagger,
            self.fabric,
            self.test_loader,
            self.settings.batch_size,
        )
        return ScoredImages(scores, self.data.protocol.data.test.labels[rows, : session.stop], rows, session.classes)

    def _restore(self) -> tuple[Position | None, dict[str, Tensor]]:
        """Load the newest state, whether within a session or at the end of one."""
        finished = min(self.folder.finished_sessions(), len(self.sessions))
        for number in range(1, finished + 1):
            tensors, values = load_state(self.folder.state_file(number), with_tensors=number == finished)
            self.results.append(session_from_dict(values["result"]))
            if self.calibration is not None:
                self.calibration = Calibration.from_values(values["calibration"])
        file = self.folder.progress_file(finished + 1)
        position = None
        if finished < len(self.sessions) and file.exists():
            tensors, values = load_state(file)
            position, self._base = Position(**values["position"]), values["base"]
        if finished or position:
            self.method.load_state(State(part_of(tensors, "method."), values["method"]))
            self.reporter.say(f"continuing {self.folder.path} after session {finished}")
        epoch = position.epoch + 1 if position else 0
        on_first(self.fabric, lambda: self.folder.forget_metrics(finished + 1, epoch))
        return position, part_of(tensors, "run.") if position else {}

    def _write_results(self) -> RunResult:
        header = {name: getattr(self.settings, name) for name in HEADER}
        finished = len(self.results) == len(self.sessions)
        result = RunResult(**header, bad_images=self.data.bad_images, finished=finished, sessions=[*self.results])
        if self.is_writer:
            write_results(self.folder.results, result)
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
