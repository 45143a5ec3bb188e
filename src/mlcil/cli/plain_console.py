"""A console on which text from files is shown and does nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..core.escaping import printable


class PlainConsole(Console):
    """A console that escapes what a terminal would act on, such as colours or a change of direction in a label.

    Its own colours and lines stay: in what it renders they are no part of the text.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of something, each with its style."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(_escaped(part.text), part.style)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
