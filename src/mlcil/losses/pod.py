"""Distillation of pooled stage outputs (PODNet, Douillard et al., ECCV 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

TINY = 1e-12  # a map whose largest value is below this counts as all zero


def pod_spatial(now: Sequence[Tensor], before: Sequence[Tensor], stages: int) -> Tensor:
    """Mean over stages of the Euclidean distance between the pooled maps of two models (PODNet, section 3.1), (B,).

    Exactly 0, with a gradient of 0, for identical maps; unchanged by rescaling either model's maps of a stage.

    Arguments:
        now, before: for each stage (B, C_s, H_s, W_s), of the model being trained and of the old model; no gradient
            flows into the latter.
        stages: what the sum is divided by. Stages that are left out, because they are frozen and so equal, count as 0.
    """
    distances = [
        # Of this norm torch defines the gradient at 0 as 0; a square root of a sum would give NaN.
        torch.linalg.vector_norm(pooled(ours) - pooled(theirs.detach()), dim=1)
        for ours, theirs in zip(now, before, strict=True)
    ]
    return torch.stack(distances).sum(dim=0) / stages


def pooled(maps: Tensor) -> Tensor:
    """Squared maps summed over width and over height, to length 1: (B, C, H, W) -> (B, C * (H + W)) float32."""
    maps = maps.float()
    # The result does not depend on the maps' scale, so neither does its gradient, and squares cannot overflow.
    largest = maps.detach().abs().amax(dim=(1, 2, 3), keepdim=True)
    squares = (maps / largest.clamp(min=TINY)).square()
    profiles = torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], dim=1)
    return normalize(profiles, dim=1)
