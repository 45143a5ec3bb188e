"""States on disk: tensors and plain values in safetensors files, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from ..core.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

STATE = "mlcil"  # name of what a file says beside its tensors
LEARNING = "learning.safetensors"  # beside a session's state: what only further learning needs


def save_state(
    path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], before: Path | None = None
) -> None:
    """Write tensors and JSON values into one safetensors file, atomically.

    The file holds every tensor with its rows contiguous, and beside them the order of dimensions in memory where that
    was another one, such as channels last: the same numbers in another layout are rounded differently later on.

    Arguments:
        before: a state in a neighbouring folder; tensors that it has to the bit are not written but taken from there.
    """
    from safetensors.torch import save_file

    elsewhere = {} if before is None else _unchanged(tensors, before)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in elsewhere}
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    orders = {name: order for name, tensor in tensors.items() if (order := memory_order(tensor)) != sorted(order)}
    # Under one name: a file with several has them in any order, and equal states would not have equal files.
    metadata = {STATE: json.dumps({"values": values, "orders": orders, "elsewhere": elsewhere})}

    def write(partial: Path) -> None:
        try:
            save_file(plain, partial, metadata)
        except Exception as error:  # safetensors wraps the system's error in a type of its own
            if type(error).__name__ == "SafetensorError":
                raise OSError(None, str(error)) from error
            raise

    write_atomically(path, write)


def load_state(path: Path, with_tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_state`; without the tensors it costs nothing.

    Raises:
        UserError: the file, or one that it takes tensors from, is missing or damaged.
    """
    try:
        tensors, values, elsewhere = _read(path, None if with_tensors else ())
    except Exception as error:
        raise UserError(f"cannot read checkpoint {path}: {error}; delete it to go on from the one before") from error
    for folder in sorted(set(elsewhere.values())) if with_tensors else ():
        source = path.parent.parent / folder / path.name
        try:
            tensors |= _read(source, [name for name, place in elsewhere.items() if place == folder])[0]
        except Exception as error:
            raise UserError(f"cannot read checkpoint {path}: it takes tensors from {source}: {error}") from error
    return tensors, values


def load_session(path: Path, needed: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state after a session, with what only further learning needs if that is still there.

    Arguments:
        needed: attributes of the method that must be there.

    Raises:
        UserError: a file is damaged, or something that is needed is missing.
    """
    tensors, values = load_state(path)
    if (rest := path.with_name(LEARNING)).exists():
        more, saved = load_state(rest)
        values["method"]["saved"] |= saved
        tensors |= more
    if not set(needed) <= set(values["method"]["saved"]):
        raise UserError(f"cannot go on from {path}: {LEARNING} beside it is missing; delete both to repeat the session")
    return tensors, values


def _read(path: Path, names: Sequence[str] | None) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, str]]:
    """Some tensors of a file or all that it holds, its values, and the names of folders that hold its other tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        stored = file.metadata()
        # Files of version 0.1 have several names.
        found = json.loads(stored[STATE]) if STATE in stored else {key: json.loads(one) for key, one in stored.items()}
        names = list(file.keys()) if names is None else names
        tensors = {name: _in_order(file.get_tensor(name), found["orders"].get(name)) for name in names}
        return tensors, found["values"], found.get("elsewhere", {})


def _unchanged(tensors: Mapping[str, Tensor], before: Path) -> dict[str, str]:
    """The tensors that an earlier state has to the bit and in the same layout, each with the folder of its file."""
    elsewhere = _read(before, ())[2]
    old = load_state(before)[0]
    return {
        name: elsewhere.get(name, before.parent.name)
        for name, tensor in tensors.items()
        if name in old and _is_same(tensor.detach().cpu(), old[name])
    }


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the bit, which tells 0 from -0, and in the same order in memory."""
    if (one.dtype, one.shape, memory_order(one)) != (other.dtype, other.shape, memory_order(other)):
        return False
    first, second = (value.contiguous().numpy().tobytes() for value in (one, other))
    return first == second


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions of a tensor from the slowest to the fastest in memory."""
    order = list(range(tensor.ndim))  # also where strides of dimensions of one element say otherwise
    return order if tensor.is_contiguous() else sorted(order, key=tensor.stride, reverse=True)


def _in_order(tensor: Tensor, order: list[int] | None) -> Tensor:
    """The tensor with its dimensions in this order in memory; None for as it is."""
    if order is None:
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(dimension) for dimension in range(len(order))])
