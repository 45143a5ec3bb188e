"""The tagger: a backbone, a way to embed an image, and one head per session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import IncrementalCrossAttention
from .backbone import Backbone


@dataclass(frozen=True)
class AttentionShape:
    """The shape of the cross-attention; see `IncrementalCrossAttention`."""

    width: int = 384
    heads: int = 8
    attend_to_query: bool = True


class Output(NamedTuple):
    """What a tagger says about a batch.

    Attributes:
        logits: (B, K) over every class seen so far.
        pooled: (B, C) mean of the feature map over positions.
        embeddings: (B, t, d), one per session; (B, 0, 0) without cross-attention.
        stages: (B, C_s, H_s, W_s) maps of the backbone's last stages, if it was told to watch them.
        match: (B,) similarity of each image's query to the prompts it chose; None without prompts.
    """

    logits: Tensor
    pooled: Tensor
    embeddings: Tensor
    stages: tuple[Tensor, ...] = ()
    match: Tensor | None = None


class Tagger(nn.Module):
    """Scores images for every class seen so far and grows by a head, and with attention a token, a session.

    Growing adds modules and touches no old one, so the scores of old classes stay the same to the bit.

    Arguments:
        backbone: gives the feature map.
        attention: the cross-attention's shape, or None for linear heads on the pooled feature.
    """

    def __init__(self, backbone: Backbone, attention: AttentionShape | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.sizes: list[int] = []  # classes per session
        self.heads = nn.ModuleList()
        self.attention = None
        if attention is not None:
            shape = attention
            self.attention = IncrementalCrossAttention(
                backbone.channels, backbone.grid, shape.width, shape.heads, shape.attend_to_query
            )

    def grow(self, classes: int) -> None:
        """Make room for a session of `classes` new classes."""
        device = next(self.parameters()).device
        if self.attention is None:
            head: nn.Module = nn.Linear(self.backbone.channels, classes)
        else:
            self.attention.grow()
            width = self.attention.kt.shape[1]
            head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))
        self.heads.append(head.to(device))
        self.sizes.append(classes)

    def forward(self, images: Tensor) -> Output:
        """(B, 3, H, W) normalised images -> `Output`."""
        features = self.backbone(images)
        stages = self.backbone.take_maps()
        pooled = features.mean(dim=(2, 3))  # (B, C)
        if self.attention is None:
            logits = torch.cat([head(pooled) for head in self.heads], dim=1)
            return Output(logits, pooled, pooled.new_zeros(len(pooled), 0, 0), stages)
        embeddings = self.attention(features)  # (t, B, d)
        logits = torch.cat([head(one) for head, one in zip(self.heads, embeddings, strict=True)], dim=1)
        return Output(logits, pooled, embeddings.transpose(0, 1), stages)

    def freeze_old_sessions(self) -> None:
        """Stop training the heads and KR tokens of every session but the newest (KRT, section 3.3)."""
        for head in self.heads[:-1]:
            head.requires_grad_(False)
        if self.attention is not None:
            for token in list(self.attention.kr)[:-1]:
                token.requires_grad_(False)
