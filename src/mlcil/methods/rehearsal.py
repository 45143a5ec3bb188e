"""Methods that keep a few images of earlier sessions and train on them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.config import option
from ..core.randomness import generator_from_torch
from ..data.images import PRESENT, UNKNOWN
from ..data.protocol import Session
from ..memory.buffer import SELECTIONS, Budget, Memory, make_memory
from ..models.backbone import Backbone
from .base import Inference, Method, MethodConfig, Task, TrainingSet


@dataclass(frozen=True)
class RehearsalConfig(MethodConfig):
    """Options of every method with a buffer."""

    exemplar_labels: str = option(
        "stored_onwards",
        "classes annotated on an exemplar: those of the session that stored it and of later ones, or of the first only",
        choices=("stored_onwards", "stored_only"),
        paper="KRT, section 1",
    )
    selection: str = option(
        "herding",
        "how exemplars are chosen: per class by herding or at random, or from the stream by reservoir, prs or ocdm",
        choices=SELECTIONS,
        paper="KRT, section 4.1",
    )
    replay: str = option(
        "concat",
        "mix the exemplars into the epoch, or draw as many exemplars as images beside each batch",
        choices=("concat", "paired"),
        paper="authors' code",
    )


class Rehearsal(Method):
    """A method with a rehearsal buffer, which stays empty if the budget is 0.

    Attributes:
        buffer: the exemplars kept so far.
    """

    buffer_use = "optional"
    saved: ClassVar[tuple[str, ...]] = ("buffer",)
    only_for_learning: ClassVar[tuple[str, ...]] = ("buffer",)
    Config = RehearsalConfig
    config: RehearsalConfig
    draws: ClassVar[int] = 1  # independent draws beside each batch with `replay: paired`
    takes_every_epoch: ClassVar[bool] = True  # whether a streaming memory looks at every epoch or the first alone

    def __init__(self, config: RehearsalConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        super().__init__(config, backbone, task, budget)
        self.buffer = self.make_buffer(budget)
        if self.buffer.is_streaming:  # it is filled during the first session, which then leaves more than the model
            self.base_is_finetuning = False

    def make_buffer(self, budget: Budget) -> Memory:
        """The memory, by the `selection` option."""
        return make_memory(self.config.selection, budget, self.config.exemplar_labels == "stored_onwards")

    def before_session(self, session: Session, infer: Inference) -> None:
        """Grow the model, and annotate exemplars with the new classes if that is allowed."""
        super().before_session(session, infer)
        self.buffer.open_session(session)

    def training_set(self, session: Session) -> TrainingSet:
        """The session's images followed by the exemplars, which are part of the epoch or only drawn from."""
        # An exemplar that is also among the session's images appears once, with everything known about it.
        labels = session.labels.copy()
        place = {index: row for row, index in enumerate(session.indices.tolist())}
        again = np.array([index in place for index in self.buffer.indices.tolist()], bool)
        for index, known in zip(self.buffer.indices[again], self.buffer.labels[again], strict=True):
            row = labels[place[int(index)]]
            row[row == UNKNOWN] = known[row == UNKNOWN]
        indices = np.concatenate([session.indices, self.buffer.indices[~again]])
        shown = None if self.config.replay == "concat" else len(session.indices)
        return TrainingSet(indices, np.concatenate([labels, self.buffer.labels[~again]]), shown)

    def draw(
        self, training: TrainingSet, plan: list[NDArray[np.int64]], epoch: int, rng: np.random.Generator
    ) -> list[tuple[NDArray[np.int64], ...]]:
        """Draw from the memory as it is before each step, then let a streaming memory see the step's images."""
        if not self.budget:
            return super().draw(training, plan, epoch, rng)
        draws = []
        pool = self._pool(training)
        for positions in plan:
            draws.append(self._draw(pool, len(positions), rng))
            if self.buffer.is_streaming and (epoch == 0 or self.takes_every_epoch):
                self._offer_new(training, positions, rng)
                pool = self._pool(training)
        return draws

    def _offer_new(self, training: TrainingSet, positions: NDArray[np.int64], rng: np.random.Generator) -> None:
        """Show the memory the session's images among those of a step, with the labels of the session's own classes."""
        labels = training.labels[positions]
        labels[:, : self.old_classes()] = UNKNOWN
        is_new = (labels == PRESENT).any(axis=1)
        self.offer(training.indices[positions][is_new], labels[is_new], rng)

    def _pool(self, training: TrainingSet) -> NDArray[np.int64]:
        """The positions in the training set of the images to draw from."""
        if self.config.replay == "concat":
            return np.empty(0, np.int64)
        return np.flatnonzero(np.isin(training.indices, self.buffer.present()))

    def _draw(self, pool: NDArray[np.int64], size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        if not len(pool):
            return ()
        return tuple(rng.choice(pool, min(size, len(pool)), replace=False) for _ in range(self.draws))

    def offer(self, indices: NDArray[np.int64], labels: NDArray[np.int8], rng: np.random.Generator) -> None:
        """Show the memory the images (B,) and labels (B, K) of the next step."""
        self.buffer.observe(indices, labels, rng)

    def after_session(self, session: Session, infer: Inference) -> None:
        """Choose the session's exemplars."""
        super().after_session(session, infer)
        if self.budget:
            self.buffer.close_session(session, lambda rows: infer(self.pooled, rows), generator_from_torch())

    def notes(self) -> dict[str, Any]:
        """The number of exemplars."""
        return super().notes() | ({"exemplars": len(self.buffer)} if self.budget else {})
