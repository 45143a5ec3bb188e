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
from ..core.errors import UserError
from ..core.files import sha256_of, write_json
from ..core.randomness import derive_seed
from ..core.state import State, part_of, prefixed
from ..data.augmentation import make_augmentation
from ..data.loading import BatchLoader, BatchSource
from ..data.protocol import Protocol, Session
from ..evaluation.calibration import Calibration, stored_thresholds
from ..evaluation.pseudo_label_quality import pseudo_label_quality
from ..evaluation.results import SessionResult, evaluate, session_from_dict, summarise
from ..evaluation.scores import ScoredImages, save_scores, scores_file
from ..methods.base import TrainingSet
from .activations import PrefixLoader, Shelf, Views, open_activations
from .bases import SharedBase, base_name
from .config import RunConfig
from .folder import RunFolder, load_state, parse_lines, save_state
from .inference import TrainingInference, infer, on_first
from .loop import Hooks, Position, SessionTraining
from .prepare import cache_folder, prepare_data, prepare_method
from .progress import Reporter
from .scalars import ScalarLog

_HEADER = (
    "method",
    "data",
    "protocol",
    "order",
    "backbone",
    "weights",
    "image_size",
    "buffer",
    "seed",
    "epochs",
    "preset",
)


class _Taught(NamedTuple):
    """How a session's training went.

    Attributes:
        epochs: in it.
        seconds: that it took.
        lent: by how much more than was spent here, without waiting.
    """

    epochs: int
    seconds: float
    lent: float


