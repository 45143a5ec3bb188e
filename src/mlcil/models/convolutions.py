"""The convolutions of a network as they are, computed in less time on CPUs.

There most of a small network's time goes into moving memory. Three things spare some of it:
a batch norm whose statistics stand still becomes part of the convolution before it; the gradient of a pointwise
convolution is two matrix products; and an activation is done in place only where that needs no copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CLOSE = 1e-6  # of the largest value: how far a network may be from itself after folding, in double precision

WIDE = 128  # channels from which a pointwise convolution's gradient gains from being matrix products

# Their gradient needs the input, of which doing them in place keeps a copy; ReLU's needs the output alone.
COPIED_IN_PLACE = (nn.Hardtanh, nn.SiLU, nn.Hardswish, nn.Mish, nn.ELU, nn.SELU, nn.CELU)


class _Pointwise(torch.autograd.Function):
    """A 1x1 convolution of a channels-last map; its gradients as matrix products, which CPUs do better."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(images, weight)
        return torch.conv2d(images, weight)  # (B, out, H, W)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        images, weight = ctx.saved_tensors
        rows = _rows(gradients[0])  # (B * H * W, out)
        into, on_weight = None, None
        if ctx.needs_input_grad[0]:
            batch, channels, height, width = images.shape
            into = (rows @ weight.flatten(1)).view(batch, height, width, channels).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[1]:
            on_weight = (rows.T @ _rows(images)).as_strided(weight.shape, weight.stride())  # 1x1: the same memory
        return into, on_weight


class Convolution(nn.Conv2d):
    """`nn.Conv2d`, that a network's own become; `after` is the batch norm to take in, if there is one."""

    after: tuple[nn.BatchNorm2d, ...] = ()  # in a tuple: it is no part of this module

    def forward(self, images: Tensor) -> Tensor:
        """As `nn.Conv2d`, followed by the batch norm where that stands still."""
        if self.after and stands_still(self.after[0], images):
            result: Tensor = self._conv_forward(images, *self._folded(self.after[0]))
        elif self._has_plain_gradient(images):
            result = _Pointwise.apply(images, self.weight)
        else:
            result = super().forward(images)
        return result

    def _folded(self, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Weight and bias that do both at once, the former in channels-last."""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        scale = (variance + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -mean if self.bias is None else self.bias - mean
        bias = shift * scale if norm.bias is None else torch.addcmul(norm.bias, shift, scale)
        return self.weight * scale[:, None, None, None], bias

    def _has_plain_gradient(self, images: Tensor) -> bool:
        return (
            self.kernel_size == self.stride == (1, 1)
            and self.groups == 1
            and min(self.in_channels, self.out_channels) >= WIDE
            and self.bias is None
            and self.padding == (0, 0)
            and images.device.type == "cpu"
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and images.is_contiguous(memory_format=torch.channels_last)
        )


class _Folded:
    """What a batch norm becomes that its convolution may take in; comes before the norm's own class."""

    def forward(self: Any, images: Tensor) -> Tensor:
        """As the norm, or where the convolution did that already, what else the class does."""
        if not stands_still(self, images):
            return super().forward(images)  # type: ignore[misc, no-any-return]
        for name in ("drop", "act"):  # of timm's `BatchNormAct2d`
            images = getattr(self, name)(images) if hasattr(self, name) else images
        return images


def stands_still(norm: nn.BatchNorm2d, images: Tensor) -> bool:
    """Whether a batch norm is one fixed linear map, on a device where it pays to take it in."""
    return not norm.training and images.device.type == "cpu"


def make_quick(net: nn.Module, images: Tensor) -> None:
    """Let the convolutions of a network do all of the above, if it then gives what it gave before.

    Parameters, their names and the modules stay; some modules change their class.

    Arguments:
        net: has `forward_features`.
        images: (1, 3, H, W) to try it on.
    """
    trial, images = _shaken(net), images.double()
    expected = _features(trial, images)
    pairs = _pairs(trial, images)
    _change(trial, pairs)
    got = _features(trial, images)
    # A norm's input that something else also reads must not be changed: it shows here.
    close = torch.allclose(got, expected, rtol=0.0, atol=CLOSE * float(expected.abs().max()))
    _change(net, pairs if close else [])


def copied_in_place(net: nn.Module) -> list[nn.Module]:
    """The activations that a network does in place and that keep a copy in training if they do."""
    return [one for one in net.modules() if isinstance(one, COPIED_IN_PLACE) and getattr(one, "inplace", False)]


def spare_copies(activations: list[nn.Module]) -> None:
    """Do these in place where that needs no copy: outside of training."""
    for module in activations:
        module.inplace = not module.training  # type: ignore[assignment]


@contextmanager
def uncounted(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Batch norms see a batch that does not count: one that a backward pass computes again."""
    norms = [one for module in modules for one in module.modules() if isinstance(one, _BatchNorm)]
    before: list[tuple[Any, Any, Any]] = [
        (one, one.momentum, one.num_batches_tracked.clone()) for one in norms if one.num_batches_tracked is not None
    ]
    for norm, _, _ in before:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)


def _change(net: nn.Module, pairs: Sequence[tuple[str, str]]) -> None:
    for module in net.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = Convolution
    for convolution, norm in pairs:
        one, other = net.get_submodule(convolution), net.get_submodule(norm)
        assert isinstance(one, Convolution)
        assert isinstance(other, nn.BatchNorm2d)
        one.after = (other,)
        kind: Any = type(other)
        other.__class__ = _folded_class(kind)


@cache
def _folded_class(norm: Any) -> Any:
    return type(f"Folded{norm.__name__}", (_Folded, norm), {"__module__": __name__})


def __getattr__(name: str) -> Any:
    """The classes of folded norms by their names, for whoever unpickles one."""
    if name == "FoldedBatchNorm2d":
        return _folded_class(nn.BatchNorm2d)
    if name == "FoldedBatchNormAct2d":
        from timm.layers.norm_act import BatchNormAct2d

        return _folded_class(BatchNormAct2d)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _pairs(net: Any, images: Tensor) -> list[tuple[str, str]]:
    """The names of each convolution and the norm that gets the very tensor it gave, both called once."""
    names = {module: name for name, module in net.named_modules()}
    calls: list[tuple[nn.Module, Any, Any]] = []
    kinds = (nn.Conv2d, nn.BatchNorm2d)
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: calls.append((module, inputs[0], output)))
        for module in names
        if isinstance(module, kinds)
    ]
    _features(net, images)
    for hook in hooks:
        hook.remove()
    called = [module for module, _, _ in calls]
    return [
        (names[module], names[after])
        for (module, _, output), (after, given, _) in pairwise(calls)
        if type(module) is nn.Conv2d and _can_fold(after) and given is output
        if called.count(module) == called.count(after) == 1
    ]


def _can_fold(norm: nn.Module) -> bool:
    known = type(norm) is nn.BatchNorm2d or type(norm).__name__ == "BatchNormAct2d"
    return known and getattr(norm, "running_mean", None) is not None


def _shaken(net: nn.Module) -> nn.Module:
    """A copy in double precision whose norms do something: those of a new network change nothing."""
    shaken, generator = copy.deepcopy(net).double().eval(), torch.Generator().manual_seed(0)
    for module in shaken.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.running_mean, module.running_var, module.weight, module.bias):
                if value is not None:
                    value.data.add_(0.1 * torch.rand(value.shape, generator=generator))
    return shaken


@torch.no_grad()
def _features(net: Any, images: Tensor) -> Tensor:
    result: Tensor = net.forward_features(images)
    return result


def _rows(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])  # (B, C, H, W) -> (B * H * W, C)
