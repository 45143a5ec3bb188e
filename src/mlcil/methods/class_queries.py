"""KRT with a query per class, recall by class, re-weighted old classes and an unknown class (HCP and KBK)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..core.config import option, with_default
from ..data.images import ABSENT, PRESENT, UNKNOWN
from ..data.protocol import Session
from ..losses.asymmetric import asymmetric_loss
from ..losses.reweighting import reweighted_loss
from ..models.backbone import Backbone
from ..models.class_queries import ClassRows
from ..models.tagger import AttentionShape, Output, TaggerNet
from .base import Inference
from .krt import KRT, KRTConfig

MIXING = 0.2  # both parameters of the Beta distribution; HCP, unknown probing
SMALLEST = 1e-6  # of a draw, so that a sum of draws is never 0


@dataclass(frozen=True)
class ClassQueriesConfig(KRTConfig):
    """KRT's options, some of which mean something else here, and those of the queries."""

    ica: bool = option(
        True, "use a query per class; if false, linear heads on the pooled feature", paper="HCP, feature purification"
    )
    pseudo_label_rule: str = with_default(KRTConfig, "pseudo_label_rule", "per_class")
    token_weight: float = option(
        100.0, "weight of a token loss on the old classes' embeddings, which HCP does not have", low=0.0
    )
    attend_to_kt: bool = option(True, "let a query attend to itself as well as to the patches")
    layers: int = option(1, "number of attention layers; 1 on COCO, 3 on VOC", low=1, paper="HCP, feature purification")
    reweight: bool = option(
        False,
        "weight the terms of old classes by their distance from the label, relative to their session's mean",
        paper="KBK, gradient compensation",
    )
    unknown: float = option(
        0.0,
        "weight of the loss of an unknown class, which is trained on mixtures of absent classes; 1 in the papers",
        low=0.0,
        paper="KBK, unknown probing",
    )


class ClassQueries(KRT):
    """Each class reads the image with its own query, which is frozen after its session."""

    name = "class_queries"
    summary = "a query per class, pseudo labels above a threshold per class, re-weighted old classes"
    reference = "Zhang et al., HCP, AAAI 2025; KBK (preprint 2026)"
    Config = ClassQueriesConfig
    config: ClassQueriesConfig
    finetuning_options = {"dpl": False, "ica": False, "reweight": False, "first_head": "default"}

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """A tagger with class queries unless they are switched off, and with the unknown class if it has a weight."""
        c = self.config
        shape = AttentionShape(c.width, c.heads, c.attend_to_kt, per_class=True, layers=c.layers)
        tagger = TaggerNet(backbone, shape if c.ica else None)
        if self._probes():
            tagger.add_module("unknown", ClassRows(c.width, 1))
            self.base_is_finetuning = False  # the unknown class is taught in the first session as well
        return tagger

    def before_session(self, session: Session, infer: Inference) -> None:
        """As in KRT. Each session has its own unknown class, so that output is initialised again."""
        super().before_session(session, infer)
        if self._probes():
            output = self._unknown_output()
            output.norm.reset_parameters()
            output.rows.reset_parameters()

    def classification(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The asymmetric loss averaged over images, re-weighted from the second session on."""
        sizes = self.tagger.sizes
        if not self.config.reweight or len(sizes) == 1:
            return super().classification(logits, labels)
        return reweighted_loss(logits, self.counted(labels), sizes).mean()

    def _taught(self, now: Output, labels: Tensor) -> dict[str, Tensor]:
        terms = super()._taught(now, labels)
        if self._probes():
            terms["unknown"] = self.config.unknown * self._probing(now.embeddings.float(), self.counted(labels))
        return terms

    def _probing(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Train the unknown class: a mixture of absent classes shows it, the embedding of a present class does not."""
        mixed, exists = absent_mixture(embeddings, labels)
        logits = self._unknown_output()(torch.cat([mixed[:, None], embeddings], dim=1))  # (B, 1 + K)
        of_mixture = torch.where(exists, PRESENT, UNKNOWN)[:, None]
        of_classes = torch.where(labels == PRESENT, ABSENT, UNKNOWN)
        return asymmetric_loss(logits, torch.cat([of_mixture, of_classes], dim=1)).mean()

    def _probes(self) -> bool:
        return self.config.ica and self.config.unknown > 0

    def _unknown_output(self) -> ClassRows:
        return cast(ClassRows, self.tagger.get_submodule("unknown"))


def absent_mixture(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A random convex mixture of the absent classes of each image, favouring those similar to present classes.

    An absent class weighs as much as its mean cosine to the present classes, at least 0, times a draw from
    Beta(0.2, 0.2) of torch's global generator; by the draw alone where no class is present or none alike.

    Arguments:
        embeddings: (B, K, d).
        labels: (B, K), 1 present, 0 absent, -1 neither.

    Returns:
        (B, d), and bool (B,) whether an image has an absent class at all; its mixture is 0 if not.
    """
    present, absent = (labels == PRESENT).float(), (labels == ABSENT).float()  # (B, K)
    draws = torch.distributions.Beta(MIXING, MIXING).sample(labels.shape).to(embeddings.device).clamp(min=SMALLEST)
    with torch.no_grad():
        unit = normalize(embeddings, dim=2)
        # The mean of the cosines is the product with the mean of the unit vectors.
        mean = torch.einsum("bk,bkd->bd", present, unit) / present.sum(1, keepdim=True).clamp(min=1)
        alike = torch.einsum("bkd,bd->bk", unit, mean).clamp(min=0) * absent
        weights = torch.where(alike.sum(1, keepdim=True) > 0, alike, absent) * draws
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.einsum("bk,bkd->bd", weights, embeddings), absent.any(dim=1)
