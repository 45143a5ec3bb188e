"""The asymmetric loss for multi-label classification (Ridnik et al., ICCV 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA_NEGATIVE, GAMMA_POSITIVE = 4.0, 0.0  # how strongly easy negatives and positives are discounted; ASL, section 3
CLIP = 0.05  # negatives below this probability cost nothing; ASL, section 2.3
FLOOR = 1e-8  # keeps the logarithm finite


def asymmetric_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each image: asymmetric focal terms summed over the columns that are known.

    The focusing weight is a constant to the gradient, as in the loss's reference implementation.

    Arguments:
        logits: (B, K).
        labels: (B, K), 1 present, 0 absent, -1 unknown. Unknown entries contribute exactly nothing.

    Returns:
        (B,), not averaged: the caller decides how images are weighted.
    """
    return asymmetric_terms(logits, labels).sum(dim=1)


def asymmetric_terms(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each image and class, (B, K); see `asymmetric_loss`."""
    present, absent = labels == 1, labels == 0
    chance = torch.sigmoid(logits.float())  # (B, K)
    complement = (1 - chance + CLIP).clamp(max=1)  # probability of absence, shifted: 1 - p_m
    log_likelihood = torch.where(present, chance.clamp(min=FLOOR).log(), complement.clamp(min=FLOOR).log())
    with torch.no_grad():
        right = torch.where(present, chance, complement)
        gamma = torch.where(present, GAMMA_POSITIVE, GAMMA_NEGATIVE)
        weight = (1 - right).clamp(min=0).pow(gamma)
    return torch.where(present | absent, -weight * log_likelihood, 0.0)
