"""Frozen dataclasses as configuration: every default, legal range, help and error text is written once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from .errors import UserError, shown, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class About:
    """What an option says about itself besides its type and default; see `option`."""

    help: str
    choices: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    paper: str = ""
    machine: bool = False
    flag: bool = False

    def allowed(self) -> str:
        """The legal values in words, empty if every value of the type is legal."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:.10g} to {self.high:.10g}"
        if self.low is not None:
            return f"at least {self.low:.10g}"
        return "" if self.high is None else f"at most {self.high:.10g}"


def option(
    default: object,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    paper: str = "",
    machine: bool = False,
    flag: bool = False,
) -> Any:
    """A dataclass field that carries its own documentation and legal range.

    Arguments:
        default: the value if none is given.
        help: what the option does, a phrase without a capital letter and without a full stop.
        choices: the only legal values.
        low, high: the smallest and the largest legal value.
        paper: where the default or the option comes from, such as "KRT, section 4.1".
        machine: it says how to compute and not what, so it may differ when a run is continued.
        flag: the command line has a flag of this name, and not only `--set`.
    """
    about = About(help, tuple(choices) if choices else None, low, high, paper, machine, flag)
    return dataclasses.field(default=default, metadata={"about": about})


def with_default(
    config: type, name: str, default: Any, *, choices: Sequence[str] | None = None, paper: str | None = None
) -> Any:
    """The option `name` of another configuration with another default, and perhaps fewer choices or another source."""
    known = {field.name: about(field) for field in dataclasses.fields(config)}.get(name)
    if known is None:
        raise ValueError(f"Got {name!r}, expected an option of {config.__name__}")
    if choices is not None:
        known = dataclasses.replace(known, choices=tuple(choices))
    if paper is not None:
        known = dataclasses.replace(known, paper=paper)
    return dataclasses.field(default=default, metadata={"about": known})


def build(config: type[T], values: Mapping[str, object], where: str) -> T:
    """Make a `config` from plain values, as they come from YAML or `--set key=value`.

    Raises:
        UserError: a key is unknown, or a value has the wrong type or is out of range.
    """
    hints = get_type_hints(config)
    fields = {field.name: field for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    parsed = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown_name(f"key in {where}", key, fields)
        parsed[key] = _parse(f"{where}: {key}", value, hints[key], about(fields[key]))
    return config(**parsed)


def about(field: dataclasses.Field[Any]) -> About:
    """The documentation that `option` attached to a field."""
    attached: About = field.metadata["about"]
    return attached


def option_names(config: type) -> tuple[str, ...]:
    """The keys of a configuration."""
    return tuple(field.name for field in dataclasses.fields(config))


class Description(NamedTuple):
    """An option in words, as the tables of options show it."""

    key: str
    default: str
    allowed: str
    help: str
    paper: str


def describe(config: type) -> list[Description]:
    """Every option of a configuration in words."""
    hints, rows = get_type_hints(config), []
    for field in dataclasses.fields(config):
        (wanted, may_be_none), known = _alternatives(hints[field.name]), about(field)
        allowed = known.allowed() or _TYPES[wanted]
        allowed += ", or none" if may_be_none else ""
        rows.append(Description(field.name, as_text(field.default), allowed, known.help, known.paper))
    return rows


def as_text(value: object) -> str:
    """A value as one would type it after `--set key=`."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def as_dict(config: DataclassInstance) -> dict[str, Any]:
    """A configuration as plain values, ready for YAML and JSON."""
    return dataclasses.asdict(config)


def identity(config: DataclassInstance) -> dict[str, Any]:
    """The part of a configuration that decides the result, that is all but the machine settings."""
    machine = {field.name for field in dataclasses.fields(config) if about(field).machine}
    return {key: value for key, value in as_dict(config).items() if key not in machine}


def _alternatives(kind: object) -> tuple[type, bool]:
    """Of a type such as `int` or `int | None`, the type itself and whether None is legal."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    return next(one for one in kinds if one is not NoneType), NoneType in kinds


def _parse(name: str, value: object, kind: object, about: About) -> Any:
    wanted, may_be_none = _alternatives(kind)
    if may_be_none and value in (None, "none"):
        return None
    if value is None:
        raise UserError(f"{name} needs a value")
    parsed = _convert(name, value, wanted)
    _check_range(name, parsed, about)
    return parsed


def _convert(name: str, value: object, wanted: type) -> object:
    if wanted is bool:
        value = _WORDS.get(value.lower(), value) if isinstance(value, str) else value
        if isinstance(value, bool):
            return value
    elif isinstance(value, bool):
        pass  # a bool is an int to Python, but `epochs: true` is a mistake
    elif wanted is str and isinstance(value, str | int | float):
        return str(value)
    elif wanted is int and (isinstance(value, int | str) or (isinstance(value, float) and value.is_integer())):
        try:
            return int(value)
        except ValueError:
            pass
    elif wanted is float and isinstance(value, int | float | str):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise UserError(f"{name}: got {shown(value)}, expected {_TYPES[wanted]}")


def _check_range(name: str, value: Any, about: About) -> None:
    outside = (
        (about.choices is not None and value not in about.choices)
        or (about.low is not None and not value >= about.low)
        or (about.high is not None and not value <= about.high)
    )
    if outside:
        raise UserError(f"{name}: got {shown(value)}, expected {about.allowed()}")
