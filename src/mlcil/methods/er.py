"""Experience replay: each batch is joined by as many exemplars."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import with_default
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class ERConfig(RehearsalConfig):
    """Exemplars are chosen at random and drawn beside each batch."""

    selection: str = with_default(RehearsalConfig, "selection", "random")
    replay: str = with_default(RehearsalConfig, "replay", "paired")


class ER(Rehearsal):
    """Fine-tuning on the session's images and, with equal weight, on exemplars of earlier sessions."""

    name = "er"
    summary = "experience replay: each batch is joined by as many random exemplars"
    family = "rehearsal"
    reference = "Riemer et al., Learning to Learn without Forgetting, ICLR 2019"
    buffer_use = "required"
    Config = ERConfig
    base_is_finetuning = True
    finetuning_options = {}
