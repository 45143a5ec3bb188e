"""Checksums, so that a file which changed by itself is noticed before anything is computed from it.

They are there for bytes that flip on a disk or on the way, not for somebody who wants to deceive. Files of earlier
versions have none and are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .errors import UserError, one_line, reason_of

CHECKSUM = "checksum"  # the entry of a JSON file that holds its own
_SEALED = re.compile(r"([0-9a-f]{32}) (.*)", re.DOTALL)


class DamagedFileError(UserError):
    """A file that does not hold what was written to it.

    Attributes:
        file: which one.
        reason: what is wrong with it.
        advice: what to do.
    """

    def __init__(self, file: Path, reason: str, advice: str = "") -> None:
        super().__init__(file, reason, advice)  # all of them, so that it survives pickling
        self.file, self.reason, self.advice = file, reason, advice

    def __str__(self) -> str:
        return one_line(f"{self.file} is damaged: {self.reason}" + (f"; {self.advice}" if self.advice else ""))


def digest_of(data: bytes | memoryview, *facts: object) -> str:
    """32 hexadecimal digits that stand for these bytes and for facts about them, such as type and shape."""
    digest = blake2b(repr(facts).encode(errors="backslashreplace"), digest_size=16)
    digest.update(data)
    return digest.hexdigest()


def sealed(path: Path, values: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """Values for JSON as a text behind its own checksum, for the file at `path`, with the digests of its arrays.

    It states the name of the file, and in a run also the session, so that of two files neither passes for the other.
    """
    folder = path.absolute().parent.name
    place = f"{folder}/{path.name}" if folder.startswith("session-") else path.name
    text = json.dumps({"file": place, "digests": digests, **values})
    return f"{digest_of(text.encode())} {text}"


def unsealed(path: Path, text: str) -> tuple[Any, dict[str, str] | None]:
    """The inverse of `sealed`: the values and the digests; of a text without a checksum, its values and None.

    Raises:
        ValueError: it is damaged, or belongs to another file.
    """
    if (found := _SEALED.fullmatch(text)) is None:
        return json.loads(text), None
    if digest_of(found[2].encode(errors="surrogatepass")) != found[1]:
        raise ValueError("its header does not have its checksum")
    values = json.loads(found[2])
    if not path.absolute().as_posix().endswith(f"/{(place := values.pop('file'))}"):
        raise ValueError(f"it is the file {place} under another name")
    return values, values.pop("digests")


def check_names(found: Iterable[str], stated: Iterable[str]) -> None:
    """Make sure that a file holds the arrays that it states.

    Raises:
        ValueError: it does not.
    """
    if other := sorted(set(found) ^ set(stated)):
        raise ValueError(f"its arrays are not those that it states, first {other[0]!r}")


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record for a JSON file with a checksum over all its entries, as the last of them."""
    return {**record, CHECKSUM: _record_digest(record)}


def check_record(file: Path, record: Any, advice: str = "") -> None:
    """Make sure that what was read from a JSON file has its checksum, if it states one.

    Arguments:
        advice: what to do if it does not.

    Raises:
        DamagedFileError: it does not have it.
    """
    if isinstance(record, dict) and CHECKSUM in record:
        rest = {key: value for key, value in record.items() if key != CHECKSUM}
        if _record_digest(rest) != record[CHECKSUM]:
            raise DamagedFileError(file, "it does not have the checksum that it states", advice)


def set_aside_damaged(error: DamagedFileError, so: str = "") -> str:
    """Rename the damaged file; returns a line that says so, and what follows from it.

    Raises:
        UserError: the file system refused.
    """
    line = f"{error.file} is damaged: {error.reason}; it is renamed to {set_aside(error.file).name}"
    return f"{line}, and {so}" if so else line


def set_aside(file: Path) -> Path:
    """Rename a damaged file, which is never deleted; returns where it is now.

    Raises:
        UserError: the file system refused.
    """
    number, target = 1, file.with_name(f"{file.name}.damaged")
    while target.exists():
        number += 1
        target = file.with_name(f"{file.name}.damaged-{number}")
    try:
        file.rename(target)
    except OSError as error:
        raise UserError(f"{file} is damaged and cannot be renamed: {reason_of(error)}") from error
    return target


def _record_digest(record: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(record, sort_keys=True).encode())
