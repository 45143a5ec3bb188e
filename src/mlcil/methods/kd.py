"""The KD baseline of KRT's ablation: the pooled feature keeps its direction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.config import option
from ..data.loading import Batch
from ..losses.cosine import cosine_distance
from ..models.tagger import Output
from .base import LOSS_SCALE
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class KDConfig(RehearsalConfig):
    """Weights are in the published units: relative to a loss summed over 64 images."""

    feature_weight: float = option(
        180.0,
        "weight of 1 - cos between old and new pooled feature, scaled by sqrt(seen / new classes)",
        low=0,
        paper="KRT, table 4",
    )


class KD(Rehearsal):
    """Less-forget distillation of the pooled feature, as LUCIR has it, without its cosine classifier."""

    name = "kd"
    summary = "distils the pooled feature (KRT's baseline)"
    family = "rehearsal"
    reference = "Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR 2019"
    wants_teacher = True
    Config = KDConfig
    config: KDConfig
    base_is_finetuning = True
    finetuning_options = {"feature_weight": 0.0}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification, and the distances from the teacher."""
        batch = batch.joined()
        now = self.student(batch.images)
        terms = {"classification": self.classification(now.logits, batch.labels)}
        if self.teacher is not None:
            scale = self.distillation_scale() / LOSS_SCALE
            distances = self.distances(now, self.teacher_output(batch))
            terms |= {name: scale * weight * distance for name, (weight, distance) in distances.items()}
        return terms

    def distances(self, now: Output, before: Output) -> dict[str, tuple[float, Tensor]]:
        """What is distilled: by name, its published weight and its mean over the images."""
        return {"feature": (self.config.feature_weight, cosine_distance(now.pooled, before.pooled).mean())}
