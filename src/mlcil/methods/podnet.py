"""PODNet: pooled maps of every stage, and the final feature, stay near the old model's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.config import option
from ..losses.pod import pod_spatial
from ..models.backbone import Backbone
from ..models.tagger import Output, TaggerNet
from .kd import KD, KDConfig


@dataclass(frozen=True)
class PODNetConfig(KDConfig):
    """The published multi-label weights; PODNet's own were for a softmax."""

    spatial_weight: float = option(
        5.0,
        "weight of the stages' maps pooled over width and height, scaled by sqrt(seen / new classes)",
        low=0,
        paper="PODNet, eq. 4",
    )


class PODNet(KD):
    """Pooled outputs distillation over the last four stages, and of the pooled feature."""

    name = "podnet"
    summary = "distils every stage's map pooled over width and height, and the final feature"
    reference = "Douillard et al., PODNet, ECCV 2020"
    Config = PODNetConfig
    config: PODNetConfig
    finetuning_options = {"feature_weight": 0.0, "spatial_weight": 0.0}

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """Linear heads, on a backbone that keeps its stages' maps."""
        backbone.watch_stages()
        return TaggerNet(backbone)

    def distances(self, now: Output, before: Output) -> dict[str, tuple[float, Tensor]]:
        """Those of the final feature and of the stages."""
        if not now.stages:  # all of them frozen, and their output given
            return super().distances(now, before)
        # Stages whose frozen output is given are the same for both: they count with distance 0.
        spatial = pod_spatial(now.stages, before.stages, self.tagger.backbone.watched).mean()
        return super().distances(now, before) | {"spatial": (self.config.spatial_weight, spatial)}
