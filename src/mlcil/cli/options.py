"""Command-line options that come from the settings of a run, so that each setting is written once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from ..core.config import about, as_text
from ..core.errors import UserError
from ..training.config import RunSettings


def with_settings(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, as its parameter `changes`, the settings that the user changes on the command line.

    The command gets an option for every setting that is marked with `flag=True`, and `--set key=value` for all
    others. Values arrive as text: building the configuration checks both kinds in the same way.

    Arguments:
        without: settings that have no option of their own in this command.
    """
    fields = [one for one in dataclasses.fields(RunSettings) if about(one).flag and one.name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def with_changes(set_: list[str] | None = None, **given: Any) -> None:
            changes = {one.name: value for one in fields if (value := given.pop(one.name)) is not None}
            command(**given, changes=changes | assignments(set_ or []))

        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "changes"]
        parameters = [*own, *map(_parameter, fields), _SET]
        # Typer reads the signature and the annotations of a function.
        with_changes.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_changes.__annotations__ = {one.name: one.annotation for one in parameters}
        with_changes.__name__, with_changes.__doc__ = command.__name__, command.__doc__
        return with_changes

    return decorate


_SET = inspect.Parameter(
    "set_",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="<key=value>", help="Any other setting, or an option of the method; may be repeated."
        ),
    ],
)


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    known = about(field)
    kind = str(field.type).removesuffix(" | None")
    metavar = "|".join(known.choices) if known.choices else f"<{kind}>"
    text = f"{known.help[0].upper()}{known.help[1:]}. [default: {as_text(field.default)}]"
    annotation = Annotated[str | None, typer.Option(metavar=metavar, help=text, show_default=False)]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """The pairs of `--set key=value`.

    Raises:
        UserError: a text has no key or no equals sign.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, pairs, strict=True):
        if not key or not equals:
            raise UserError(f"--set: got {text!r}, expected key=value")
    return {key: value for key, _, value in pairs}
