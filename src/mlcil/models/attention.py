"""Incremental cross-attention: one trained query, one frozen memory token per session (KRT, section 3.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKEN_STD = 0.02  # truncated-normal start of tokens and positions; authors' code
LINEAR_STD = 0.01  # normal start of every linear layer of the block at width 384; authors' code
MLP_RATIO = 4


class AttentionBlock(nn.Module):
    """The layers of a block: attention with a projection, and an MLP, each after a norm.

    Arguments:
        width: d, the size of a token.
        heads: number of attention heads; divides `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, MLP_RATIO * width)
        self.mlp_out = nn.Linear(MLP_RATIO * width, width)

    def with_mlp(self, embedded: Tensor) -> Tensor:
        """What the MLP makes of embeddings (..., d), added to them."""
        result: Tensor = embedded + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(embedded))))
        return result


class CrossAttention(AttentionBlock):
    """One query per head, from the KT token, attends to the patches and to a session's own tokens.

    A session's own tokens are KR_s, or KR_s and KT. All inputs are already normalised.
    """

    def moved_query(self, kt: Tensor) -> Tensor:
        """What a token is multiplied by to get its logit in each head: (1, d) -> (d, heads)."""
        query = self.query(kt).reshape(self.heads, -1) * self.scale  # (heads, d/heads)
        # q.(W x) = (W'q).x: with one query per head, moving the query is cheaper than moving every token.
        return torch.einsum("hc,hcd->dh", query, self._by_head(self.key.weight))

    def weights(self, on_patches: Tensor, on_own: Tensor) -> Tensor:
        """The softmax of one session from its logits on patches (B, P, heads) and own (n, heads): (B, heads, P + n)."""
        logits = torch.cat([on_patches, on_own.expand(len(on_patches), -1, -1)], dim=1)
        return logits.transpose(1, 2).softmax(dim=-1)

    def mix(self, weights: Tensor, patches: Tensor, own: Tensor) -> Tensor:
        """The values of one session at these weights (B, heads, P + n): patches (B, P, d) and own (n, d) -> (B, d)."""
        count = patches.shape[1]
        pooled = weights[..., :count] @ patches + weights[..., count:] @ own  # (B, heads, d)
        mixed = torch.einsum("bhd,hcd->bhc", pooled, self._by_head(self.value.weight))
        result: Tensor = self.project(mixed.flatten(1))
        return result

    def _by_head(self, weight: Tensor) -> Tensor:
        return weight.reshape(self.heads, -1, weight.shape[1])  # (heads, d/heads, d)


class PatchAttention(nn.Module, ABC):
    """What attends to the patches of a feature map with tokens that sessions own.

    Arguments:
        channels: C, of the backbone's feature map.
        grid: (H, W) of the feature map; other sizes get interpolated positions.
        width: d, the size of a token.
    """

    def __init__(self, channels: int, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, width, 1).to(memory_format=torch.channels_last)  # as its gradient
        self.position = nn.Parameter(torch.empty(1, width, *grid))

    @abstractmethod
    def open_session(self, classes: int) -> nn.Module:
        """Add what one more session owns; returns a head that reads the session's part of what `forward` returns."""

    @abstractmethod
    def session_tokens(self) -> list[nn.Parameter]:
        """What each session owns."""

    @abstractmethod
    def by_image(self, embeddings: Any) -> Tensor:
        """What `forward` returns, as (B, rows, d)."""

    @abstractmethod
    def weights(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, heads, H * W and more), the softmax of every session, the patches first."""

    @abstractmethod
    def embed(self, features: Tensor, weights: Tensor) -> Any:
        """`forward` with the softmax given, as from `weights`."""

    def patches(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, P, d)."""
        position: Tensor = self.position
        if position.shape[-2:] != features.shape[-2:]:
            position = F.interpolate(position, features.shape[-2:], mode="bicubic", align_corners=False)
        patches: Tensor = (self.projection(features) + position).flatten(2).transpose(1, 2)
        return patches

    def _initialise(self, *tokens: nn.Parameter) -> None:
        for token in (self.position, *tokens):
            nn.init.trunc_normal_(token, std=TOKEN_STD)
        nn.init.kaiming_normal_(self.projection.weight, mode="fan_out")
        std = LINEAR_STD * (384 / self.position.shape[1]) ** 0.5  # same gain at any width
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class IncrementalCrossAttention(PatchAttention):
    """From a feature map to one embedding per session.

    The query comes from the KT token alone, so the patches and their logits are computed once for all sessions. The
    rest is computed session by session, in products of a shape that never changes: more sessions leave the embeddings
    of the earlier ones as they are, to the bit.

    Arguments:
        attend_to_query: whether the KT token is among keys and values (the authors' code) or not (the paper).
    """

    def __init__(self, channels: int, grid: tuple[int, int], width: int, heads: int, attend_to_query: bool) -> None:
        super().__init__(channels, grid, width)
        self.attend_to_query = attend_to_query
        self.kt = nn.Parameter(torch.empty(1, width))
        self.kr = nn.ParameterList()
        self.attention = CrossAttention(width, heads)
        self._initialise(self.kt)

    def open_session(self, classes: int) -> nn.Module:
        """Add the session's KR token; its head maps (B, d) -> (B, classes)."""
        token = torch.empty_like(self.kt)
        self.kr.append(nn.Parameter(nn.init.trunc_normal_(token, std=TOKEN_STD)))
        width = self.kt.shape[1]
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def session_tokens(self) -> list[nn.Parameter]:
        """The KR tokens."""
        return list(self.kr)

    def by_image(self, embeddings: list[Tensor]) -> Tensor:
        """For each session (B, d) -> (B, t, d)."""
        return torch.stack(embeddings, dim=1)

    def forward(self, features: Tensor) -> list[Tensor]:
        """(B, C, H, W) -> for each session (B, d)."""
        patches, own = self._tokens(features)
        return self._mix(self._weights(patches, own), patches, own)

    def weights(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, heads, H * W + 1 or 2), the softmax of each session: patches, KR_s, and maybe KT."""
        return torch.stack(self._weights(*self._tokens(features)))

    def embed(self, features: Tensor, weights: Tensor) -> list[Tensor]:
        """`forward` with the softmax given."""
        return self._mix(list(weights), *self._tokens(features))

    def _tokens(self, features: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The normalised patches (B, P, d), and for each session its own tokens (1 or 2, d)."""
        own = [torch.cat([kr, self.kt]) if self.attend_to_query else kr for kr in self.kr]
        return self.attention.norm(self.patches(features)), [self.attention.norm(one) for one in own]

    def _weights(self, patches: Tensor, own: list[Tensor]) -> list[Tensor]:
        query = self.attention.moved_query(self.attention.norm(self.kt))
        on_patches = patches @ query  # (B, P, heads), the same for every session
        return [self.attention.weights(on_patches, one @ query) for one in own]

    def _mix(self, weights: list[Tensor], patches: Tensor, own: list[Tensor]) -> list[Tensor]:
        # The residual goes onto the raw KT token.
        attended = [self.kt + self.attention.mix(w, patches, one) for w, one in zip(weights, own, strict=True)]
        return [self.attention.with_mlp(one) for one in attended]
