"""What a server cannot do right now."""

from __future__ import annotations


class Busy(Exception):  # noqa: N818 - the answer's own word
    """There is no room for more work; the same request may be sent again later.

    Attributes:
        seconds: after which it is worth trying again.
    """

    def __init__(self, line: str, seconds: int = 1) -> None:
        super().__init__(line)
        self.seconds = seconds
