"""Methods by name, ours and those of other packages."""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from ..core.config import with_default
from ..core.errors import UserError, unknown_name
from .adaptive import Adaptive
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
from .ocdm import OCDM
from .oewc import OEWC
from .podnet import PODNet
from .probes import Probes
from .prs import PRS
from .tpcil import TPCIL

ENTRY_POINTS = "mlcil.methods"  # other packages register their classes under this group


def variant(method: type[Method], name: str, summary: str, **options: Any) -> type[Method]:
    """A method under another name, with other defaults for some of its options."""
    hints = get_type_hints(method.Config)
    fields = [(key, hints[key], with_default(method.Config, key, value)) for key, value in options.items()]
    config = make_dataclass(f"{name}_config", fields, bases=(method.Config,), frozen=True)
    return type(name, (method,), {"name": name, "summary": summary, "Config": config, "__doc__": method.__doc__})


OURS: tuple[type[Method], ...] = (
    *(FineTuning, Joint, Probes, LwF, OEWC, PRS, OCDM, ER, ICaRL, BiC, TPCIL, PODNet, DERpp, L2P),
    *(KRT, KD),
    variant(KRT, "krt_without_dpl", "KRT without pseudo labels (ablation a)", dpl=False),
    variant(KRT, "krt_without_ica", "KRT without cross-attention and token loss (ablation b)", ica=False),
    variant(KRT, "krt_with_kd", "KRT with distillation of the pooled feature as well (ablation c)", kd=True),
    *(ClassQueries, Analytic, Adaptive),
)


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name in this process; may be used as a decorator.

    A package that is installed declares an entry point instead.
    """
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
    """The method of that name."""
    methods = all_methods()
    if name not in methods:
        raise unknown_name("method", name, methods)
    return methods[name]
