"""The pages' templates: they share their look and their script, and escape whatever they are given."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from .style import COLOURS
from .table import cell_text, sort_key

if TYPE_CHECKING:
    from jinja2 import Template


def template(name: str) -> Template:
    """A template of this folder; the pages that it makes need no other file."""
    import jinja2

    def source(file: str) -> str:
        return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"cell_text": cell_text, "sort_key": sort_key, "percent": _percent}
    environment.globals |= {"colours": COLOURS}
    return environment.get_template(name)


def _percent(share: float) -> str:
    """A share of a length in CSS; what is outside 0..1 stays within the length."""
    return f"{100 * min(max(share, 0.0), 1.0):.1f}%"
