"""The topology-preserving loss: similarities between features stay as they were (TPCIL, Tao et al., ECCV 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

SHORTEST = 1e-6  # shortest length that is still scaled to 1
FLAT = 1e-12  # similarities whose variance is not above this differ by rounding only


def topology_loss(now: Tensor, before: Tensor, pairs: Tensor | None = None) -> Tensor:
    """1 - the Pearson correlation of the cosine similarities of pairs of images, now and before.

    A pair of an image with itself is left out: its similarity is always 1 and would inflate the correlation.

    Arguments:
        now: (M, C) features of the model being trained.
        before: (M, C') features the same images had; no gradient flows into them.
        pairs: (M, M) bool, symmetric, which pairs to correlate; all by default.

    Returns:
        A scalar; 0 without a gradient where the correlation is undefined, that is with fewer than two pairs or if
        all similarities of a side are equal.
    """
    ours, theirs = similarities(now), similarities(before.detach())  # (M, M)
    weight = torch.ones_like(ours) if pairs is None else pairs.to(ours)
    return 1 - correlation(ours, theirs, weight.triu(diagonal=1))


def similarities(features: Tensor) -> Tensor:
    """Cosine similarities of all pairs, (M, C) -> (M, M) float32."""
    # Under autocast the product would be taken in half precision, coarser than the changes to be seen.
    with torch.autocast(features.device.type, enabled=False):
        unit = normalize(features.float(), dim=1, eps=SHORTEST)
        return unit @ unit.T


def correlation(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Pearson's correlation of the elements (M, M) whose weight is 1 and not 0; 1 where it is undefined.

    Exactly 1 for identical inputs: the three sums are then equal, and sqrt(x * x) = x in IEEE arithmetic.
    """
    share = weight / weight.sum().clamp(min=1)
    first, second = first - (share * first).sum(), second - (share * second).sum()
    covariance, variance, other = (share * torch.stack([first * second, first * first, second * second])).sum((1, 2))
    # No pair or one has no variance either.
    defined = (variance > FLAT) & (other > FLAT)
    # Clamped before the root: at 0 its slope is infinite, and the unused branch would make the gradient NaN.
    ratio = covariance / (variance.clamp(min=FLAT) * other.clamp(min=FLAT)).sqrt()
    return torch.where(defined, ratio, 1.0)
