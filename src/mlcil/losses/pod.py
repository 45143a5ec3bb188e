"""Distillation of pooled stage outputs (PODNet, Douillard et al., ECCV 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

TINY = 1e-12  # a map whose largest value is below this counts as all zero


def pod_spatial(now: Sequence[Tensor], before: Sequence[Tensor], stages: int | None = None) -> Tensor:
    """Mean over stages of the distance between the pooled maps of two models (PODNet, section 3.1).

    Exactly 0, with a gradient of 0, for identical maps; unchanged by rescaling either model's maps of a stage.

    Arguments:
        now, before: for each stage (B, C_s, H_s, W_s), of the model being trained and of the old model; no gradient
            flows into the latter.
        stages: what the sum is divided by, by default how many stages are given. Stages that are left out, because
            they are frozen and so equal, count as 0.

    Returns:
        (B,).
    """
    count = len(now) if stages is None else stages
    if not 0 < len(now) <= count:
        raise ValueError(f"got {len(now)} stages of {count}, expected at least one and no more than there are")
    return sum_of_distances(now, before) / count


def sum_of_distances(now: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """The Euclidean distance of each image's pooled maps, summed over stages, (B,)."""
    distances = [
        # Of this norm torch defines the gradient at 0 as 0; a square root of a sum would give NaN.
        torch.linalg.vector_norm(pooled(ours) - pooled(theirs.detach()), dim=1)
        for ours, theirs in zip(now, before, strict=True)
    ]
    return torch.stack(distances).sum(dim=0)


def pooled(maps: Tensor) -> Tensor:
    """Squared maps summed over width and over height, one vector of length 1 for each image.

    Arguments:
        maps: (B, C, H, W).

    Returns:
        (B, C * (H + W)) float32.
    """
    maps = maps.float()
    # The result does not depend on the maps' scale, so neither does its gradient, and squares cannot overflow.
    largest = maps.detach().abs().amax(dim=(1, 2, 3), keepdim=True)
    squares = (maps / largest.clamp(min=TINY)).square()
    profiles = torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], dim=1)
    return normalize(profiles, dim=1)
