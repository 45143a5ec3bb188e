"""Losses that hold outputs to what they were: LwF (Li and Hoiem, 2016) and DER++ (Buzzega et al., 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

LARGEST_LOGIT = 1e30  # larger ones count as this large: a sum of many such terms is still a float32
LARGEST_DIFFERENCE = 1e15  # of two logits that is squared


def sigmoid_distillation(now: Tensor, before: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy of each old class to the old model's probability, both softened (LwF, for sigmoids), (B,).

    Softmax would couple classes that are independent here, so each class is one binary distribution. The smallest
    value is the old model's entropy, not 0. There is no factor T^2, as in the LwF paper. A class costs at most 1e30,
    where the loss saturates, so that sums stay finite.

    Arguments:
        now: (B, K') logits of the model being trained, of which the first K are compared, K <= K'.
        before: (B, K) logits of the old model; no gradient flows into them.
        temperature: T, divides both logits.
    """
    target = torch.sigmoid(before.detach().float() / temperature)  # (B, K)
    softened = (now[:, : before.shape[1]].float() / temperature).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    return binary_cross_entropy_with_logits(softened, target, reduction="none").sum(dim=1)


def logit_distance(now: Tensor, stored: Tensor, known: Tensor) -> Tensor:
    """Mean squared difference to stored logits over the elements that were stored (DER++); saturates at 1e30.

    Arguments:
        now: (B, K) logits of the model being trained.
        stored: (B, K) logits kept with the images; anything, NaN too, where not known.
        known: (B, K) bool, which logits existed when they were stored. The result is 0 where there are none.
    """
    # Masked before squaring: the square's gradient would multiply a NaN by 0.
    difference = torch.where(known, now.float() - stored.detach().float(), 0.0)
    return difference.clamp(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE).square().sum() / known.sum().clamp(min=1)
