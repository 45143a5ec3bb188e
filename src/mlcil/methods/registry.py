"""Methods by name, ours and those of other packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from ..core.errors import UserError, unknown_name
from .base import Method
from .finetune import FineTuning
from .joint import Joint
from .krt import KRT

ENTRY_POINTS = "mlcil.methods"  # other packages register their classes under this group


@cache
def all_methods() -> dict[str, type[Method]]:
    """Every method by its name."""
    methods: dict[str, type[Method]] = {one.name: one for one in (FineTuning, Joint, KRT)}
    for entry in entry_points(group=ENTRY_POINTS):
        found = entry.load()
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise UserError(f"entry point {entry.value!r} in group {ENTRY_POINTS} is not a Method class")
        if found.name in methods:
            raise UserError(f"entry point {entry.value!r} registers method {found.name!r}, which exists already")
        methods[found.name] = found
    return methods


def method_class(name: str) -> type[Method]:
    """The method of that name.

    Raises:
        UserError: there is none.
    """
    methods = all_methods()
    if name not in methods:
        raise unknown_name("method", name, methods)
    return methods[name]
