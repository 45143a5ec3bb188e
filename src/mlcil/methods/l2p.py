"""Learning to Prompt on a frozen vision transformer; with a buffer, L2P-R."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.config import option, with_default
from ..data.loading import Batch
from ..models.backbone import Backbone
from ..models.prompts import PromptedTagger
from ..models.tagger import TaggerNet
from .base import LOSS_SCALE, MethodConfig
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class L2PConfig(RehearsalConfig):
    """The official values for CIFAR-100."""

    missing: str = with_default(MethodConfig, "missing", "ignore", choices=("ignore",))
    replay: str = with_default(RehearsalConfig, "replay", "paired", choices=("paired",))
    pool: int = option(10, "M, number of prompts in the pool", low=1, paper="L2P, section 5.1")
    length: int = option(10, "number of tokens in a prompt", low=1, paper="L2P, section 5.1")
    chosen: int = option(4, "N, number of prompts that an image chooses", low=1, paper="L2P, section 5.1")
    pull_weight: float = option(
        1.0, "lambda, weight of pulling chosen keys towards the image's feature", low=0, paper="L2P, eq. 5"
    )
    batchwise: bool = option(True, "during training, the whole batch uses the prompts that most of its images choose")
    unfreeze: bool = option(False, "train the backbone too, which the original recommends with a buffer")


class L2P(Rehearsal):
    """A pool of prompts that images choose from by their own feature; only prompts, keys and heads are trained."""

    name = "l2p"
    summary = "prompts chosen from a pool steer a frozen ViT; L2P-R with a buffer"
    family = "prompts"
    reference = "Wang et al., Learning to Prompt for Continual Learning, CVPR 2022"
    Config = L2PConfig
    config: L2PConfig
    # L2P, section 5.1; the rate is 0.03 * 64 / 256, and the norm of 1 belongs to a loss that is not scaled.
    setting_defaults = {
        "backbone": "vit_base_patch16_224.augreg_in21k",
        "weights": "pretrained",
        "epochs": 5,
        "base_lr": 0.0075,
        "lr": 0.0075,
        "schedule": "constant",
        "weight_decay": 0.0,
        "clip_norm": LOSS_SCALE,
    }

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """The transformer with its prompts."""
        c = self.config
        return PromptedTagger(backbone, c.pool, c.length, c.chosen, c.batchwise, c.unfreeze)

    def freeze(self) -> None:
        """Keep the old heads as they are where no exemplar could teach them."""
        if not self.budget:
            self.tagger.freeze_old_sessions()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification on the known labels, and the pull of the new images on their keys."""
        whole = batch.joined()
        now = self.student(whole.images)
        assert now.match is not None
        pull = now.match[: len(batch.images)].mean()  # exemplars pull no keys
        terms = {"classification": self.classification(now.logits, whole.labels)}
        return terms | {"pull": -self.config.pull_weight * pull}
