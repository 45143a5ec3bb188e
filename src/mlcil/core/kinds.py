"""Whether a dataclass that was read from a file holds what its types say: a file may say anything."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**63  # no number that is saved is as large


def check_kinds(record: DataclassInstance) -> None:
    """Check every field.

    Raises:
        TypeError: one holds something else than its type says.
    """
    for name, kind in get_type_hints(type(record)).items():
        if not is_kind(getattr(record, name), kind):
            raise TypeError(f"{name} is not {getattr(kind, '__name__', kind)}")


def is_kind(value: Any, kind: Any) -> bool:
    """Whether a value is what a type says; a whole number is a float as well, and true is no number."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, tuple):  # of one kind and any length
        return isinstance(value, origin) and all(is_kind(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_kind(one, inner[1]) for one in value.values())
    if origin is UnionType:
        return any(is_kind(value, one) for one in inner)
    if kind in (int, float):
        is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return is_number and abs(value) < LARGEST
    return kind is Any or isinstance(value, kind)
