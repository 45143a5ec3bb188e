"""OCDM: an online learner whose memory drops images to keep its class distribution near a target."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import with_default
from .prs import PRS, PRSConfig


@dataclass(frozen=True)
class OCDMConfig(PRSConfig):
    """PRS's options, with a uniform target."""

    selection: str = with_default(PRSConfig, "selection", "ocdm", choices=("ocdm",))
    rho: float = with_default(PRSConfig, "rho", 0.0, paper="OCDM, section 4")


class OCDM(PRS):
    """Replay from a memory whose class distribution is kept as near to a target as removals can bring it."""

    name = "ocdm"
    summary = "online: a memory that drops what brings its class distribution nearest to uniform"
    reference = "Liang and Li, Optimizing Class Distribution in Memory, 2022"
    Config = OCDMConfig
    config: OCDMConfig
