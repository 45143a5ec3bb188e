"""The training loop: one for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.randomness import derive_seed
from ..core.state import part_of, prefixed
from ..data.loading import Batch, BatchSource, plan_epoch, shard
from ..methods.base import LOSS_SCALE, Method, TrainingSet
from .config import RunSettings
from .inference import gather_rows
from .optimiser import WeightAverage, load_optimiser_state, make_optimiser, optimiser_state, set_rate

SHORT = 10.0  # seconds of training that are sooner repeated than saved
CHECK_EVERY = 50  # steps between looks at the losses: each look waits for the device

Draws = list[tuple[NDArray[np.int64], ...]]
"""For each step, the positions of what it gets to see besides its batch; see `Method.draw`."""


@dataclass
class Position:
    """Where in a session training stands.

    Attributes:
        epoch, step: the epoch under way, from 0, and how many of its steps are done.
        seconds: spent on the session so far.
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
        on_step: the position and the part of the session that is done.
        on_epoch: the record of an epoch.
        save: keep the position and these tensors, so that training can go on from there.
    """

    on_step: Callable[[Position, float], None]
    on_epoch: Callable[[dict[str, Any]], None]
    save: Callable[[Position, dict[str, Tensor]], None]


class SessionTraining:
    """Trains a method for one session.

    Arguments:
        method: already grown for the session.
        number: of the session, from 1.
        training: what an epoch goes over.
        saved: tensors that `Hooks.save` was given, to go on from there.
    """

    def __init__(
        self,
        method: Method,
        number: int,
        training: TrainingSet,
        settings: RunSettings,
        fabric: Fabric,
        loader: BatchSource,
        saved: dict[str, Tensor] | None = None,
    ) -> None:
        self.method, self.number, self.training = method, number, training
        self.settings, self.fabric, self.loader = settings, fabric, loader
        is_base = number == 1
        self.epochs = (settings.base_epochs if is_base else None) or settings.epochs
        lr = settings.base_lr if is_base else settings.lr
        fused = settings.precision != "16-mixed" or settings.clip_norm is None
        self.optimiser = make_optimiser(method.tagger, lr, settings.backbone_lr, settings.weight_decay, fused)
        # Set up anew each session: a wrapper made earlier would not synchronise what has grown since.
        self.student, self._stepper = fabric.setup(method.tagger, self.optimiser)
        self.average = WeightAverage(method.tagger, settings.ema) if settings.ema else None
        self._restore(saved or {})

    def run(self, hooks: Hooks, start: Position | None = None) -> Position:
        """Train to the end of the session.

        Returns:
            The last position, with the seconds that training took.
        """
        method, settings, fabric = self.method, self.settings, self.fabric
        position, began = start or Position(), time.monotonic()
        saved_at, spent = began, position.seconds
        method.student, method.gather = self.student, lambda rows: gather_rows(rows, fabric)
        method.tagger.train()
        for epoch in range(self.epochs):
            plan, draws = self._plan(epoch)
            if epoch < position.epoch:
                continue
            steps = range(position.step, len(plan))
            sums = self._resumed_sums(position)
            for step, parts in zip(steps, self._load(plan, draws, epoch, position.step), strict=True):
                if settings.schedule == "one_cycle":
                    set_rate(self.optimiser, epoch * len(plan) + step, self.epochs * len(plan), settings.warmup)
                torch.manual_seed(derive_seed(settings.seed, self.number, epoch, step, fabric.global_rank))
                self._step(parts, sums)
                position.step, position.seconds = step + 1, spent + time.monotonic() - began
                hooks.on_step(position, self.part_done(position))
                is_last = position.step == len(plan)
                if position.step % CHECK_EVERY == 0 or is_last:
                    self._check(sums, position)
                if not is_last and self._save_is_due(saved_at, position.step):
                    hooks.save(Position(epoch, position.step, position.seconds, self._total(sums)), self.state())
                    saved_at = time.monotonic()
            hooks.on_epoch(self._record(position, self._total(sums)))
            position = Position(epoch + 1, 0, spent + time.monotonic() - began)
            if position.epoch < self.epochs and self._agreed(time.monotonic() - saved_at >= self._worth_saving()):
                hooks.save(position, self.state())
                saved_at = time.monotonic()
        if self.average is not None:
            self.average.copy_to(method.tagger)
        if fabric.world_size > 1:  # batch statistics differ between processes; the first one's count
            for value in method.tagger.state_dict().values():
                torch.distributed.broadcast(value, src=0)
        method.student, method.gather = method.tagger, lambda rows: rows
        return position

    def part_done(self, position: Position) -> float:
        """How much of the session's training is behind at a position, 0 to 1."""
        steps = -(-self.training.shown // self.settings.batch_size)
        return (position.epoch + position.step / steps) / self.epochs

    def state(self) -> dict[str, Tensor]:
        """The optimiser's and the average's tensors."""
        mean = self.average.mean if self.average is not None else {}
        return prefixed("optimiser.", optimiser_state(self.optimiser)) | prefixed("average.", mean)

    def _restore(self, saved: dict[str, Tensor]) -> None:
        moments = part_of(saved, "optimiser.")
        if moments:
            load_optimiser_state(self.optimiser, moments)
        if self.average is not None:
            for name, value in part_of(saved, "average.").items():
                self.average.mean[name].copy_(value)

    def _plan(self, epoch: int) -> tuple[list[NDArray[np.int64]], Draws]:
        """Which images each step of an epoch trains on, and which it draws besides."""
        seed = self.settings.seed
        plan = plan_epoch(self.training.shown, self.settings.batch_size, seed, self.number, epoch)
        rng = np.random.default_rng(derive_seed(seed, self.number, epoch, 0, 0, 1))
        return plan, self.method.draw(self.training, plan, epoch, rng)

    def _load(
        self, plan: list[NDArray[np.int64]], draws: Draws, epoch: int, first: int
    ) -> Iterator[list[tuple[Batch, float]]]:
        """For each step from `first` on, this process's micro-batches, each with its weight in the batch's mean."""
        parts = [_Part.of_step(*both, self.fabric, self.settings.micro_batch) for both in zip(plan, draws, strict=True)]
        key = (self.settings.seed, self.number, epoch)
        flat, keys = [], []
        for step, micro in enumerate(parts[first:], start=first):
            for part in micro:
                flat += [part.positions, *part.draws]
                # An image may be drawn many times in an epoch, each time to be seen otherwise.
                keys += [key, *((*key, step + 1, draw) for draw in range(len(part.draws)))]
        loaded = self.loader.batches(flat, self.training.indices, self.training.labels, keys)
        for micro in parts[first:]:
            yield [(_with_replay(loaded, len(part.draws)), part.weight) for part in micro]

    def _step(self, parts: list[tuple[Batch, float]], sums: dict[str, Tensor]) -> None:
        for place, (batch, weight) in enumerate(parts):
            batch = batch if self.fabric.device.type == "cpu" else batch.to(self.fabric.device)
            is_last = place == len(parts) - 1
            with nullcontext() if is_last else self.fabric.no_backward_sync(self.student):
                terms = self.method.losses(batch)
                self.fabric.backward(LOSS_SCALE * weight * torch.stack(list(terms.values())).sum())
            for name, term in terms.items():
                counted = term.detach() * (len(batch.images) if weight else 0)
                sums[name] = sums[name] + counted if name in sums else counted
        if self.settings.clip_norm is not None:
            self.fabric.clip_gradients(
                self.student, self._stepper, max_norm=self.settings.clip_norm, error_if_nonfinite=False
            )
        self._stepper.step()
        self._stepper.zero_grad()
        if self.average is not None:
            self.average.update(self.method.tagger)

    def _check(self, sums: dict[str, Tensor], position: Position) -> None:
        bad = [name for name, value in self._total(sums).items() if not math.isfinite(value)]
        if bad:
            first = max(0, position.step - CHECK_EVERY)
            raise UserError(
                f"the {' and '.join(bad)} loss is not finite: session {self.number}, epoch {position.epoch + 1}, "
                f"steps {first + 1} to {position.step}. Lower the learning rate, or set clip_norm or precision=32-true"
            )

    def _save_is_due(self, saved_at: float, step: int) -> bool:
        due = time.monotonic() - saved_at >= self.settings.checkpoint_seconds
        # All processes must agree, and asking takes a moment.
        return (self.fabric.world_size == 1 or step % CHECK_EVERY == 0) and self._agreed(due)

    def _agreed(self, due: bool) -> bool:
        """What the first process says."""
        return due if self.fabric.world_size == 1 else bool(self.fabric.broadcast(due))

    def _worth_saving(self) -> float:
        """Seconds of training after which an epoch's end is kept: saving a short one takes longer than repeating it."""
        return min(SHORT, self.settings.checkpoint_seconds)

    def _resumed_sums(self, position: Position) -> dict[str, Tensor]:
        is_first = self.fabric.global_rank == 0  # the saved sums are those of all processes
        return {
            name: torch.tensor(value if is_first else 0.0, device=self.fabric.device)
            for name, value in position.sums.items()
        }

    def _total(self, sums: dict[str, Tensor]) -> dict[str, float]:
        # Reducing changes its argument, and the sums are still needed.
        totals = {name: self.fabric.all_reduce(value.clone(), reduce_op="sum") for name, value in sorted(sums.items())}
        return {name: _number(total) for name, total in totals.items()}

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


def _number(reduced: Any) -> float:
    return float(reduced)


@dataclass(frozen=True)
class _Part:
    """What a process computes at once: positions of its images and draws, and their weight in the batch's mean."""

    positions: NDArray[np.int64]
    draws: tuple[NDArray[np.int64], ...]
    weight: float

    @classmethod
    def of_step(
        cls, batch: NDArray[np.int64], draws: tuple[NDArray[np.int64], ...], fabric: Fabric, size: int | None
    ) -> list[_Part]:
        rank, world = fabric.global_rank, fabric.world_size
        # As many parts in every process: a method may let them exchange something within each.
        count = -(-len(batch) // (world * size)) if size else 1
        chunks = np.array_split(shard(batch, rank, world), count)
        shares = [np.array_split(shard(one, rank, world), count) for one in draws]
        parts = []
        for place, chunk in enumerate(chunks):
            # A draw of fewer images than there are parts repeats its first one.
            drawn = tuple(
                share[place] if len(share[place]) else one[:1] for share, one in zip(shares, draws, strict=True)
            )
            # Gradients are averaged over processes, hence the factor. Without an image of its own a process
            # takes part in the exchange with weight 0.
            weight = len(chunk) * world / len(batch)
            parts.append(cls(chunk if len(chunk) else batch[:1], drawn, weight))
        return parts


def _with_replay(loaded: Iterator[Batch], draws: int) -> Batch:
    batch = next(loaded)
    return replace(batch, replay=tuple(next(loaded) for _ in range(draws)))
