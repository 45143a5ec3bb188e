"""PRS: an online learner whose memory keeps room for rare classes while the stream passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..core.config import option, with_default
from ..losses.distillation import LARGEST_LOGIT
from ..memory.buffer import POLICIES, Budget, Memory, StreamBuffer
from .rehearsal import Rehearsal, RehearsalConfig

ONE_PASS = {"epochs": 1, "batch_size": 10, "base_lr": 1e-4, "lr": 1e-4}  # PRS, section 5


@dataclass(frozen=True)
class PRSConfig(RehearsalConfig):
    """Exemplars keep the labels they had when they passed, and each batch is joined by a draw of them."""

    exemplar_labels: str = with_default(RehearsalConfig, "exemplar_labels", "stored_only")
    selection: str = with_default(RehearsalConfig, "selection", "prs", choices=("prs",))
    replay: str = with_default(RehearsalConfig, "replay", "paired")
    loss: str = option(
        "asymmetric",
        "asymmetric, the loss of all other methods, or bce: cross-entropy averaged over classes, as in the original",
        choices=("asymmetric", "bce"),
    )
    rho: float = option(
        -0.03,
        "power of a class's frequency that its share of the memory follows: 1 is the stream's share, 0 equal shares",
        paper="PRS, section 5",
    )


class PRS(Rehearsal):
    """Replay from a reservoir that is partitioned by class, so that rare classes keep their place."""

    name = "prs"
    summary = "online: a reservoir whose shares follow a power of the class frequencies"
    family = "online memory"
    reference = "Kim et al., Imbalanced Continual Learning with Partitioning Reservoir Sampling, ECCV 2020"
    buffer_use = "required"
    Config = PRSConfig
    config: PRSConfig
    setting_defaults = ONE_PASS
    finetuning_options = {}
    takes_every_epoch = False  # the stream passes once; later epochs leave the memory alone

    def make_buffer(self, budget: Budget) -> Memory:
        """A streaming memory, with the shares that the `rho` option says."""
        policy = partial(POLICIES[self.config.selection], rho=self.config.rho)
        return StreamBuffer(budget, self.config.exemplar_labels == "stored_onwards", policy)

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss, or plain cross-entropy averaged over the classes."""
        if self.config.loss == "asymmetric":
            return super().classification(logits, labels)
        known = labels >= 0 if self.config.missing == "ignore" else labels >= -1
        bounded = logits.float().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        terms = binary_cross_entropy_with_logits(bounded, labels.clamp(min=0).float(), reduction="none")
        return (terms * known).mean()
