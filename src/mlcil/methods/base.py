"""What a method is: it says what to minimise and what to remember; the loop does the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option
from ..core.errors import UserError
from ..data.images import UNKNOWN
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.asymmetric import asymmetric_loss
from ..memory.buffer import Budget, ExemplarBuffer
from ..models.backbone import Backbone
from ..models.tagger import AttentionShape, Output, Tagger

LOSS_SCALE = 64.0  # published weights belong to losses summed over a batch of 64; the loop multiplies by it

Inference = Callable[[Callable[[Tensor], Tensor], NDArray[np.int64]], NDArray[np.float32]]
"""From a function of a batch of images (B, 3, H, W) -> (B, ...) and rows of the training set (n,) to its
values on those images, un-augmented, (n, ...). Models are in evaluation mode and without gradients."""


@dataclass(frozen=True)
class MethodConfig:
    """Options that every method has."""

    missing: str = option(
        "negative",
        "what an unknown label of an old class counts as: absent, or nothing",
        choices=("negative", "ignore"),
        paper="KRT, section 3.1",
    )
    exemplar_labels: str = option(
        "stored_onwards",
        "classes annotated on an exemplar: from the session that stored it onwards, or that session's only",
        choices=("stored_onwards", "stored_only"),
        paper="KRT, section 1",
    )


class Task(NamedTuple):
    """What a method may know of the experiment before it starts."""

    benchmark: str | None  # "coco" or "voc" if it is that very data set, else None
    total_classes: int  # of the whole data set


class TrainingSet(NamedTuple):
    """What an epoch goes over: rows of the training set (N,) and their labels (N, K)."""

    indices: NDArray[np.int64]
    labels: NDArray[np.int8]


class State(NamedTuple):
    """All that a method has learned: tensors, and plain values for JSON."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Method:
    """Fine-tuning with an optional rehearsal buffer; every method starts from here.

    Attributes:
        tagger: the model being taught.
        student: what `losses` must call in place of `tagger`, so that gradients reach every process.
        teacher: a frozen copy of the model as it was before this session, or None.
        buffer: the exemplars kept so far; it stays empty where the budget is 0.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[str]
    reference: ClassVar[str]
    buffer_use: ClassVar[str] = "optional"  # "none", "optional" or "required"
    is_joint: ClassVar[bool] = False  # sees all classes in one session
    Config: ClassVar[type[MethodConfig]] = MethodConfig

    def __init__(self, config: MethodConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        if budget and self.buffer_use == "none":
            raise UserError(f"method {self.name} keeps no exemplars; leave out the buffer")
        if not budget and self.buffer_use == "required":
            raise UserError(f"method {self.name} needs a buffer, such as --buffer 20")
        self.config, self.task = config, task
        self.tagger = Tagger(backbone, self.attention_shape())
        self.student: Callable[[Tensor], Output] = self.tagger
        self.teacher: Tagger | None = None
        self.buffer = ExemplarBuffer(budget, config.exemplar_labels == "stored_onwards")

    # What a method may replace ------------------------------------------------------------------

    def attention_shape(self) -> AttentionShape | None:
        """The shape of the cross-attention, or None for linear heads on the pooled feature."""
        return None

    def wants_teacher(self) -> bool:
        """Whether the model before this session is needed during it."""
        return False

    def before_session(self, session: Session, infer: Inference) -> None:
        """Grow the model and prepare whatever the session's losses need."""
        if session.number > 1 and self.wants_teacher():
            self.teacher = frozen_copy(self.tagger)
        self.tagger.grow(session.stop - session.first)
        self.buffer.open_session(session)

    def training_set(self, session: Session) -> TrainingSet:
        """The session's images and every exemplar, each once per epoch."""
        # An exemplar that returns with the session is there once, with all that is known of it.
        labels = session.labels.copy()
        place = {index: row for row, index in enumerate(session.indices.tolist())}
        again = np.array([index in place for index in self.buffer.indices.tolist()], bool)
        for index, known in zip(self.buffer.indices[again], self.buffer.labels[again], strict=True):
            row = labels[place[int(index)]]
            row[row == UNKNOWN] = known[row == UNKNOWN]
        indices = np.concatenate([session.indices, self.buffer.indices[~again]])
        return TrainingSet(indices, np.concatenate([labels, self.buffer.labels[~again]]))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms to minimise, each a mean over the batch's images, already weighted."""
        output = self.student(batch.images)
        return {"classification": self.classification(output.logits, batch.labels)}

    def after_session(self, session: Session, infer: Inference) -> None:
        """Remember what later sessions need."""
        self.teacher = None
        if self.buffer.budget:
            self.buffer.close_session(session, lambda rows: infer(self.pooled, rows))

    def predict(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K) probabilities of every class seen so far, float32."""
        return torch.sigmoid(self.tagger(images).logits.float())

    def notes(self) -> dict[str, Any]:
        """What is worth reporting of the current session, as plain values."""
        return {"exemplars": len(self.buffer)} if self.buffer.budget else {}

    def state(self) -> State:
        """Everything needed to continue as if nothing had happened; extend it with what you add."""
        tensors = {f"tagger.{key}": value for key, value in self.tagger.state_dict().items()}
        if self.teacher is not None:
            tensors |= {f"teacher.{key}": value for key, value in self.teacher.state_dict().items()}
        kept, values = self.buffer.state()
        tensors |= {f"buffer.{key}": value for key, value in kept.items()}
        return State(tensors, {"sizes": list(self.tagger.sizes), "buffer": values})

    def load_state(self, state: State) -> None:
        """The inverse of `state`, on a method freshly made."""
        sizes = state.values["sizes"]
        for classes in sizes[:-1]:
            self.tagger.grow(classes)
        teacher = part_of(state.tensors, "teacher.")
        if teacher:
            self.teacher = frozen_copy(self.tagger)
            self.teacher.load_state_dict(teacher)
        self.tagger.grow(sizes[-1])
        self.tagger.load_state_dict(part_of(state.tensors, "tagger."))
        self.buffer.load_state(part_of(state.tensors, "buffer."), state.values["buffer"])

    # What methods share -------------------------------------------------------------------------

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss, unknown labels by the `missing` policy, mean over images."""
        if self.config.missing == "negative":
            labels = labels.clamp(min=0)
        return asymmetric_loss(logits, labels).mean()

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C) pooled features of the current model."""
        return self.tagger(images).pooled  # type: ignore[no-any-return]


def frozen_copy(tagger: Tagger) -> Tagger:
    """The model as it is now, for good: evaluation mode and no gradients."""
    return copy.deepcopy(tagger).eval().requires_grad_(False)


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix`, by the rest of their name."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
