"""The rows of KRT's ablation table, KRT with one part changed; the KD baseline has its own file."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import with_default
from .krt import KRT, KRTConfig


@dataclass(frozen=True)
class WithoutDPLConfig(KRTConfig):
    """No pseudo labels."""

    dpl: bool = with_default(KRTConfig, "dpl", False)


class WithoutDPL(KRT):
    """Cross-attention and token loss, old classes counted as absent."""

    name = "krt_without_dpl"
    summary = "KRT without pseudo labels (ablation a)"
    Config = WithoutDPLConfig
    finetuning_options = {"ica": False}


@dataclass(frozen=True)
class WithoutICAConfig(KRTConfig):
    """No cross-attention and no token loss."""

    ica: bool = with_default(KRTConfig, "ica", False)


class WithoutICA(KRT):
    """Pseudo labels on a plain head."""

    name = "krt_without_ica"
    summary = "KRT without cross-attention and token loss (ablation b)"
    Config = WithoutICAConfig
    finetuning_options = {"dpl": False}


@dataclass(frozen=True)
class WithKDConfig(KRTConfig):
    """Feature distillation besides."""

    kd: bool = with_default(KRTConfig, "kd", True)


class WithKD(KRT):
    """All of KRT, and the pooled feature held in place."""

    name = "krt_with_kd"
    summary = "KRT with feature distillation besides (ablation c)"
    Config = WithKDConfig
    finetuning_options = {"dpl": False, "ica": False, "kd": False}
