"""Methods by name, ours and those of other packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from ..core.errors import UserError, unknown_name
from .ablations import WithKD, WithoutDPL, WithoutICA
from .analytic import Analytic
from .base import Method
from .bic import BiC
from .class_queries import ClassQueries
from .derpp import DERpp
from .er import ER
from .finetune import FineTuning
from .icarl import ICaRL
from .joint import Joint
from .kd import KD
from .krt import KRT
from .l2p import L2P
from .lwf import LwF
from .oewc import OEWC
from .online import OCDM, PRS
from .podnet import PODNet
from .probes import Probes
from .tpcil import TPCIL

ENTRY_POINTS = "mlcil.methods"  # other packages register their classes under this group

OURS: tuple[type[Method], ...] = (
    *(FineTuning, Joint, Probes, LwF, OEWC, PRS, OCDM, ER, ICaRL, BiC, TPCIL, PODNet, DERpp, L2P),
    *(KRT, KD, WithoutDPL, WithoutICA, WithKD, ClassQueries, Analytic),
)


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name in this process; of use as a decorator. A package uses the entry point."""
    known = all_methods().setdefault(method.name, method)
    if known is not method:
        raise UserError(f"there is a method {method.name!r} already ({known.__module__}.{known.__qualname__})")
    return method


@cache
def all_methods() -> dict[str, type[Method]]:
    """Every method by its name."""
    methods: dict[str, type[Method]] = {one.name: one for one in OURS}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            found = entry.load()
        except Exception as error:  # whatever another package does when it is imported
            raise UserError(f"entry point {entry.value!r} in group {ENTRY_POINTS} cannot be loaded: {error}") from error
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
