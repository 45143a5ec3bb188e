"""BiC: distillation, and after each session a correction of the new classes' logits on held-out images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from ..core.config import option, with_default
from ..core.randomness import generator_from_torch
from ..data.images import PRESENT
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.distillation import sigmoid_distillation
from ..memory.buffer import Budget, ExemplarBuffer, by_random
from ..models.backbone import Backbone
from .base import Inference, Task, TrainingSet
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class BiCConfig(RehearsalConfig):
    """The weight of the distillation is old / seen classes, so there is no option for it."""

    selection: str = with_default(RehearsalConfig, "selection", "herding", choices=("herding", "random"))
    temperature: float = option(2.0, "temperature T of the distillation", low=0.01, paper="BiC, section 4")
    held_out: float = option(
        0.1,
        "share of each class's exemplars held out to fit the correction; at least one if there are two or more",
        low=0,
        high=0.9,
        paper="BiC, section 3",
    )
    decay: float = option(
        0.05, "weight of beta^2 + log(alpha)^2, which keeps the correction small", low=0, paper="BiC, section 4"
    )


@dataclass(frozen=True)
class BudgetPart(Budget):
    """The held-out part of each class's share of the budget, or the rest of it."""

    held_out: float = 0.1
    is_held_out: bool = True

    def quotas(self, classes: int) -> list[int]:
        """The number of images of each class in this part."""
        whole = super().quotas(classes)
        aside = [max(1, int(one * self.held_out)) if one > 1 and self.held_out else 0 for one in whole]
        return aside if self.is_held_out else [one - part for one, part in zip(whole, aside, strict=True)]


class BiC(Rehearsal):
    """Bias correction: new logits z become alpha z + beta, fitted on images that training never sees.

    An increasing map cannot change how a class ranks images, so the session's own mAP stays; thresholded
    measures change, and so does the teacher of the next session.
    """

    name = "bic"
    summary = "distillation, then a bias correction of the new classes on held-out images"
    family = "rehearsal"
    reference = "Wu et al., Large Scale Incremental Learning, CVPR 2019"
    buffer_use = "required"
    wants_teacher = True
    saved = ("validation", "correction", "old_correction")
    Config = BiCConfig
    config: BiCConfig

    def __init__(self, config: BiCConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        part = BudgetPart(budget.per_class, budget.total, config.held_out, is_held_out=False)
        super().__init__(config, backbone, task, part)
        self.validation = ExemplarBuffer(
            replace(part, is_held_out=True),
            config.exemplar_labels == "stored_onwards",
            _at_most_half,
            needs_features=False,
        )
        self.correction = (1.0, 0.0)  # alpha and beta of the newest session's classes
        self.old_correction = (1.0, 0.0)  # of the session before, whose model is the teacher

    def before_session(self, session: Session, infer: Inference) -> None:
        """Hold out images of each new class."""
        super().before_session(session, infer)
        self.validation.open_session(session)
        self.validation.close_session(session, lambda rows: infer(self.pooled, rows), generator_from_torch())
        self.old_correction, self.correction = self.correction, (1.0, 0.0)

    def training_set(self, session: Session) -> TrainingSet:
        """The usual training set without the held-out images."""
        full = super().training_set(session)
        kept = ~np.isin(full.indices, self.validation.indices)
        shown = None if full.epoch_size is None else int(kept[: full.epoch_size].sum())
        return TrainingSet(full.indices[kept], full.labels[kept], shown)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification and distillation, weighted by the shares of new and old classes."""
        batch = batch.joined()
        now = self.student(batch.images)
        share = self.old_classes() / sum(self.tagger.sizes)
        terms = {"classification": (1 - share) * self.classification(now.logits, batch.labels)}
        if self.teacher is not None:
            before = corrected(self.teacher_output(batch).logits, self.tagger.sizes[-2], self.old_correction)
            distance = sigmoid_distillation(now.logits, before, self.config.temperature).mean()
            terms["distillation"] = share * distance
        return terms

    def after_session(self, session: Session, infer: Inference) -> None:
        """Choose exemplars and fit the correction, from the second session on."""
        free = ~np.isin(session.indices, self.validation.indices)
        super().after_session(replace(session, indices=session.indices[free], labels=session.labels[free]), infer)
        if session.number > 1 and len(self.validation):
            new = infer(lambda images: self.tagger(images).logits[:, session.first :], self.validation.indices)
            labels = self.counted(torch.from_numpy(self.validation.labels[:, session.first :]))
            if (labels == PRESENT).any():
                self.correction = fit_correction(torch.from_numpy(new), labels, self.config.decay)

    def predict(self, images: Tensor) -> Tensor:
        """Probabilities, those of the newest session's classes corrected."""
        logits = self.tagger(images).logits.float()
        return torch.sigmoid(corrected(logits, self.tagger.sizes[-1], self.correction))

    def notes(self) -> dict[str, float]:
        """The correction, and the number of images that it was fitted on."""
        alpha, beta = self.correction
        kept = {"exemplars": len(self.buffer) + len(self.validation), "held_out": len(self.validation)}
        return super().notes() | kept | {"alpha": alpha, "beta": beta}


def _at_most_half(points: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose at random, but leave at least half of the class's images for training."""
    return by_random(points, min(count, len(points) // 2), rng)


def corrected(logits: Tensor, classes: int, correction: tuple[float, float]) -> Tensor:
    """(B, K) logits, the last `classes` columns mapped by alpha z + beta."""
    alpha, beta = correction
    return torch.cat([logits[:, :-classes], alpha * logits[:, -classes:] + beta], dim=1)


@torch.enable_grad()
def fit_correction(logits: Tensor, labels: Tensor, decay: float) -> tuple[float, float]:
    """The alpha > 0 and beta under which alpha z + beta are the best log-odds of the labels.

    Arguments:
        logits: (n, K) of the new classes on held-out images.
        labels: (n, K), 1 present, 0 absent, -1 unknown.
        decay: weight of beta^2, and of log(alpha)^2: held-out images that are separated without an error
            would send alpha to infinity.
    """
    scores, known = logits.double(), labels >= 0
    free = torch.tensor([float(np.log(np.expm1(1.0))), 0.0], dtype=torch.float64, requires_grad=True)  # alpha 1, beta 0
    optimiser = torch.optim.LBFGS([free], max_iter=250, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        alpha = softplus(free[0])
        moved = alpha * scores + free[1]
        terms = binary_cross_entropy_with_logits(moved, labels.clamp(min=0).double(), reduction="none")
        value = (terms * known).sum() / len(scores) + decay * (free[1].square() + alpha.log().square())
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(objective)  # type: ignore[no-untyped-call]
    return softplus(free[0]).item(), free[1].item()
