"""The training loop: one for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core import interruption
from ..core.errors import UserError
from ..core.randomness import Stream, derive_seed
from ..core.words import counted, listed
from ..data.features import FeatureFeed, Feed
from ..data.loading import Batch, plan_epoch
from ..methods.base import LOSS_SCALE, Method, TrainingSet
from ..methods.kept_outputs import KeptOutputs, keep_outputs
from .checkpoint_clock import CheckpointClock
from .config import RunSettings
from .inference import gather_rows
from .meter import LossMeter
from .micro_batches import divide
from .optimiser import WeightAverage, load_optimiser_state, make_optimiser, optimiser_state, set_rate

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECK_EVERY = 50  # steps between looks at the losses: each look waits for the device

Plan = list[NDArray[np.int64]]
"""For each step of an epoch, the positions of its images in the training set."""
Draws = list[tuple[NDArray[np.int64], ...]]
"""For each step, the positions of what it sees besides its batch; see `Method.draw`."""


@dataclass
class Position:
    """Where in a session training stands.

    Attributes:
        epoch, step: the epoch under way, from 0, and how many of its steps are done.
        seconds: training time of the session so far.
        sums: each loss term summed over this epoch's images so far.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Hooks:
    """What the loop tells the outside.

    Attributes:
        on_step: called with the position and the part of the session that is done.
        on_epoch: called with the record of an epoch.
        save: keeps the position and these tensors, so that training can go on from there.
        on_asked: called with how many views of images the old model has been asked about, and how many there are.
        name: what people call the image in a row of the whole training set.
    """

    on_step: Callable[[Position, float], None]
    on_epoch: Callable[[dict[str, Any]], None]
    save: Callable[[Position, dict[str, Tensor]], None]
    on_asked: Callable[[int, int], None] = lambda done, total: None
    name: Callable[[int], str] = "row {}".format


