"""Independent probes: a frozen backbone and linear heads that never meet another session."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import with_default
from ..models.backbone import Backbone
from ..models.tagger import TaggerNet
from .base import Method, MethodConfig


@dataclass(frozen=True)
class ProbesConfig(MethodConfig):
    """Each head is trained on the classes of its own session only."""

    missing: str = with_default(MethodConfig, "missing", "ignore", choices=("ignore",))


class Probes(Method):
    """The usual practice without incremental learning, which a useful method must beat."""

    name = "probes"
    summary = "frozen backbone, one linear head per session trained on that session alone"
    family = "bound"
    reference = "common practice"
    Config = ProbesConfig
    setting_defaults = {"base_lr": 3e-3, "lr": 3e-3}  # nothing but linear heads is trained

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """Linear heads on features that never change."""
        backbone.stop_training()
        return TaggerNet(backbone)

    def freeze(self) -> None:
        """Keep the heads of finished sessions as they are."""
        self.tagger.freeze_old_sessions()
