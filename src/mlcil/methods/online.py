"""PRS and OCDM: online learners whose memories choose by labels while the stream passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..core.config import option, with_default
from ..memory.buffer import Budget, Memory, StreamBuffer
from ..memory.ocdm import balanced
from ..memory.prs import partitioning_reservoir
from ..memory.stream import Policy
from .rehearsal import Rehearsal, RehearsalConfig

ONLINE = {"epochs": 1, "batch_size": 10, "base_lr": 1e-4, "lr": 1e-4}  # one pass in small batches; PRS, section 5


@dataclass(frozen=True)
class OnlineConfig(RehearsalConfig):
    """Labels as they were when the image passed, and a draw beside each batch."""

    exemplar_labels: str = with_default(RehearsalConfig, "exemplar_labels", "stored_only")
    selection: str = with_default(RehearsalConfig, "selection", "prs", choices=("prs",))
    replay: str = with_default(RehearsalConfig, "replay", "paired")
    loss: str = option(
        "asymmetric",
        "asymmetric, as all methods here, or bce: the original's mean over classes",
        choices=("asymmetric", "bce"),
    )
    rho: float = option(-0.03, "power of the target share: 1 follows the stream, 0 is uniform", paper="PRS, section 5")


class PRS(Rehearsal):
    """Replay from a reservoir that is partitioned by class, so that rare classes keep their place."""

    name = "prs"
    summary = "online: a reservoir whose shares follow a power of the class frequencies"
    family = "online memory"
    reference = "Kim et al., Imbalanced Continual Learning with Partitioning Reservoir Sampling, ECCV 2020"
    buffer_use = "required"
    Config = OnlineConfig
    config: OnlineConfig
    setting_defaults = ONLINE
    finetuning_options = {}
    takes_every_epoch = False  # the stream passes once; further epochs see the memory it left

    def policy(self) -> Policy:
        """Which images to take and to let go."""
        return partial(partitioning_reservoir, rho=self.config.rho)

    def make_buffer(self, budget: Budget) -> Memory:
        """A streaming memory with this policy."""
        return StreamBuffer(budget, self.config.exemplar_labels == "stored_onwards", self.policy())

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss, or plain cross-entropy averaged over the classes."""
        if self.config.loss == "asymmetric":
            return super().classification(logits, labels)
        known = labels >= 0 if self.config.missing == "ignore" else labels >= -1
        terms = binary_cross_entropy_with_logits(logits.float(), labels.clamp(min=0).float(), reduction="none")
        return (terms * known).mean()


@dataclass(frozen=True)
class OCDMConfig(OnlineConfig):
    """As PRS, towards a uniform distribution."""

    selection: str = with_default(RehearsalConfig, "selection", "ocdm", choices=("ocdm",))
    rho: float = option(0.0, "power of the target share: 1 follows the stream, 0 is uniform", paper="OCDM, section 4")


class OCDM(PRS):
    """Replay from a memory whose class distribution is kept as near to a target as removals can bring it."""

    name = "ocdm"
    summary = "online: a memory that drops what brings its class distribution nearest to uniform"
    reference = "Liang and Li, Optimizing Class Distribution in Memory, 2022"
    Config = OCDMConfig
    config: OCDMConfig

    def policy(self) -> Policy:
        """Greedy removal towards the target distribution."""
        return partial(balanced, rho=self.config.rho)
