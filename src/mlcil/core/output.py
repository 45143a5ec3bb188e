"""What standard output and standard error make of text that they cannot show."""

from __future__ import annotations

import io
import sys


def escape_what_cannot_be_shown() -> None:
    """Print backslash escapes instead of failing: a file's name need not be valid text, nor fit the terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a program may have put something else there
            stream.reconfigure(errors="backslashreplace")
