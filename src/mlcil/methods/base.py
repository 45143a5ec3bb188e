"""The base of every method: a method says what to minimise and what to remember, and the loop does the rest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option
from ..core.state import State, load_state_of, part_of, prefixed, state_of
from ..data.features import Outcome, Payload, ShardWork
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.asymmetric import asymmetric_loss
from ..memory.buffer import Budget
from ..models.backbone import Backbone
from ..models.tagger import Output, TaggerNet
from .kept_outputs import KeptOutputs

LOSS_SCALE = 64.0  # published weights belong to losses summed over a batch of 64; the loop multiplies by it


@dataclass(frozen=True)
class MethodConfig:
    """Options that every method has."""

    missing: str = option(
        "negative",
        "how to treat unknown labels: as absent, or leave them out of the loss",
        choices=("negative", "ignore"),
        paper="KRT, section 3.1",
    )


class Task(NamedTuple):
    """What a method may know about the experiment before it starts."""

    benchmark: str | None  # "coco" or "voc" if it is that very data set, else None
    total_classes: int  # of the whole data set


class TrainingSet(NamedTuple):
    """What a session trains on."""

    indices: NDArray[np.int64]  # (N,), rows of the whole training set
    labels: NDArray[np.int8]  # (N, K)
    # How many rows, from the first on, an epoch goes through, None for all; the others are only drawn for replay.
    epoch_size: int | None = None

    @property
    def shown(self) -> int:
        """How many images an epoch goes through."""
        return len(self.indices) if self.epoch_size is None else self.epoch_size


class Inference(Protocol):
    """Computes something on training images outside of training: unaugmented, in evaluation mode, in all processes."""

    def __call__(self, function: Callable[[Tensor], Tensor], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The values of a function of images (B, 3, H, W) -> (B, ...) on rows (n,) of the training set, (n, ...)."""
        ...

    def total(self, function: Callable[[Batch], Tensor], chosen: TrainingSet) -> Tensor:
        """The sum over batches of a function of a batch, which may use gradients, -> a tensor of any one shape."""
        ...

    def spread(
        self, work: ShardWork[Payload, Outcome], shards: Sequence[NDArray[np.int64]], payloads: Sequence[Payload]
    ) -> Iterator[Outcome] | None:
        """Let other processes work on the kept features of shards, which are rows (n,) of the training set.

        Yields the outcomes in the order of the shards; None where there are no such processes or features.
        """
        ...


