"""Adam with L2 weight decay, the one-cycle schedule, and a running mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ..models.tagger import TaggerNet

START_DIVISOR, END_DIVISOR = 25.0, 1e4  # the rate starts at peak / 25 and ends at start / 10^4
MOMENTUM_HIGH, MOMENTUM_LOW = 0.95, 0.85  # Adam's first beta moves against the rate


def make_optimiser(tagger: TaggerNet, lr: float, weight_decay: float, fused: bool = True) -> Adam:
    """Adam over the trainable parameters, L2 decay on those of two or more dimensions only.

    Arguments:
        fused: update each tensor in one pass over memory; it cannot be used where gradients are scaled and clipped.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in tagger.parameters():
        if parameter.requires_grad:
            groups.setdefault(weight_decay if parameter.ndim > 1 else 0.0, []).append(parameter)
    return Adam(
        [{"params": group, "lr": lr, "peak": lr, "weight_decay": decay} for decay, group in groups.items()],
        fused=fused,
    )


def one_cycle(step: int, total: int, warmup: float) -> tuple[float, float]:
    """The learning rate, as a part of its peak, and Adam's first beta at a step (Smith, 2018).

    Equal to `torch.optim.lr_scheduler.OneCycleLR` wherever the warm-up lasts a step, but a function of the
    step alone: nothing to save or restore, and no step count at which it divides by zero.
    """
    rise = warmup * total - 1
    if step <= rise:
        where = step / rise if rise > 0 else 1.0
        return _cosine(1 / START_DIVISOR, 1.0, where), _cosine(MOMENTUM_HIGH, MOMENTUM_LOW, where)
    fall = total - 1 - max(rise, 0.0)
    where = (step - max(rise, 0.0)) / fall if fall > 0 else 0.0  # a single step is taken at the peak
    return _cosine(1.0, 1 / START_DIVISOR / END_DIVISOR, where), _cosine(MOMENTUM_LOW, MOMENTUM_HIGH, where)


def set_rate(optimiser: Optimizer, step: int, total: int, warmup: float) -> None:
    """Set the learning rates and betas of a step."""
    part, momentum = one_cycle(step, total, warmup)
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * part
        group["betas"] = (momentum, group["betas"][1])


def optimiser_state(optimiser: Optimizer) -> dict[str, Tensor]:
    """Adam's moments as named tensors."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{key}": value for index, one in state.items() for key, value in one.items()}


def load_optimiser_state(optimiser: Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimiser_state`."""
    parameters = [one for group in optimiser.param_groups for one in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = _laid_out_like(parameters[int(index)], value)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


class WeightAverage:
    """An exponential running mean of what is trained of a model, and of the statistics that go with it.

    Arguments:
        tagger: the model.
        decay: how much of the mean is kept at a step; 0.9997 is common.
    """

    def __init__(self, tagger: TaggerNet, decay: float) -> None:
        self.decay = decay
        self.mean = {name: value.clone() for name, value in _floating(tagger)}

    @torch.no_grad()
    def update(self, tagger: TaggerNet) -> None:
        """Move the mean towards the present weights."""
        now = [value for _, value in _floating(tagger)]
        torch._foreach_lerp_(list(self.mean.values()), now, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, tagger: TaggerNet) -> None:
        """Put the mean in place of the weights."""
        for name, value in _floating(tagger):
            value.copy_(self.mean[name])


def _laid_out_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A moment with its elements in the order of the parameter's: the fused step goes over memory as it lies."""
    if value.shape != parameter.shape:
        return value  # the number of steps
    return torch.empty_like(parameter, device=value.device, requires_grad=False).copy_(value)


def _floating(tagger: TaggerNet) -> Iterable[tuple[str, Tensor]]:
    """What training changes: parameters that are not frozen, and the statistics of modules that have such or none.

    Anything else would come out as it is but for the sign of a zero, and then a frozen stem would be another one.
    """
    changing = {name for name, parameter in tagger.named_parameters() if parameter.requires_grad}
    for prefix, module in tagger.named_modules():
        own = list(module.parameters(recurse=False))
        if any(one.requires_grad for one in own) or (not own and hasattr(module, "running_var")):
            changing |= {f"{prefix}.{name}" if prefix else name for name, _ in module.named_buffers(recurse=False)}
    state = tagger.state_dict()
    return ((name, value) for name, value in state.items() if value.is_floating_point() and name in changing)


def _cosine(start: float, end: float, where: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * where) + 1)
