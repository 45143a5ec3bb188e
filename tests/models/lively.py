"""Seeded numbers, and modules whose weights are large enough to matter."""

import torch


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lively(module, seed=0, scale=0.3):
    """Weights large enough for the softmax to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module
