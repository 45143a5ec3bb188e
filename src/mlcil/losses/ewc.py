"""The penalty of elastic weight consolidation, online (Progress & Compress, Schwarz et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def ewc_penalty(
    parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """How far parameters are from where they were, weighted by how much the past depends on them.

    Without the factor 1/2 of the paper, as in mammoth, from which the usual weights come.

    Arguments:
        parameters: the parameters being trained, by name; those without a Fisher entry are free.
        anchors: where they were; no gradient flows into them.
        fisher: diagonal Fisher information, by name, each of its parameter's shape.

    Returns:
        A scalar, 0 if `fisher` is empty.
    """
    terms = [weighted_square(name, parameters[name], anchors[name], weight) for name, weight in fisher.items()]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def weighted_square(name: str, parameter: Tensor, anchor: Tensor, weight: Tensor) -> Tensor:
    """The sum of F * (theta - theta*)^2 of one parameter."""
    # A head that grew from one row would otherwise be broadcast in silence.
    if not parameter.shape == anchor.shape == weight.shape:
        raise ValueError(
            f"{name}: got an anchor of {tuple(anchor.shape)} and Fisher information of {tuple(weight.shape)}, "
            f"expected the parameter's shape {tuple(parameter.shape)}"
        )
    difference = parameter.float() - anchor.detach().float()
    return (weight.detach().float() * difference.square()).sum()
