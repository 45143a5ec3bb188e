"""The training loop: one for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.randomness import derive_seed
from ..data.loading import Batch, BatchSource, plan_epoch, shard
from ..methods.base import LOSS_SCALE, Method, TrainingSet, part_of
from .config import RunSettings
from .optimiser import WeightAverage, load_optimiser_state, make_optimiser, optimiser_state, set_rate

CHECK_EVERY = 50  # steps between looks at the losses: each look waits for the device


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
        self.optimiser = make_optimiser(method.tagger, lr, settings.backbone_lr, settings.weight_decay)
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
        method.student = self.student
        method.tagger.train()
        for epoch in range(position.epoch, self.epochs):
            plan = plan_epoch(len(self.training.indices), settings.batch_size, settings.seed, self.number, epoch)
            steps = range(position.step, len(plan))
            sums = self._resumed_sums(position)
            for step, parts in zip(steps, self._load(plan[position.step :], epoch), strict=True):
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
            if position.epoch < self.epochs:
                hooks.save(position, self.state())
                saved_at = time.monotonic()
        if self.average is not None:
            self.average.copy_to(method.tagger)
        if fabric.world_size > 1:  # batch statistics differ between processes; the first one's count
            for value in method.tagger.state_dict().values():
                torch.distributed.broadcast(value, src=0)
        method.student = method.tagger
        return position

    def part_done(self, position: Position) -> float:
        """How much of the session's training is behind at a position, 0 to 1."""
        steps = -(-len(self.training.indices) // self.settings.batch_size)
        return (position.epoch + position.step / steps) / self.epochs

    def state(self) -> dict[str, Tensor]:
        """The optimiser's and the average's tensors."""
        tensors = {f"optimiser.{key}": value for key, value in optimiser_state(self.optimiser).items()}
        mean = self.average.mean if self.average is not None else {}
        return tensors | {f"average.{key}": value for key, value in mean.items()}

    def _restore(self, saved: dict[str, Tensor]) -> None:
        moments = part_of(saved, "optimiser.")
        if moments:
            load_optimiser_state(self.optimiser, moments)
        if self.average is not None:
            for name, value in part_of(saved, "average.").items():
                self.average.mean[name].copy_(value)

    def _load(self, plan: list[NDArray[np.int64]], epoch: int) -> Iterator[list[tuple[Batch, float]]]:
        """For each step, this process's micro-batches, each with its weight in the mean over the batch."""
        world, size = self.fabric.world_size, self.settings.micro_batch
        parts: list[list[tuple[NDArray[np.int64], float]]] = []
        for batch in plan:
            mine = shard(batch, self.fabric.global_rank, world)
            if not len(mine):  # more processes than images: take part in the exchange, with weight 0
                parts.append([(batch[:1], 0.0)])
                continue
            chunks = np.array_split(mine, -(-len(mine) // size)) if size else [mine]
            # Gradients are averaged over processes, hence the factor.
            parts.append([(chunk, len(chunk) * world / len(batch)) for chunk in chunks])
        key = (self.settings.seed, self.number, epoch)
        flat = [positions for step in parts for positions, _ in step]
        loaded = self.loader.batches(flat, self.training.indices, self.training.labels, key)
        for step in parts:
            yield [(next(loaded), weight) for _, weight in step]

    def _step(self, parts: list[tuple[Batch, float]], sums: dict[str, Tensor]) -> None:
        for place, (batch, weight) in enumerate(parts):
            batch = _to_device(batch, self.fabric.device)
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
        if self.fabric.world_size == 1:
            return due
        # All processes must agree, and asking takes a moment.
        return step % CHECK_EVERY == 0 and bool(self.fabric.broadcast(due))

    def _resumed_sums(self, position: Position) -> dict[str, Tensor]:
        if self.fabric.global_rank > 0:
            return {}
        return {name: torch.tensor(value, device=self.fabric.device) for name, value in position.sums.items()}

    def _total(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return {name: _number(self.fabric.all_reduce(value, reduce_op="sum")) for name, value in sorted(sums.items())}

    def _record(self, position: Position, totals: dict[str, float]) -> dict[str, Any]:
        images = len(self.training.indices)
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


def _to_device(batch: Batch, device: torch.device) -> Batch:
    if device.type == "cpu":
        return batch
    move = [one.to(device, non_blocking=True) for one in (batch.images, batch.labels, batch.indices)]
    return Batch(*move)
