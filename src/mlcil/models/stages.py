"""Taking a network apart: its stages, and the chain of modules that its forward pass is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import UserError


def stage_parameters(net: Any) -> list[list[str]]:
    """The names of a net's parameters, stem first, stage by stage."""
    from timm.models import group_parameters

    return list(group_parameters(net, net.group_matcher(coarse=True)).values())


def first_parameters(net: nn.Module, amount: str, called: str) -> set[str]:
    """The names of the parameters of a number of stages, or of all before the module of that name.

    Raises:
        UserError: the net, `called` so, has no such module and not as many stages.
    """
    stages = stage_parameters(net)
    if amount.isdecimal() and int(amount) <= len(stages):
        return {name for stage in stages[: int(amount)] for name in stage}
    names = [name for name, _ in net.named_parameters()]
    first = next((place for place, name in enumerate(names) if name.startswith(f"{amount}.")), 0)
    if first:
        return set(names[:first])
    last = list(dict.fromkeys(name.rpartition(".")[0] for name in names))[-4:]
    raise UserError(
        f"freeze: got {amount!r}, expected none, all, 0 to {len(stages)}, the stages of {called}, or one of its "
        f"modules but the first, such as {', '.join(last)}"
    )


def stage_modules(net: Any) -> list[nn.Module]:
    """The modules whose outputs are the maps of a net's last four stages; empty where it does not say."""
    return [_last_link(net.get_submodule(one["module"])) for one in getattr(net, "feature_info", [])[-4:]]


def freeze_parameters(net: nn.Module, names: set[str]) -> list[nn.Module]:
    """Stop training the named parameters; return the modules, at any depth, that hold no others."""
    for name, parameter in net.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    # A transformer's root owns frozen tokens and trained blocks: it is not among them.
    every = [(module, list(module.parameters())) for module in net.modules()]
    return [module for module, own in every if own and not any(one.requires_grad for one in own)]


def module_chain(net: Any, images: Tensor) -> list[nn.Module]:
    """The modules that, called one after another, are `net.forward_features`; empty if it is no plain chain.

    A probe runs through the net, and each module must receive the very tensor that the one before gave.
    Convolutional nets are such chains; a transformer that adds positions between modules is not.
    """
    seen: list[tuple[nn.Module, Any, Any]] = []
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, output: seen.append((module, inputs[0] if inputs else None, output))
        )
        for module in _links(net)
    ]
    with torch.no_grad():
        result = net.forward_features(images)
    for hook in hooks:
        hook.remove()
    current: Any = images
    for _, given, output in seen:
        if given is not current:
            return []
        current = output
    return [module for module, _, _ in seen] if current is result else []


def frozen_length(chain: list[nn.Module]) -> int:
    """How many modules at the start of the chain have no trainable parameter."""
    trained = (any(one.requires_grad for one in module.parameters()) for module in chain)
    return next((place for place, is_trained in enumerate(trained) if is_trained), len(chain))


def _last_link(module: nn.Module) -> nn.Module:
    """The module that gives a sequence's output; `module_chain` calls it and not the sequence."""
    while isinstance(module, nn.Sequential):
        module = module[-1]
    return module


def _links(net: nn.Module) -> Iterator[nn.Module]:
    for child in net.children():
        if isinstance(child, nn.Sequential):
            yield from _links(child)
        else:
            yield child
