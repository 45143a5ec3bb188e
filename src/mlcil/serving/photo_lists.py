"""Which photos are meant: files, folders, patterns, and lists on standard input."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from ..core.errors import UserError
from ..core.remote import is_url
from ..data.folder import WILDCARDS, find_photos, find_photos_at

STANDARD_INPUT = "-"


def list_photos(given: Sequence[str], stdin: TextIO | None = None, has_sidecars: bool = False) -> list[str]:
    """The photos that are meant, each once, in the order given; those of a folder or pattern sorted.

    Arguments:
        given: files, folders, patterns such as `photos/**/*.jpg`, URLs of any of these, or `-` for one path or URL
            per line on standard input.
        stdin: where `-` reads from.
        has_sidecars: whether sidecars are to be written, which URLs cannot have.

    Raises:
        UserError: a folder or pattern has no photo, or a name is neither a file, a folder nor a pattern. What a list on
            standard input names is not looked at here.
    """
    found: list[str] = []
    for one in given:
        found += _lines(stdin or ()) if one == STANDARD_INPUT else _photos_of(os.path.expanduser(one))
    if not found:
        raise UserError("no photos were named; expected files, folders, patterns, or - for a list on standard input")
    if has_sidecars and (elsewhere := next(filter(is_url, found), None)):
        raise UserError(f"{elsewhere} is a URL, but XMP sidecars are written beside local photos only")
    return list(dict.fromkeys(found))


def _photos_of(name: str) -> list[str]:
    if is_url(name):
        return find_photos_at(name)
    if os.path.isdir(name):
        return [str(path) for path in find_photos(Path(name), is_pattern=False)]
    if os.path.lexists(name):
        return [name]
    if WILDCARDS & set(name):
        return [str(path) for path in find_photos(Path(name), is_pattern=True)]
    raise UserError(f"{name} does not exist; expected photos, folders of photos, or patterns such as 'photos/**/*.jpg'")


def _lines(stream: Iterable[str]) -> list[str]:
    return [line for line in (one.rstrip("\r\n") for one in stream) if line]