def run(
    config: RunConfig,
    out: Path,
    console: Console | None = None,
    _change: Callable[[Protocol], Protocol] = lambda one: one,
) -> dict[str, Any]:
    """Run an experiment, or continue it where it was interrupted.

    Arguments:
        config: what to run.
        out: the run's folder; a used one must hold the same configuration.
        console: where to report; None for silence.
        _change: what to make of the protocol before anything uses it; for `mlcil.testing`.

    Returns:
        The content of results.json.

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
            len(one.indices) * self._epochs(one) if self.method.trains(one) else 0 for one in self.sessions
        ]
        self.method.tagger.to(fabric.device)
        self.loader, self.test_loader = self._loaders()
        self.infer = TrainingInference(self.method.tagger, fabric, self.loader, self.settings.batch_size)
        self.scalars = ScalarLog(folder.path if self.settings.tensorboard and self.is_writer else None)
        self.results: list[SessionResult] = []
        self.calibration = Calibration() if self.settings.validation else None
        self._base: str | None = None  # the name of the first session among shared ones

    def _loaders(self) -> tuple[BatchSource, BatchSource]:
        settings, tagger = self.settings, self.method.tagger
        backbone, keeps = tagger.backbone, settings.reuse_frozen or settings.backbone_mode == "frozen"
        if keeps and tagger.enters_backbone:
            raise UserError(f"method {self.method.name} works inside the backbone; it cannot train on stored features")
        if keeps:
            folder, say = cache_folder(settings) or self.folder.path, self.reporter.say
            shelf, views = Shelf(folder, int(settings.cache_gb * 1e9)), Views(settings.augment, settings.views)
            kept = open_activations(backbone, self.data.train, views, shelf, self.fabric, say)
            test = open_activations(backbone, self.data.test, Views("none", 1), shelf, self.fabric, say)
            backbone.starts_at_prefix = True
            return kept, test
        transform = make_augmentation(settings.augment)
        loaders: tuple[BatchSource, BatchSource] = (
            BatchLoader(self.data.train, backbone.mean, backbone.std, transform, settings.workers, self.fabric.device),
            BatchLoader(self.data.test, backbone.mean, backbone.std, None, settings.workers, self.fabric.device),
        )
        if backbone.has_prefix and not tagger.enters_backbone:
            loaders = PrefixLoader(loaders[0], backbone, self.fabric), PrefixLoader(loaders[1], backbone, self.fabric)
            backbone.starts_at_prefix = True
        return loaders

    def execute(self) -> dict[str, Any]:
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
            torch.manual_seed(derive_seed(self.settings.seed, session.number))
            method.before_session(session, self.infer)
            learning = time.monotonic() - began
            on_first(self.fabric, lambda: self._audit(session))
        training = method.training_set(session)
        taught = self._teach(session, training, position, saved)
        torch.manual_seed(derive_seed(self.settings.seed, session.number, 0, 0, 0, 2))
        learning -= time.monotonic()
        method.after_session(session, self.infer)
        learning += time.monotonic()
        self._calibrate(session)
        # Without an epoch, what comes before and after training is all the learning there is.
        seconds = taught.seconds if taught.epochs else learning
        scored, state = self._score(session), method.state()
        result = self._measure(session, training, scored, state, seconds)
        self.results.append(result)
        wall = time.monotonic() - began + taught.lent
        on_first(self.fabric, lambda: self._keep(session, result, scored, state, taught.epochs, wall))
        self.scalars.write("test", {"map": result.map, "forgetting": result.forgetting}, session.number)
        self.reporter.result(result)

    def _measure(
        self, session: Session, training: TrainingSet, scored: ScoredImages, state: State, seconds: float
    ) -> SessionResult:
        return evaluate(
            scored.scores,
            scored.labels,
            session.number,
            session.classes,
            session.first,
            self.results,
            training.shown,
            seconds,
            self.method.notes(),
            stored_thresholds(self.method.thresholds(), self.calibration),
            self.calibration,
            sum(value.numel() * value.element_size() for value in state.tensors.values()),
        )

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
            return _Taught(0, 0.0, 0.0)
        loop = SessionTraining(self.method, session.number, training, self.settings, self.fabric, self.loader, saved)
        return self._train(session, training, loop, position)

    def _train(
        self, session: Session, training: TrainingSet, loop: SessionTraining, position: Position | None
    ) -> _Taught:
        """Train, or take over a first session that another run has trained."""
        base = self._shared_base(session, training, is_new=position is None)
        with nullcontext() if base is None else base.claim(self.reporter.say):
            given = base.take() if base is not None and position is None else None
            if base is not None and given is not None:
                self.reporter.say("session 1 is taken from another run that started alike")
                on_first(self.fabric, lambda: self.folder.log(*given["epochs"]))
                return _Taught(loop.epochs, given["seconds"], given["seconds"] - base.waited)
            done = 0.0 if position is None else loop.part_done(position)
            self.reporter.session(session.number, session.new_classes, training.shown, loop.epochs, done)
            seconds = loop.run(self._hooks(session, loop.epochs), position).seconds
            if base is not None and self.is_writer:
                records = [one for one in parse_lines(self.folder.metrics) if "losses" in one]
                base.give({"seconds": seconds, "epochs": records})
        return _Taught(loop.epochs, seconds, 0.0 if base is None else -base.waited)

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
        self.folder.log({"session": session.number, "epoch": epochs, "map": result.map, **cost})
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
            done = sum(self._epochs(one) for one in self.sessions[: session.number - 1]) + record["epoch"]
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

    def _write_results(self) -> dict[str, Any]:
        header = {key: getattr(self.settings, key) for key in _HEADER} | {"bad_images": self.data.bad_images}
        summary = summarise(header, self.results, len(self.results) == len(self.sessions))
        if self.is_writer:
            write_json(self.folder.results, summary)
        return summary

    def _facts(self) -> dict[str, Any]:
        file = self.weight_file
        return {
            "seed": self.settings.seed,
            "device": str(self.fabric.device),
            "processes": self.fabric.world_size,
            "threads": torch.get_num_threads(),
            "weights": None if file is None else {"file": str(file), "sha256": sha256_of(file)},
        }

    def _epochs(self, session: Session) -> int:
        return (self.settings.base_epochs if session.number == 1 else None) or self.settings.epochs


def _peak_memory(device: torch.device) -> dict[str, float | None]:
    """The most memory that the process, and the GPU if it has one, has used so far, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    gpu = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
    return {"peak_memory_mb": used, "gpu_memory_mb": gpu}
