"""Text from files whose encoding nobody has written down."""

from __future__ import annotations

import codecs
from pathlib import Path

from ..core.errors import UserError
from .images import Finding, Level


def read_text(file: Path) -> tuple[str, tuple[Finding, ...]]:
    """The text of a file, without a byte order mark, and which encoding was taken if that was a guess.

    Raises:
        UserError: the file cannot be read or is not text.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from None
    text, guessed = _decoded(content)
    if text is None or "\0" in text:
        raise UserError(f"{file} is not a text file, it holds binary data; save the table as .csv or .xlsx")
    note = f"{file} is not in UTF-8; it was read as {guessed}, so look whether its names are right"
    return text, (Finding(Level.NOTE, note),) if guessed else ()


def _decoded(content: bytes) -> tuple[str | None, str | None]:
    """The text, or None, and the encoding if it had to be guessed."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _attempt(content, "utf-16"), None
    for encoding, name in (("utf-16-le", "UTF-16"), ("utf-16-be", "UTF-16")):
        if _zeros_say(content[:4096], encoding):
            return _attempt(content, encoding), name
    for encoding, guessed in (("utf-8-sig", None), ("cp1252", "Windows-1252")):
        text = _attempt(content, encoding)
        if text is not None:
            return text, guessed
    return content.decode("latin-1"), "Latin-1"  # which has every byte


def _attempt(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def _zeros_say(start: bytes, encoding: str) -> bool:
    """Whether a text's start has a zero in nearly every high byte and in no low one, as western UTF-16 has."""
    low, high = (start[0::2], start[1::2]) if encoding == "utf-16-le" else (start[1::2], start[0::2])
    return b"\0" not in low and 2 * high.count(0) > len(high) > 1
