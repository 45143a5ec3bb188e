"""Class names in one line of text: sessions separated by `|`, names by `,`, as in `cat,dog|"car, old",bus`."""

from __future__ import annotations

import re

from ..core.errors import UserError

# A quote has a meaning only where a name begins; blanks around a name do not count.
_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>(?!\s*")[^,|]*))(?=[,|]|\Z)')


def is_list(text: str) -> bool:
    """Whether a text lists class names; a single name without quotes cannot be told from another word."""
    return bool(set(text) & set('|,"'))


def parse(text: str) -> list[list[str]]:
    """The class names of each session.

    A name that contains a comma, a pipe or a quote is written in quotes, with its own quotes doubled.

    Raises:
        UserError: a name or a session is empty, or a quote is not closed.
    """
    sessions: list[list[str]] = [[]]
    place = 0
    while True:
        match = _NAME.match(text, place)
        if match is None:
            raise UserError(f'class list {text!r} has a quote that is not closed before , or |; write "a, b" or "5"""')
        plain = match["plain"]
        name = match["quoted"].replace('""', '"') if plain is None else plain.strip()
        if not name.strip():
            raise UserError(f"class list {text!r} has an empty class name or session, expected such as cat,dog|car,bus")
        sessions[-1].append(name)
        place = match.end() + 1
        if place > len(text):
            return sessions
        if text[match.end()] == "|":
            sessions.append([])


def quoted(name: str) -> str:
    """A class name as `parse` reads it, in quotes where it needs them."""
    if name == name.strip() and not is_list(name):
        return name
    return '"' + name.replace('"', '""') + '"'
