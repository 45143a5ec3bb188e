"""iCaRL: old columns follow the old model, new ones the labels; exemplars by herding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from ..core.config import option
from ..data.images import PRESENT
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.distillation import sigmoid_distillation
from .base import Inference
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class ICaRLConfig(RehearsalConfig):
    """The two ways to read iCaRL for several labels per image."""

    cls_scope: str = option(
        "all",
        "classes of the classification term: all seen classes, in addition to the distillation (this explains the "
        "numbers that KRT reports), or only the new ones (iCaRL)",
        choices=("all", "new"),
        paper="iCaRL, algorithm 3",
    )
    scores: str = option(
        "sigmoid",
        "predict with the heads, or by the similarity to class means of exemplars, which are no probabilities",
        choices=("sigmoid", "nme"),
        paper="iCaRL, algorithm 1",
    )


class ICaRL(Rehearsal):
    """Distillation of the old probabilities without temperature, and herded exemplars."""

    name = "icarl"
    summary = "distils the old probabilities, rehearses herded exemplars"
    family = "rehearsal"
    reference = "Rebuffi et al., iCaRL, CVPR 2017"
    buffer_use = "required"
    wants_teacher = True
    saved = ("means",)
    Config = ICaRLConfig
    config: ICaRLConfig
    base_is_finetuning = True
    means: Tensor | None = None  # (K, C) unit means of each class's exemplars, for `scores: nme`

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification over the columns in scope, distillation over the old ones."""
        batch = batch.joined()
        now, first = self.student(batch.images), self.old_classes() if self.config.cls_scope == "new" else 0
        terms = {"classification": self.classification(now.logits[:, first:], batch.labels[:, first:])}
        if self.teacher is not None:
            before = self.teacher_output(batch)
            terms["distillation"] = sigmoid_distillation(now.logits, before.logits, temperature=1.0).mean()
        return terms

    def after_session(self, session: Session, infer: Inference) -> None:
        """Choose exemplars, and compute the mean feature of each class with the current model."""
        super().after_session(session, infer)
        if self.config.scores == "nme" and len(self.buffer):
            both = infer(self._two_views, self.buffer.indices)  # (n, 2, C)
            means = [both[self.buffer.labels[:, column] == PRESENT] for column in range(session.stop)]
            self.means = torch.stack([_unit_mean(one) for one in means])

    def _two_views(self, images: Tensor) -> Tensor:
        views = [normalize(self.pooled(one).float(), dim=1) for one in (images, images.flip(3))]
        return torch.stack(views, dim=1)

    def predict(self, images: Tensor) -> Tensor:
        """Probabilities, or with `nme` the cosine to each class's mean brought to 0..1."""
        if self.means is None:
            return super().predict(images)
        return (1 + normalize(self.pooled(images).float(), dim=1) @ self.means.to(images.device).T) / 2


def _unit_mean(features: NDArray[np.float32]) -> Tensor:
    """(n, 2, C) -> (C,) of length 1; zeros for a class without exemplars."""
    points = torch.from_numpy(features).flatten(0, 1)
    return normalize(points.mean(0), dim=0) if len(points) else points.new_zeros(points.shape[1])