class Method:
    """Fine-tuning; every method starts from here.

    Torch's global generator is seeded, alike in every process, before `before_session` and `after_session`:
    draw from it, or from `core.randomness.generator_from_torch()`, and the method repeats itself exactly.

    Attributes:
        tagger: the model that is trained.
        student: the same model; `losses` must call it instead of `tagger`, so that gradients reach every process.
        teacher: a frozen copy of the model as it was before this session, or None.
        kept: what the teacher gives for the session's images, if the loop asked it beforehand, or None.
        gather: turns rows (n, ...) of this process into those of all processes, for use within `losses`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    family: ClassVar[str]
    reference: ClassVar[str]
    buffer_use: ClassVar[str] = "none"  # "none", "optional" or "required"
    is_joint: ClassVar[bool] = False  # sees all classes in one session
    wants_teacher: ClassVar[bool] = False  # whether a session needs the model as it was before
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    setting_defaults: ClassVar[Mapping[str, Any]] = {}  # settings of a run that have another default for this method
    # Whether training in the first session is fine-tuning and leaves nothing but the trained model, so that runs may
    # share it; `check_method` tries it.
    base_is_finetuning: bool = False
    saved: ClassVar[tuple[str, ...]] = ()  # attributes to save besides the model; see `core.state`
    only_for_learning: ClassVar[tuple[str, ...]] = ()  # those of `saved` that `predict` and `thresholds` do not need
    finetuning_options: ClassVar[Mapping[str, Any] | None] = None  # options that make it fine-tuning without a buffer

    def __init__(self, config: MethodConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        self.config, self.task, self.budget = config, task, budget
        self.tagger = self.make_tagger(backbone)
        self.student: Callable[[Tensor], Output] = self.tagger
        self.teacher: TaggerNet | None = None
        self.kept: KeptOutputs | None = None
        self.gather: Callable[[Tensor], Tensor] = lambda rows: rows

    # What a method may replace ------------------------------------------------------------------

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """Build the model: by default linear heads on the pooled feature."""
        return TaggerNet(backbone)

    def before_session(self, session: Session, infer: Inference) -> None:
        """Grow the model and prepare whatever the session's losses need."""
        if session.number > 1 and self.wants_teacher:
            self.teacher = frozen_copy(self.tagger)
        self.tagger.grow(session.stop - session.first)
        self.freeze()

    def freeze(self) -> None:
        """Stop training what must stay as it is; called whenever the model has grown or has been loaded."""

    def training_set(self, session: Session) -> TrainingSet:
        """Choose what to train on: by default the session's images."""
        return TrainingSet(session.indices, session.labels)

    def trains(self, session: Session) -> bool:
        """Whether there is anything to minimise in this session; if not, `after_session` does all the learning."""
        return True

    def draw(
        self, training: TrainingSet, plan: list[NDArray[np.int64]], epoch: int, rng: np.random.Generator
    ) -> list[tuple[NDArray[np.int64], ...]]:
        """Choose what each step of an epoch sees besides its batch, as `Batch.replay`.

        Called for every epoch in order. A resumed run calls it again for the epochs that are already trained.

        Arguments:
            plan: for each step, the positions (B,) in `training` of its images.

        Returns:
            For each step, one array of positions in `training` per draw.
        """
        return [()] * len(plan)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms to minimise, by name: each is a mean over the batch's images and already weighted."""
        batch = batch.joined()
        return {"classification": self.classification(self.student(batch.images).logits, batch.labels)}

    def after_session(self, session: Session, infer: Inference) -> None:
        """Remember what later sessions need."""
        self.teacher = None

    def predict(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, K) probabilities of every class seen so far, float32."""
        return torch.sigmoid(self.tagger(images).logits.float())

    def thresholds(self) -> NDArray[np.float64] | None:
        """(K,) per-class thresholds on the scores of `predict`, or None for the global one."""
        return None

    def pseudo_labels(self) -> NDArray[np.bool_] | None:
        """(N, K_old), which old classes count as present in the session's N unaugmented images; None if unused."""
        return None

    def notes(self) -> dict[str, Any]:
        """What to report about the current session, as plain values for results.json."""
        return {}

    # What methods share -------------------------------------------------------------------------

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss averaged over images; the `missing` option says how unknown labels are treated."""
        return asymmetric_loss(logits, self.counted(labels)).mean()

    def counted(self, labels: Tensor) -> Tensor:
        """The labels as the `missing` option has them: unknown ones are absent, or stay unknown."""
        return labels.clamp(min=0) if self.config.missing == "negative" else labels

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C) pooled features of the current model."""
        return self.tagger(images).pooled  # type: ignore[no-any-return]

    @torch.no_grad()
    def teacher_output(self, batch: Batch) -> Output:
        """The teacher's output for a batch as the loop gave it, or joined; for changed images, ask `teacher` itself."""
        assert self.teacher is not None
        return self.teacher(batch.images) if self.kept is None else self.kept.of(batch)

    def old_classes(self) -> int:
        """The number of classes of the sessions before this one."""
        return sum(self.tagger.sizes[:-1])

    def distillation_scale(self) -> float:
        """sqrt(seen / new classes), by which published distillation weights are scaled (PODNet, section 4.1)."""
        sizes = self.tagger.sizes
        return float(np.sqrt(sum(sizes) / sizes[-1]))

    # What the base does for every method ---------------------------------------------------------

    def state(self) -> State:
        """Everything needed to continue as if nothing had happened: the model, the teacher, and all of `saved`."""
        own = state_of(self)
        tensors = own.tensors | prefixed("tagger.", self.tagger.state_dict())
        if self.teacher is not None:
            tensors |= prefixed("teacher.", self.teacher.state_dict())
        return State(tensors, {"sizes": list(self.tagger.sizes), "saved": own.values})

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
        device = next(self.tagger.parameters()).device
        load_state_of(self, State(state.tensors, state.values["saved"]), device)
        self.freeze()


def frozen_copy(tagger: TaggerNet) -> TaggerNet:
    """A copy of the model that stays as it is: in evaluation mode, without gradients."""
    return copy.deepcopy(tagger).eval().requires_grad_(False)
