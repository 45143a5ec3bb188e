"""Incremental cross-attention: one trained query, one frozen memory token per session (KRT, section 3.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKEN_STD = 0.02  # truncated-normal start of tokens and positions; authors' code
LINEAR_STD = 0.01  # normal start of every linear layer of the block at width 384; authors' code
MLP_RATIO = 4
TOGETHER = 4  # sessions of one matrix product on a CPU


class _StackedLinear(torch.autograd.Function):
    """A linear layer over (t, B, d) whose result for one of the t rows does not depend on t.

    One matrix product over t * B rows is free to round differently when t grows. An accelerator gets one
    batched product. On a CPU even that may share its threads out otherwise, so there the t go by fours, the last
    ones filled up with zeros: each is always at the same place of a product of the same shape. A product of one
    alone takes as long as of four. The gradient has no such duty and takes the flat form.
    """

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(stacked, weight)
        ctx.has_bias = bias is not None
        if stacked.device.type != "cpu":
            weights = weight.T.expand(len(stacked), -1, -1)  # (t, d, out)
            return torch.bmm(stacked, weights) if bias is None else torch.baddbmm(bias, stacked, weights)
        count, batch, width = stacked.shape
        filled = F.pad(stacked, (0, 0, 0, 0, 0, -count % TOGETHER)).view(-1, TOGETHER * batch, width)
        rows = [one @ weight.T if bias is None else torch.addmm(bias, one, weight.T) for one in filled]
        return torch.stack(rows).view(-1, batch, len(weight))[:count]  # (t, B, out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        stacked, weight = ctx.saved_tensors
        flat = gradients[0].flatten(0, 1)  # (t * B, out)
        into = (flat @ weight).view_as(stacked) if ctx.needs_input_grad[0] else None
        on_weight = flat.T @ stacked.flatten(0, 1) if ctx.needs_input_grad[1] else None
        return into, on_weight, flat.sum(0) if ctx.has_bias else None


class StackedLinear(nn.Linear):
    """`nn.Linear` for (t, B, d) inputs, bit-stable as t grows."""

    def forward(self, stacked: Tensor) -> Tensor:
        """(t, B, d) -> (t, B, out)."""
        if torch.is_autocast_enabled(stacked.device.type):
            return super().forward(stacked)  # reduced precision: speed over bit-stability
        result: Tensor = _StackedLinear.apply(stacked, self.weight, self.bias)
        return result


class _Patches(NamedTuple):
    """What the softmax over patches contributes, whichever KR token joins it."""

    peak: Tensor  # (B, heads, 1) largest logit
    mass: Tensor  # (B, heads, 1) sum of exp(logit - peak)
    value: Tensor  # (B, heads, d/heads) sum of exp(logit - peak) * v


class CrossAttention(nn.Module):
    """The KT token attends to [KR_s, patches], or [KT, KR_s, patches], for all sessions s in one pass.

    The query comes from the KT token alone, so the patches' logits and values are the same for every
    session: they are computed once, and each session only adds its own KR token to the softmax.

    Arguments:
        width: d, the size of a token.
        heads: number of attention heads; divides `width`.
        attend_to_query: whether the KT token is among keys and values (the authors' code) or not (the paper).
    """

    def __init__(self, width: int, heads: int, attend_to_query: bool) -> None:
        super().__init__()
        self.heads, self.scale, self.attend_to_query = heads, (width // heads) ** -0.5, attend_to_query
        self.query = nn.Linear(width, width, bias=False)
        self.key = StackedLinear(width, width, bias=False)
        self.value = StackedLinear(width, width, bias=False)
        self.project = StackedLinear(width, width)

    def forward(self, kt: Tensor, kr: Tensor, patches: Tensor) -> Tensor:
        """Attend; all inputs are already normalised.

        Arguments:
            kt: (1, d).
            kr: (t, d).
            patches: (B, P, d).

        Returns:
            (t, B, d).
        """
        query = self._split(self.query(kt))[0] * self.scale  # (heads, d/heads)
        patch = self._over_patches(query, patches)
        tokens = self._others(kt, kr)
        logits = [(self._split(self.key(one)) * query).sum(-1, keepdim=True) for one in tokens]  # (t, 1, heads, 1)
        with torch.no_grad():
            peak = torch.stack([torch.maximum(patch.peak, one) for one in logits]).amax(0)  # (t, B, heads, 1)
        share = (patch.peak - peak).exp()
        mass, mixed = patch.mass * share, patch.value * share  # (t, B, heads, 1 and d/heads)
        for one, logit in zip(tokens, logits, strict=True):
            share = (logit - peak).exp()
            mass, mixed = mass + share, mixed + share * self._split(self.value(one))
        result: Tensor = self.project((mixed / mass).flatten(2))
        return result

    def weights(self, kt: Tensor, kr: Tensor, patches: Tensor) -> Tensor:
        """How much each session's query looks at each patch, (t, B, heads, P)."""
        return self.all_weights(kt, kr, patches)[..., : patches.shape[1]]

    def all_weights(self, kt: Tensor, kr: Tensor, patches: Tensor) -> Tensor:
        """The whole softmax, (t, B, heads, P + 1 or 2): the patches, then KR_s and, where it takes part, KT."""
        query = self._split(self.query(kt))[0] * self.scale
        on_patches = self._patch_logits(query, patches).expand(len(kr), -1, -1, -1)  # (t, B, heads, P)
        on_tokens = [(self._split(self.key(one)) * query).sum(-1, keepdim=True) for one in self._others(kt, kr)]
        spread = [one.expand(-1, len(patches), -1, -1) for one in on_tokens]
        return torch.cat([on_patches, *spread], dim=-1).softmax(dim=-1)

    def mix(self, weights: Tensor, kt: Tensor, kr: Tensor, patches: Tensor) -> Tensor:
        """`forward` with the softmax given from outside, so that it can be changed or derived by.

        Arguments:
            weights: (t, B, heads, P + 1 or 2), as from `all_weights`.

        Returns:
            (t, B, d).
        """
        count = patches.shape[1]
        pooled = weights[..., :count] @ patches  # (t, B, heads, d)
        mixed = torch.einsum("tbhd,hcd->tbhc", pooled, _by_head(self.value.weight, self.heads))
        for place, one in enumerate(self._others(kt, kr), start=count):
            mixed = mixed + weights[..., place, None] * self._split(self.value(one))
        result: Tensor = self.project(mixed.flatten(2))
        return result

    def _others(self, kt: Tensor, kr: Tensor) -> list[Tensor]:
        """The tokens beside the patches, each (t, 1, d)."""
        return [kr[:, None], kt.expand(len(kr), 1, -1)] if self.attend_to_query else [kr[:, None]]

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.reshape(*tokens.shape[:-1], self.heads, -1)  # (..., heads, d/heads)

    def _patch_logits(self, query: Tensor, patches: Tensor) -> Tensor:
        # q.(W x) = (W'q).x: with one query per head, moving the query is cheaper than moving every patch.
        moved = torch.einsum("hc,hcd->dh", query, _by_head(self.key.weight, self.heads))
        return (patches @ moved).transpose(1, 2)  # (B, heads, P)

    def _over_patches(self, query: Tensor, patches: Tensor) -> _Patches:
        logits = self._patch_logits(query, patches)
        peak = logits.detach().amax(-1, keepdim=True)
        share = (logits - peak).exp()
        pooled = share @ patches  # (B, heads, d)
        value = torch.einsum("bhd,hcd->bhc", pooled, _by_head(self.value.weight, self.heads))
        return _Patches(peak, share.sum(-1, keepdim=True), value)


def _by_head(weight: Tensor, heads: int) -> Tensor:
    return weight.reshape(heads, -1, weight.shape[1])  # (heads, d/heads, d)


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

    Arguments:
        channels: C, of the backbone's feature map.
        grid: (H, W) of the feature map; other sizes get interpolated positions.
        width: d, the size of a token (384 on COCO, 768 on VOC; KRT, section 4.1).
        heads: attention heads (8; KRT, section 4.1).
        attend_to_query: see `CrossAttention`.
    """

    def __init__(self, channels: int, grid: tuple[int, int], width: int, heads: int, attend_to_query: bool) -> None:
        super().__init__(channels, grid, width)
        self.kt = nn.Parameter(torch.empty(1, width))
        self.kr = nn.ParameterList()
        self.norm = nn.LayerNorm(width)
        self.attention = CrossAttention(width, heads, attend_to_query)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = StackedLinear(width, MLP_RATIO * width)
        self.mlp_out = StackedLinear(MLP_RATIO * width, width)
        self._initialise(self.kt)

    def grow(self) -> None:
        """Add the KR token of one more session."""
        token = torch.empty_like(self.kt)
        self.kr.append(nn.Parameter(nn.init.trunc_normal_(token, std=TOKEN_STD)))

    def open_session(self, classes: int) -> nn.Module:
        """Add the session's KR token; its head maps (B, d) -> (B, classes)."""
        self.grow()
        width = self.kt.shape[1]
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def session_tokens(self) -> list[nn.Parameter]:
        """The KR tokens."""
        return list(self.kr)

    def by_image(self, embeddings: Tensor) -> Tensor:
        """(t, B, d) -> (B, t, d)."""
        return embeddings.transpose(0, 1)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, d), one embedding per session."""
        patches, kr = self._tokens(features)
        return self._after(self.attention(self.norm(self.kt), self.norm(kr), self.norm(patches)))

    def weights(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, heads, H * W + 1 or 2), the softmax of every session; see `CrossAttention`."""
        patches, kr = self._tokens(features)
        return self.attention.all_weights(self.norm(self.kt), self.norm(kr), self.norm(patches))

    def embed(self, features: Tensor, weights: Tensor) -> Tensor:
        """`forward` with the softmax given, as from `weights`: (B, C, H, W) -> (t, B, d)."""
        patches, kr = self._tokens(features)
        return self._after(self.attention.mix(weights, self.norm(self.kt), self.norm(kr), self.norm(patches)))

    def _after(self, attended: Tensor) -> Tensor:
        embedded = self.kt + attended  # residual onto the raw KT token
        result: Tensor = embedded + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(embedded))))
        return result

    def maps(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, H, W), where each session's query looks, averaged over heads."""
        patches, kr = self._tokens(features)
        weights = self.attention.weights(self.norm(self.kt), self.norm(kr), self.norm(patches))
        return weights.mean(dim=2).reshape(len(kr), len(features), *features.shape[-2:])

    def _tokens(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.patches(features), torch.cat(list(self.kr))  # (B, P, d) and (t, d)
