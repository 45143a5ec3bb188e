"""DER++: exemplars are replayed with their labels and with the logits the model once gave them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option, with_default
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.distillation import logit_distance
from ..memory.buffer import Budget
from ..memory.logits import StoredLogits
from ..models.backbone import Backbone
from .base import Inference, Task, TrainingSet
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class DERppConfig(RehearsalConfig):
    """With `selection: reservoir`, as in the original, logits are those of the step at which an image is stored."""

    selection: str = with_default(RehearsalConfig, "selection", "herding", choices=("herding", "random", "reservoir"))
    replay: str = with_default(RehearsalConfig, "replay", "paired", choices=("paired",))
    alpha: float = option(0.5, "weight of the distance to the stored logits", low=0, paper="DER, eq. 6")
    beta: float = option(0.5, "weight of the classification of exemplars", low=0, paper="DER, eq. 6")


class DERpp(Rehearsal):
    """Two independent draws beside each batch: one for the stored logits, one for the labels."""

    name = "derpp"
    summary = "dark experience replay: exemplars with labels and stored logits"
    family = "rehearsal"
    reference = "Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020"
    buffer_use = "required"
    saved = ("logits",)
    only_for_learning = ("buffer", "logits")
    Config = DERppConfig
    config: DERppConfig
    base_is_finetuning = True
    finetuning_options = {"alpha": 0.0, "beta": 0.0}
    draws = 2

    def __init__(self, config: DERppConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        super().__init__(config, backbone, task, budget)
        self.logits = StoredLogits()
        self._taken: set[int] = set()  # images that the memory takes in the epoch under way

    def draw(
        self, training: TrainingSet, plan: list[NDArray[np.int64]], epoch: int, rng: np.random.Generator
    ) -> list[tuple[NDArray[np.int64], ...]]:
        """The usual draws; remembers which images a streaming memory takes during the epoch."""
        self._taken = set()
        return super().draw(training, plan, epoch, rng)

    def offer(self, indices: NDArray[np.int64], labels: NDArray[np.int8], rng: np.random.Generator) -> None:
        """Remember which images are taken."""
        self._taken.update(self.buffer.observe(indices, labels, rng).tolist())

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification of the batch, and one term for each of the two draws."""
        now = self.student(batch.images)
        terms = {"classification": self.classification(now.logits, batch.labels)}
        if batch.replay:
            dark, labelled = batch.replay
            again = self.student(dark.images).logits
            stored = self.logits.get(dark.indices, again.shape[1])
            said, known = (one.to(again.device, non_blocking=True) for one in stored)
            terms["logits"] = self.config.alpha * logit_distance(again, said, known)
            again = self.student(labelled.images).logits
            terms["replay"] = self.config.beta * self.classification(again, labelled.labels)
        if self.buffer.is_streaming:  # last, so that an image taken again is still replayed with its earlier logits
            self._store(batch, now.logits.detach())
        return terms

    def _store(self, batch: Batch, logits: Tensor) -> None:
        taken = [place for place, index in enumerate(batch.indices.tolist()) if index in self._taken]
        places = torch.tensor(taken, dtype=torch.int64)
        said = logits[places.to(logits.device, non_blocking=True)]
        numbers = batch.indices[places].to(logits.device, non_blocking=True)  # processes exchange what is on the device
        self.logits.put(self.gather(numbers), self.gather(said))

    def after_session(self, session: Session, infer: Inference) -> None:
        """Store the model's logits for each new exemplar."""
        super().after_session(session, infer)
        fresh = [index for index in self.buffer.indices.tolist() if index not in self.logits]
        if fresh:
            rows = np.array(fresh, np.int64)
            said = infer(lambda images: self.tagger(images).logits, rows)
            self.logits.put(torch.from_numpy(rows), torch.from_numpy(said))
        self.logits.keep(self.buffer.indices.tolist())
