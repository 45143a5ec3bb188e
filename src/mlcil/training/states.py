"""States on disk: tensors and plain values in safetensors files, each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.checksums import DamagedFileError, check_names, digest_of, sealed, unsealed
from ..core.errors import UserError, reason_of
from ..core.files import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

STATE = "mlcil"  # name of what a file says beside its tensors
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)  # what reading a damaged file raises
MISFITS = (*DAMAGE, RuntimeError)  # what putting values to their use raises where they do not fit
LEARNING = "learning.safetensors"  # beside a session's state: what only further learning needs


def save_state(
    path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], before: Path | None = None
) -> None:
    """Write tensors and JSON values into one safetensors file, atomically, each with a checksum.

    The file holds every tensor with its rows contiguous, and beside them the order of dimensions in memory where that
    was another one, such as channels last: the same numbers in another layout are rounded differently later on.

    Arguments:
        before: a state in a neighbouring folder; tensors that it has to the bit are not written but taken from there,
            unless it is damaged.
    """
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digests = {name: _digest(tensor) for name, tensor in plain.items()}
    orders = {name: order for name, tensor in tensors.items() if (order := memory_order(tensor)) != sorted(order)}
    elsewhere = {} if before is None else _unchanged(digests, orders, before)
    own = {name: tensor.clone() for name, tensor in plain.items() if name not in elsewhere}
    orders = {name: order for name, order in orders.items() if name in own}
    # Under one name: a file with several has them in any order, and equal states would not have equal files.
    found = {"values": values, "orders": orders, "elsewhere": elsewhere}
    metadata = {STATE: sealed(path, found, digests)}

    def write(partial: Path) -> None:
        try:
            save_file(own, partial, metadata)
        except Exception as error:  # safetensors wraps the system's error in a type of its own
            if type(error).__name__ == "SafetensorError":
                raise OSError(None, str(error)) from error
            raise

    write_atomically(path, write)


def load_state(path: Path, with_tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_state`; without the tensors it costs nothing. What is read has its checksum.

    Raises:
        DamagedFileError: the file, or one that it takes tensors from, is damaged; its `file` says which.
        UserError: one of them is missing or cannot be read.
    """
    tensors, header = _load(path, with_tensors)
    return tensors, header.values


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


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a state is put to its use into one line."""
    try:
        yield
    except MISFITS as error:
        raise UserError(f"checkpoint {path} does not fit the run's config.yaml: {reason_of(error)}") from error


class _Header(NamedTuple):
    """What a file says beside its tensors.

    Attributes:
        orders: of tensors whose dimensions have another order in memory.
        elsewhere: the folder that holds a tensor which is not in the file itself.
        digests: of all tensors, also of those elsewhere; None in a file of an earlier version.
    """

    values: dict[str, Any]
    orders: dict[str, list[int]]
    elsewhere: dict[str, str]
    digests: dict[str, str] | None


def _load(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], _Header]:
    with _explained(path, path):
        tensors, header = _read(path, None if with_tensors else ())
    for folder in sorted(set(header.elsewhere.values())) if with_tensors else ():
        source = path.parent.parent / folder / path.name
        names = [name for name, place in header.elsewhere.items() if place == folder]
        with _explained(path, source):
            tensors |= _read(source, names, header.digests)[0]
    return tensors, header


@contextmanager
def _explained(path: Path, source: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file, or with one that it takes tensors from, into one line."""
    try:
        yield
    except Exception as error:
        if not (isinstance(error, DAMAGE) or type(error).__name__ == "SafetensorError"):
            # It may be sound: the system or the memory may have failed, which torch calls a RuntimeError.
            taken = "" if source == path else f"it takes tensors from {source}: "
            raise UserError(f"cannot read checkpoint {path}: {taken}{reason_of(error)}") from error
        why = "" if source == path else f"{path} takes tensors from it: "
        advice = f"{why}put back a copy of it, or rename it and all later ones, and repeat the command to learn again"
        raise DamagedFileError(source, reason_of(error), advice) from error


def _read(
    path: Path, names: Sequence[str] | None, expected: Mapping[str, str] | None = None
) -> tuple[dict[str, Tensor], _Header]:
    """Some tensors of a file or all that it holds, which also have the digests that are expected, and its header."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header, own = _header(path, file.metadata()), list(file.keys())
        if header.digests is not None:
            check_names([*own, *header.elsewhere], header.digests)
        found = {name: file.get_tensor(name) for name in (own if names is None else names)}
    stated = [one for one in (header.digests, expected) if one is not None]
    for name, tensor in found.items() if stated else ():
        digest = _digest(tensor)
        if any(one[name] != digest for one in stated):
            raise ValueError(f"tensor {name} does not have its checksum")
    return {name: _in_order(tensor, header.orders.get(name)) for name, tensor in found.items()}, header


def _header(path: Path, stored: Mapping[str, str] | None) -> _Header:
    if not stored:
        raise ValueError("it does not say what its tensors are")
    if STATE not in stored:  # files of version 0.1 have several names
        found, digests = {key: json.loads(one) for key, one in stored.items()}, None
    else:
        found, digests = unsealed(path, stored[STATE])
    return _Header(found["values"], found["orders"], found.get("elsewhere", {}), digests)


def _unchanged(digests: Mapping[str, str], orders: Mapping[str, list[int]], before: Path) -> dict[str, str]:
    """The tensors that an earlier state has to the bit and in the same layout, each with the folder of its file.

    None if that state cannot be read: what is in memory now must not depend on a damaged file.
    """
    try:
        tensors, header = _load(before, True)
    except UserError:
        return {}
    old = header.digests or {name: _digest(tensor.contiguous()) for name, tensor in tensors.items()}
    return {
        name: header.elsewhere.get(name, before.parent.name)
        for name, digest in digests.items()
        if old.get(name) == digest and memory_order(tensors[name]) == orders.get(name, [*range(tensors[name].ndim)])
    }


def _digest(tensor: Tensor) -> str:
    """Of the type, the shape and the bytes of a contiguous tensor; it tells 0 from -0."""
    from torch import uint8

    flat = tensor.flatten()  # NumPy does not know every kind of number
    data = flat.view(uint8).numpy().data if flat.numel() else b""
    return digest_of(data, str(tensor.dtype), tuple(tensor.shape))


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions of a tensor from the slowest to the fastest in memory."""
    order = list(range(tensor.ndim))  # also where strides of dimensions of one element say otherwise
    return order if tensor.is_contiguous() else sorted(order, key=tensor.stride, reverse=True)


def _in_order(tensor: Tensor, order: list[int] | None) -> Tensor:
    """The tensor with its dimensions in this order in memory; None for as it is."""
    if order is None:
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(dimension) for dimension in range(len(order))])
