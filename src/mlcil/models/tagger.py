"""The tagger: a backbone, a way to embed an image, and one head per session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import IncrementalCrossAttention, PatchAttention
from .backbone import Backbone
from .class_queries import ClassQueryAttention


@dataclass(frozen=True)
class AttentionShape:
    """The shape of the cross-attention; see `IncrementalCrossAttention`, or with `per_class` `ClassQueryAttention`."""

    width: int = 384
    heads: int = 8
    attend_to_query: bool = True
    per_class: bool = False
    layers: int = 1  # of class queries

    def build(self, backbone: Backbone) -> PatchAttention:
        """The attention over a backbone's feature map."""
        grid = backbone.channels, backbone.grid
        if self.per_class:
            return ClassQueryAttention(*grid, self.width, self.heads, self.layers, self.attend_to_query)
        return IncrementalCrossAttention(*grid, self.width, self.heads, self.attend_to_query)


class Output(NamedTuple):
    """The output of a tagger for a batch."""

    logits: Tensor  # (B, K) over every class seen so far
    pooled: Tensor  # (B, C) mean of the feature map over positions
    embeddings: Tensor  # (B, t, d), one per session, or with class queries (B, K, d); (B, 0, 0) without attention
    stages: tuple[Tensor, ...] = ()  # (B, C_s, H_s, W_s) maps of the backbone's last stages, if it watches them
    match: Tensor | None = None  # (B,) similarity of each image's query to the prompts it chose


class TaggerNet(nn.Module):
    """Scores images for every class seen so far and grows by a head, and with attention its tokens, a session.

    Growing adds modules and touches no old one, so the scores of old classes stay the same to the bit.

    Arguments:
        backbone: gives the feature map.
        attention: the cross-attention's shape, or None for linear heads on the pooled feature.
    """

    enters_backbone = False  # whether `forward` does more with the backbone than call it

    def __init__(self, backbone: Backbone, attention: AttentionShape | None = None) -> None:
        super().__init__()
        self.backbone, self.attention_shape = backbone, attention
        self.sizes: list[int] = []  # classes per session
        self.heads = nn.ModuleList()
        self.attention = None if attention is None else attention.build(backbone)

    @property
    def needs_map(self) -> bool:
        """Whether it looks at places of the feature map, and not only at its mean."""
        return self.attention is not None

    def grow(self, classes: int) -> None:
        """Make room for a session of `classes` new classes."""
        device = next(self.parameters()).device
        if self.attention is None:
            head: nn.Module = nn.Linear(self.backbone.channels, classes)
        else:
            head = self.attention.open_session(classes)
        self.heads.append(head.to(device))
        self.sizes.append(classes)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) normalised images -> (B, C, h, w) feature map that the heads look at."""
        features: Tensor = self.backbone(images)
        return features

    def forward(self, images: Tensor) -> Output:
        """(B, 3, H, W) normalised images -> `Output`."""
        features = self.backbone(images)
        stages = self.backbone.take_maps()
        pooled = features.mean(dim=(2, 3))  # (B, C)
        if self.attention is None:
            logits = torch.cat([head(pooled) for head in self.heads], dim=1)
            return Output(logits, pooled, pooled.new_zeros(len(pooled), 0, 0), stages)
        embeddings = self.attention(features)  # for each session (B, d), or with class queries (B, classes, d)
        logits = torch.cat([head(one) for head, one in zip(self.heads, embeddings, strict=True)], dim=1)
        return Output(logits, pooled, self.attention.by_image(embeddings), stages)

    def freeze_old_sessions(self) -> None:
        """Stop training the heads and tokens of every session but the newest (KRT, section 3.3)."""
        for head in self.heads[:-1]:
            head.requires_grad_(False)
        if self.attention is not None:
            for token in self.attention.session_tokens()[:-1]:
                token.requires_grad_(False)
