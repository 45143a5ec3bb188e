"""The penalty of elastic weight consolidation, online (Progress & Compress, Schwarz et al., ICML 2018)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def ewc_penalty(
    parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """The sum of F * (theta - theta*)^2: how far parameters are from where they were, weighted by how much they matter.

    Without the factor 1/2 of the paper, as in mammoth, from which the usual weights come.

    Arguments:
        parameters: the parameters being trained, by name; those without a Fisher entry are free.
        anchors: where they were.
        fisher: diagonal Fisher information, by name, each of its parameter's shape.
    """
    terms = [(weight * (parameters[name] - anchors[name]).square()).sum() for name, weight in fisher.items()]
    return torch.stack(terms).sum()
