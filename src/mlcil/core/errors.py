"""The one exception that means "the input is wrong" rather than "the program is wrong"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import Repr

from .escaping import printable

LONGEST_NAME = 200  # characters that are compared with names that exist, which takes long for more
LONGEST = 2000  # characters of a message; the names of 80 classes take fewer
_QUOTED = Repr()
_QUOTED.maxlevel, _QUOTED.maxlist, _QUOTED.maxdict, _QUOTED.maxstring, _QUOTED.maxother = 3, 6, 6, 100, 100


class UserError(Exception):
    """A mistake in the input.

    Its message is one line that names the input, its value and what is allowed. The command line
    prints it without a traceback; every other exception is a bug and keeps its traceback. Whatever names it quotes, it
    stays one line of bounded length.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str) -> str:
    """Text for people in one line: what a terminal would act on is escaped, the middle of a very long one left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return printable(text)


def unknown_name(what: str, got: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist; it suggests the nearest one that does."""
    names = sorted(allowed)
    near = get_close_matches(str(got)[:LONGEST_NAME], names, n=1)  # a key in YAML may be a number
    hint = f", did you mean {near[0]!r}?" if near else "."
    return UserError(f"unknown {what} {shown(got)}{hint} Allowed: {', '.join(names)}")


def shown(value: object) -> str:
    """A value as a message quotes it, and no more of it than that can hold: some are nested or long without end."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write it
    if isinstance(value, str):
        return repr(value[:LONGEST])
    return repr(value) if isinstance(value, int | float | None) else _QUOTED.repr(value)


def reason_of(error: Exception) -> str:
    """An exception in one short line; of the system's, what happened and not to which file."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (" ".join(text.split()) or type(error).__name__)[:200]
