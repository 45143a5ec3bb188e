"""The one exception that means "the input is wrong" rather than "the program is wrong"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the input.

    Its message is one line that names the input, its value and what is allowed. The command line
    prints it without a traceback; every other exception is a bug and keeps its traceback.
    """


def unknown_name(what: str, got: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist; it suggests the nearest one that does."""
    names = sorted(allowed)
    near = get_close_matches(str(got), names, n=1)  # a key in YAML may be a number
    hint = f", did you mean {near[0]!r}?" if near else "."
    return UserError(f"unknown {what} {got!r}{hint} Allowed: {', '.join(names)}")


def reason_of(error: Exception) -> str:
    """An exception in one short line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
