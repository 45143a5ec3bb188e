"""Saving what an object declares: `saved` names attributes, and this module turns them into tensors and JSON and back.

    class Counter:
        saved = ("counts", "history")

Each class of a hierarchy lists only what it adds. An attribute may hold a tensor, a NumPy array, a plain value, None,
or lists, tuples and dictionaries of these. It may also hold a dataclass, a NamedTuple or another object with `saved`:
then a freshly made owner must have one there as well, which tells the type or is filled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class State(NamedTuple):
    """What an object keeps: tensors by name, and values for JSON."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def state_of(owner: object) -> State:
    """Everything that the object declares as `saved`; the tensors are its own, not copies.

    Raises:
        TypeError: an attribute holds something that cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    return State(tensors, _pack_object(owner, "", tensors))


def load_state_of(owner: object, state: State, device: torch.device | None = None) -> None:
    """The inverse of `state_of`, on an object freshly made.

    Arguments:
        device: where tensors go that were not in the computer's main memory.
    """
    for name, packed in state.values.items():
        setattr(owner, name, _unpack(packed, getattr(owner, name), state.tensors, device))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with `prefix` before each name."""
    return {prefix + key: value for key, value in tensors.items()}


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with `prefix`, by the rest of their name."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def divided(state: State, names: Sequence[str]) -> tuple[State, State]:
    """The state of an object in two: without these attributes of its "saved" ones, and what is saved of them alone."""
    rest = {
        name: value
        for name, value in state.tensors.items()
        if any(name == one or name.startswith(f"{one}.") for one in names)
    }
    tensors = {name: value for name, value in state.tensors.items() if name not in rest}
    saved = {name: value for name, value in state.values["saved"].items() if name not in names}
    others = {name: value for name, value in state.values["saved"].items() if name in names}
    return State(tensors, state.values | {"saved": saved}), State(rest, others)


def _saved_names(kind: type) -> list[str]:
    """The attributes that a class and its bases declare, those of the bases first."""
    names: list[str] = []
    for one in reversed(kind.__mro__):
        declared = vars(one).get("saved", ())
        if isinstance(declared, str):
            raise TypeError(f"{one.__name__}.saved is the string {declared!r}, expected a tuple of attribute names")
        names += [name for name in declared if name not in names]
    return names


def _pack_object(owner: object, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: _pack(getattr(owner, name), path + name, tensors) for name in _saved_names(type(owner))}


def _pack(value: Any, path: str, tensors: dict[str, Tensor], is_attribute: bool = True) -> Any:
    """The value as JSON: plain values as they are, everything else as {kind: content}."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor | np.ndarray):
        return _pack_tensor(value, path, tensors)
    if is_attribute and (fields := _record_fields(value)):
        return {"record": {name: _pack(getattr(value, name), f"{path}.{name}", tensors) for name in fields}}
    if is_attribute and _saved_names(type(value)):
        return {"object": _pack_object(value, f"{path}.", tensors)}
    if type(value) in (list, tuple):
        items = [_pack(one, f"{path}.{place}", tensors, False) for place, one in enumerate(value)]
        return {type(value).__name__: items}
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, _pack(one, f"{path}.{key}", tensors, False)] for key, one in value.items()]}
    raise TypeError(f"{path} is a {type(value).__name__}, which cannot be saved; see mlcil.core.state for what can")


def _pack_tensor(value: Any, path: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    if path in tensors:
        raise ValueError(f"two saved tensors would both be called {path}")
    if isinstance(value, np.ndarray):
        tensors[path] = torch.from_numpy(np.require(value, requirements="W"))  # torch warns of read-only memory
        return {"array": path}
    tensors[path] = value
    return {"tensor" if value.device.type == "cpu" else "tensor of the model": path}


def _unpack(packed: Any, current: Any, tensors: Mapping[str, Tensor], device: torch.device | None) -> Any:
    """The value that `packed` stands for; `current` is what the attribute holds in a fresh object."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "object":
        load_state_of(current, State(dict(tensors), content), device)
        return current
    if kind == "record":
        fields = {name: _unpack(one, getattr(current, name), tensors, device) for name, one in content.items()}
        return type(current)(**fields)
    if kind == "dict":
        return {key: _unpack(one, None, tensors, device) for key, one in content}
    if kind in ("list", "tuple"):
        items = [_unpack(one, None, tensors, device) for one in content]
        return items if kind == "list" else tuple(items)
    found = tensors[content]
    if kind == "array":
        return found.numpy()
    return found if kind == "tensor" else found.to(device)


def _record_fields(value: Any) -> tuple[str, ...]:
    """The fields of a dataclass or NamedTuple, none for anything else or for an object with `saved`."""
    if _saved_names(type(value)):
        return ()
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
