"""Learning one session: what a method does before, during and after training, and first sessions that runs share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..core.pools import make_pool
from ..core.randomness import Stream, derive_seed
from ..core.state import State, part_of, prefixed
from ..data.features import Feed
from ..data.protocol import Session
from ..methods.base import Method, TrainingSet
from .bases import SharedBase, base_name
from .config import RunSettings
from .folder import RunFolder
from .inference import TrainingInference
from .loop import Hooks, Position, SessionTraining
from .progress import Reporter
from .scalars import ScalarLog

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Learned(NamedTuple):
    """How a session was learned.

    Attributes:
        images: number of training images, exemplars included.
        epochs: number of epochs trained; 0 where the method has nothing to train.
        seconds: training time, also where another run did the training; without an epoch, the time that the method took
            before and after, which is then all the learning there is.
    """

    images: int
    epochs: int
    seconds: float


class Resumption(NamedTuple):
    """Where in a session training goes on after an interruption.

    Attributes:
        position: the epoch and step.
        tensors: what `SessionTraining.state` gave there.
        base: the name of the first session among shared ones, if it is shared.
    """

    position: Position
    tensors: dict[str, Tensor]
    base: str | None


def resumption(tensors: dict[str, Tensor], values: dict[str, Any]) -> Resumption:
    """Where training goes on, by a state that was saved within a session."""
    return Resumption(Position(**values["position"]), part_of(tensors, "run."), values["base"])


class Learner:
    """Teaches a method one session after another.

    Arguments:
        feed: serves the training images.
        folder: keeps checkpoints and the log.
        data: a digest of the training images in their order.
        name: what people call the training image in a row, for messages.
    """

    def __init__(
        self,
        method: Method,
        settings: RunSettings,
        fabric: Fabric,
        feed: Feed,
        folder: RunFolder,
        reporter: Reporter,
        data: str,
        name: Callable[[int], str],
    ) -> None:
        self.method, self.settings, self.fabric, self.feed = method, settings, fabric, feed
        self.folder, self.reporter, self.data, self.name = folder, reporter, data, name
        pool = partial(make_pool, settings.engine, settings.jobs, settings.threads or 1)
        self.infer = TrainingInference(method.tagger, fabric, feed, settings.batch_size, reporter.images, pool)
        is_writer = settings.tensorboard and fabric.global_rank == 0
        self.scalars = ScalarLog(folder.path if is_writer else None)
        self._base: str | None = None  # the name of the first session among shared ones

    def resume(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> Resumption | None:
        """Put a saved state into the method; returns where training goes on if the state is from within a session."""
        self.method.load_state(State(part_of(tensors, "method."), values["method"]))
        return resumption(tensors, values) if "position" in values else None

    def open(self, session: Session) -> float:
        """Let the method prepare for a session; returns the seconds that it took."""
        began = time.monotonic()
        torch.manual_seed(derive_seed(Stream.BEFORE_SESSION, self.settings.seed, session.number))
        self.method.before_session(session, self.infer)
        return time.monotonic() - began

    def learn(self, session: Session, start: Resumption | None, opening: float) -> Learned:
        """Train the session, or what is left of it, and let the method remember what it needs later.

        Arguments:
            opening: seconds that `open` took.
        """
        training = self.method.training_set(session)
        epochs, seconds = self._train(session, training, start) if self.method.trains(session) else (0, 0.0)
        if not epochs:
            self.method.tagger.to(self.fabric.device)  # what has grown; otherwise setting up an optimiser does it
            self.reporter.session(session.number, session.new_classes, training.shown, epochs=0, done=1.0)
            self.reporter.stop()
        torch.manual_seed(derive_seed(Stream.AFTER_SESSION, self.settings.seed, session.number))
        began = time.monotonic()
        self.method.after_session(session, self.infer)
        around = opening + time.monotonic() - began
        return Learned(training.shown, epochs, seconds if epochs else around)

    def _train(self, session: Session, training: TrainingSet, start: Resumption | None) -> tuple[int, float]:
        """Train, or take over a first session that another run has trained; returns epochs and seconds."""
        saved = {} if start is None else start.tensors
        loop = SessionTraining(self.method, session.number, training, self.settings, self.fabric, self.feed, saved)
        base = self._shared_base(session, training, start)
        with nullcontext() if base is None else base.claim(self.reporter.say):
            taken = base.take(self.reporter.say) if base is not None and start is None else None
            if taken is not None:
                self.reporter.say("session 1 is taken from another run that started alike")
                self.folder.log(*taken["epochs"])
                return loop.epochs, taken["seconds"]
            position = None if start is None else start.position
            done = 0.0 if position is None else loop.part_done(position)
            self.reporter.session(session.number, session.new_classes, training.shown, loop.epochs, done)
            seconds = loop.run(self._hooks(session.number, loop.epochs), position).seconds
            if base is not None:
                base.give(lambda: {"seconds": seconds, "epochs": self.folder.epochs()})
        return loop.epochs, seconds

    def _shared_base(self, session: Session, training: TrainingSet, start: Resumption | None) -> SharedBase | None:
        """Where the session is shared, if it is one that can be."""
        if session.number > 1 or self.settings.bases is None or not self.method.base_is_finetuning:
            return None
        # A session that goes on has its name from its start: the model is no longer the one to be named.
        self._base = (
            base_name(self.method, session, training, self.settings, self.fabric, self.data)
            if start is None
            else start.base
        )
        if self._base is None:
            return None
        return SharedBase(Path(self.settings.bases) / f"{self._base}.safetensors", self.method, self.fabric)

    def _hooks(self, number: int, epochs: int) -> Hooks:
        before = sum(self.settings.epochs_of(earlier) for earlier in range(1, number))

        def on_epoch(record: dict[str, Any]) -> None:
            self.folder.log(record)
            self.reporter.epoch(record, epochs)
            self.scalars.write("loss", record["losses"], before + record["epoch"])

        def save(position: Position, tensors: dict[str, Tensor]) -> None:
            state = self.method.state()
            values = {"method": state.values, "position": asdict(position), "base": self._base}
            both = prefixed("method.", state.tensors) | prefixed("run.", tensors)
            self.folder.save(self.folder.progress_file(number), both, values)

        show = self.reporter.images("asking the old model about each view")
        return Hooks(lambda position, done: self.reporter.step(position.epoch, done), on_epoch, save, show, self.name)