class SessionTraining:
    """Trains a method for one session.

    Arguments:
        method: already grown for the session.
        number: of the session, from 1.
        training: what an epoch goes over.
        feed: serves the batches.
        saved: tensors that `Hooks.save` was given, to go on from there.
    """

    def __init__(
        self,
        method: Method,
        number: int,
        training: TrainingSet,
        settings: RunSettings,
        fabric: Fabric,
        feed: Feed,
        saved: dict[str, Tensor] | None = None,
    ) -> None:
        self.method, self.number, self.training = method, number, training
        self.settings, self.fabric, self.feed = settings, fabric, feed
        self.epochs = settings.epochs_of(number)
        method.tagger.backbone.keep_statistics(settings.keeps_statistics(number))
        lr = settings.base_lr if number == 1 else settings.lr
        fused = settings.precision != "16-mixed" or settings.clip_norm is None
        self.optimiser = make_optimiser(method.tagger, lr, settings.weight_decay, fused)
        # Set up anew each session: a wrapper made earlier would not synchronise what has grown since.
        self.student, self._stepper = fabric.setup(method.tagger, self.optimiser)
        self.average = WeightAverage(method.tagger, settings.ema) if settings.ema else None
        self._restore(saved or {})

    def run(self, hooks: Hooks, start: Position | None = None) -> Position:
        """Train to the end of the session.

        Returns:
            The last position, with the seconds that training took.
        """
        position = start or Position()
        clock = CheckpointClock(self.settings.checkpoint_seconds, position.seconds, self.fabric)
        self.method.student, self.method.gather = self.student, lambda rows: gather_rows(rows, self.fabric)
        self.method.kept = self._keep_outputs(hooks)
        self.method.tagger.train()
        with interruption.postponed():
            position = self._train_epochs(position, clock, hooks)
        self._finish()
        return position

    def _train_epochs(self, position: Position, clock: CheckpointClock, hooks: Hooks) -> Position:
        """Train from a position to the end of the session; returns the last position."""
        for epoch in range(self.epochs):
            # Finished epochs are planned again, too: while a plan is made, streaming memories take in its images.
            plan, draws = self._plan(epoch)
            if epoch < position.epoch:
                continue
            self._train_epoch(plan, draws, position, clock, hooks)
            position = Position(epoch + 1, 0, clock.seconds())
            if clock.is_due_after_epoch():
                hooks.save(position, self.state())
                clock.saved()
        return position

    def _train_epoch(self, plan: Plan, draws: Draws, position: Position, clock: CheckpointClock, hooks: Hooks) -> None:
        """Train from `position`, which is moved along, to the end of its epoch."""
        settings, epoch, first = self.settings, position.epoch, position.step
        meter = LossMeter(self.fabric, position.sums)
        for step, parts in enumerate(self._load(plan, draws, epoch, first), start=first):
            if settings.schedule == "one_cycle":
                set_rate(self.optimiser, epoch * len(plan) + step, self.epochs * len(plan), settings.warmup)
            torch.manual_seed(
                derive_seed(Stream.STEP, settings.seed, self.number, epoch, step, self.fabric.global_rank)
            )
            self._step(parts, meter, step)
            position.step, position.seconds = step + 1, clock.seconds()
            hooks.on_step(position, self.part_done(position))
            is_last = position.step == len(plan)
            is_due = not is_last and clock.is_due(position.step)
            if position.step % CHECK_EVERY == 0 or is_last or is_due:  # what is saved must be fit to go on from
                self._check(meter, position, plan, draws, hooks)
            if is_due:
                hooks.save(replace(position, sums=meter.totals()), self.state())
                clock.saved()
        hooks.on_epoch(self._record(position, meter.totals()))

    def _step(self, parts: list[tuple[Batch, float]], meter: LossMeter, step: int) -> None:
        """One step of the optimiser over micro-batches, each with its weight in the mean over the batch."""
        for place, (batch, weight) in enumerate(parts):
            batch = batch if self.fabric.device.type == "cpu" else batch.to(self.fabric.device)
            # Gradients are exchanged once, after the last part.
            is_last = place == len(parts) - 1
            with nullcontext() if is_last else self.fabric.no_backward_sync(self.student):
                terms = self.method.losses(batch)
                self.fabric.backward(LOSS_SCALE * weight * torch.stack(list(terms.values())).sum())
            meter.add(terms, len(batch.images) if weight else 0, step)
        if self.settings.clip_norm is not None:
            self.fabric.clip_gradients(
                self.student, self._stepper, max_norm=self.settings.clip_norm, error_if_nonfinite=False
            )
        self._stepper.step()
        self._stepper.zero_grad()
        if self.average is not None:
            self.average.update(self.method.tagger)

    def _finish(self) -> None:
        """Leave the same trained model in every process."""
        tagger = self.method.tagger
        if self.average is not None:
            self.average.copy_to(tagger)
        if self.fabric.world_size > 1:  # batch statistics differ between processes; the first one's count
            for value in tagger.state_dict().values():
                torch.distributed.broadcast(value, src=0)
        self.method.student, self.method.gather, self.method.kept = tagger, lambda rows: rows, None

    def _keep_outputs(self, hooks: Hooks) -> KeptOutputs | None:
        """Ask the old model once about each view of each image, if the session's steps would ask more often.

        This must not depend on where training starts: what is kept may differ in the last bits from what steps compute.
        """
        teacher, images = self.method.teacher, self.training.indices
        if teacher is None or not isinstance(self.feed, FeatureFeed):
            return None
        # Every process asks about all images, since it will meet most of them.
        if len(images) * self.feed.views >= self.epochs * self.training.shown / self.fabric.world_size:
            return None
        return keep_outputs(teacher, self.feed, images, hooks.on_asked)

    def part_done(self, position: Position) -> float:
        """How much of the session's training is done at a position, 0 to 1."""
        steps = -(-self.training.shown // self.settings.batch_size)
        return (position.epoch + position.step / steps) / self.epochs

    def state(self) -> dict[str, Tensor]:
        """The tensors of the optimiser and of the running mean of the weights."""
        moments = {f"optimiser.{name}": value for name, value in optimiser_state(self.optimiser).items()}
        means = {} if self.average is None else self.average.mean
        return moments | {f"average.{name}": value for name, value in means.items()}

    def _restore(self, saved: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {"optimiser": {}, "average": {}}
        for name, value in saved.items():
            owner, _, rest = name.partition(".")
            parts.get(owner, {})[rest] = value
        if parts["optimiser"]:
            load_optimiser_state(self.optimiser, parts["optimiser"])
        if self.average is not None:
            for name, value in parts["average"].items():
                if name in self.average.mean:  # an earlier version averaged what is frozen, too
                    self.average.mean[name].copy_(value)

    def _plan(self, epoch: int) -> tuple[Plan, Draws]:
        """Which images each step of an epoch trains on, and which it draws besides."""
        seed = self.settings.seed
        plan = plan_epoch(self.training.shown, self.settings.batch_size, seed, self.number, epoch)
        rng = np.random.default_rng(derive_seed(Stream.DRAWS, seed, self.number, epoch))
        return plan, self.method.draw(self.training, plan, epoch, rng)

    def _load(self, plan: Plan, draws: Draws, epoch: int, first: int) -> Iterator[list[tuple[Batch, float]]]:
        """For each step from `first` on, this process's micro-batches with their weights."""
        rank, world, size = self.fabric.global_rank, self.fabric.world_size, self.settings.micro_batch
        steps = [divide(*both, rank, world, size) for both in zip(plan[first:], draws[first:], strict=True)]
        key = (self.settings.seed, self.number, epoch)
        positions, keys = [], []
        for step, parts in enumerate(steps, start=first):
            for part in parts:
                positions += [part.positions, *part.draws]
                # An image may be drawn many times in an epoch; each time it is augmented differently.
                keys += [key, *((*key, step + 1, draw) for draw in range(len(part.draws)))]
        batches = self.feed.batches(positions, self.training.indices, self.training.labels, keys)
        for parts in steps:
            yield [(_with_replay(batches, len(part.draws)), part.weight) for part in parts]

    def _check(self, meter: LossMeter, position: Position, plan: Plan, draws: Draws, hooks: Hooks) -> None:
        """Stop, in every process, if a loss since the last look or a weight is not finite."""
        where, advice = f"session {self.number}, epoch {position.epoch + 1}, step", "Lower the learning rate, or set"
        if found := meter.look():
            rows = self.training.indices[np.concatenate([plan[found.step], *draws[found.step]])].tolist()
            images = listed([hooks.name(row) for row in dict.fromkeys(rows)], most=3)
            raise UserError(
                f"the {' and '.join(found.terms)} loss is not finite: {where} {found.step + 1}, with "
                f"{counted(len(rows), 'image')}: {images}. {advice} clip_norm or precision=32-true"
            )
        if bad := self._weight_not_finite():  # a gradient can overflow where the loss does not
            raise UserError(
                f"the weights are not finite ({bad}): {where} {position.step}. {advice} clip_norm or precision=32-true"
            )

    def _weight_not_finite(self) -> str | None:
        """The name of the first tensor of the model that is not finite in some process."""
        values = {name: one for name, one in self.method.tagger.state_dict().items() if one.is_floating_point()}
        bad = torch.stack([~one.isfinite().all() for one in values.values()])
        count = torch.as_tensor(self.fabric.all_reduce(bad.float(), reduce_op="sum")).tolist()
        return next((name for name, found in zip(values, count, strict=True) if found), None)

    def _record(self, position: Position, totals: dict[str, float]) -> dict[str, Any]:
        images = self.training.shown
        return {
            "session": self.number,
            "epoch": position.epoch + 1,
            "losses": {name: value / images for name, value in totals.items()},
            "peak_lr": max(group["peak"] for group in self.optimiser.param_groups),
            "images": images,
            "seconds": position.seconds,
        }


def _with_replay(batches: Iterator[Batch], draws: int) -> Batch:
    batch = next(batches)
    return replace(batch, replay=tuple(next(batches) for _ in range(draws)))
