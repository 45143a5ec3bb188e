"""Frozen dataclasses as configuration: defaults, legal ranges, help and error texts from one place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from .errors import UserError, unknown_name

T = TypeVar("T")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class About:
    """What is known of an option besides its type and default."""

    help: str
    choices: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    paper: str = ""
    machine: bool = False  # says how to compute, not what: may differ when a run is continued

    def allowed(self) -> str:
        """The legal values in words, empty if every value of the type is legal."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "" if self.high is None else f"at most {self.high:g}"


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    paper: str = "",
    machine: bool = False,
) -> Any:
    """A dataclass field that carries its own documentation and legal range."""
    about = About(help, tuple(choices) if choices else None, low, high, paper, machine)
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


def build(config: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a `config` from plain values, as they come from YAML or `--set key=value`.

    Raises:
        UserError: an unknown key, a value of another type, or one outside its range.
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
    """The keys a configuration has."""
    return tuple(field.name for field in dataclasses.fields(config))


def as_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain values, tuples as lists, ready for YAML and JSON."""
    values = dataclasses.asdict(config)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def identity(config: Any) -> dict[str, Any]:
    """The part of a configuration that decides the result (all but the machine's settings)."""
    machine = {field.name for field in dataclasses.fields(config) if about(field).machine}
    return {key: value for key, value in as_dict(config).items() if key not in machine}


def _parse(name: str, value: Any, kind: Any, about: About) -> Any:
    alternatives = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if value is None or value == "none":
        if NoneType in alternatives:
            return None
        if value is None:
            raise UserError(f"{name} needs a value")
    wanted = next(one for one in alternatives if one is not NoneType)
    parsed = _convert(name, value, wanted)
    _check_range(name, parsed, about)
    return parsed


def _convert(name: str, value: Any, wanted: type) -> Any:
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
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise UserError(f"{name}: got {value!r}, expected {words[wanted]}")


def _check_range(name: str, value: Any, about: About) -> None:
    outside = (
        (about.choices is not None and value not in about.choices)
        or (about.low is not None and not value >= about.low)
        or (about.high is not None and not value <= about.high)
    )
    if outside:
        raise UserError(f"{name}: got {value!r}, expected {about.allowed()}")
