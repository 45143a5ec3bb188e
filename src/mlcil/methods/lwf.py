"""Learning without Forgetting: the old outputs on new images are kept where they were."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.config import option
from ..data.loading import Batch
from ..losses.distillation import sigmoid_distillation
from .base import Method, MethodConfig


@dataclass(frozen=True)
class LwFConfig(MethodConfig):
    """With `missing: ignore` only the new classes are in the classification term, as in the original."""

    weight: float = option(
        1.0, "lambda_o, weight of the distillation per image and class", low=0, paper="LwF, section 3"
    )
    temperature: float = option(2.0, "temperature T of both distributions", low=0.01, paper="LwF, section 3")


class LwF(Method):
    """Distillation of the old classes' probabilities, one binary cross-entropy per class."""

    name = "lwf"
    summary = "distils the old classes' probabilities on the new images"
    family = "regularisation"
    reference = "Li and Hoiem, Learning without Forgetting, ECCV 2016"
    wants_teacher = True
    Config = LwFConfig
    config: LwFConfig
    base_is_finetuning = True
    finetuning_options = {"weight": 0.0}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification, and the distance of the old classes' outputs from the teacher's."""
        now = self.student(batch.images)
        terms = {"classification": self.classification(now.logits, batch.labels)}
        if self.teacher is not None:
            before = self.teacher_output(batch)
            distance = sigmoid_distillation(now.logits, before.logits, self.config.temperature).mean()
            terms["distillation"] = self.config.weight * distance
        return terms
