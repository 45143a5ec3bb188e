"""Weights that let the hard entries of old classes count more (KBK, gradient compensation)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from .asymmetric import asymmetric_terms


@torch.no_grad()
def group_weights(probabilities: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """How far each entry of an old session is from its label, relative to the session's mean.

    With g = |p - y|, the weight is g over the mean of g in the entry's group: the entries of one old session with
    the same label. It is 1 for the newest session, for unknown labels, and in a group whose mean is 0.

    Arguments:
        probabilities: (B, K).
        labels: (B, K), 1 present, 0 absent, -1 unknown.
        sizes: classes of each session, in the order of the columns.

    Returns:
        (B, K) float32, constants to the gradient; their mean in a group is 1.
    """
    distance = (probabilities.float() - labels).abs()  # g
    weights = torch.ones_like(distance)
    stops = list(accumulate(sizes))
    for first, stop in pairwise([0, *stops[:-1]]):  # the columns of one old session
        gap = distance[:, first:stop]
        for sign in (0, 1):
            group = labels[:, first:stop] == sign
            mean = (gap * group).sum() / group.sum().clamp(min=1)
            weights[:, first:stop] = torch.where(group & (mean > 0), gap / mean, weights[:, first:stop])
    return weights


def reweighted_loss(logits: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """The asymmetric loss of each image with every term times its `group_weights`, twice (B, K) -> (B,)."""
    weights = group_weights(torch.sigmoid(logits.float()), labels, sizes)
    return (weights * asymmetric_terms(logits, labels)).sum(dim=1)
