"""What standard output and standard error make of text that they cannot show."""

from __future__ import annotations

import io
import sys


def escape_what_cannot_be_shown() -> None:
    """Print backslash escapes instead of failing: a file's name need not be valid text, nor fit the terminal.

    Standard input may name such files, too: what is no text comes as in `sys.argv`.
    """
    kinds = {"backslashreplace": (sys.stdout, sys.stderr), "surrogateescape": (sys.stdin,)}
    for errors, streams in kinds.items():
        for stream in streams:
            if isinstance(stream, io.TextIOWrapper):  # a program may have put something else there
                stream.reconfigure(errors=errors)
