"""What a labelling configuration of Label Studio asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ..core.errors import UserError

_EXAMPLE = '<Choices name="tags" toName="image" choice="multiple"> for an <Image name="image" value="$image"/>'


@dataclass(frozen=True)
class Choices:
    """The tag of a configuration that takes the labels of an image.

    Attributes:
        name, to_name: of the choices and of the image, as answers repeat them.
        key: of the image in the data of a task.
        values: what may be chosen, by the name in small letters; empty where the tasks bring it along.
        is_single: whether only one may be chosen.
    """

    name: str
    to_name: str
    key: str
    values: Mapping[str, str]
    is_single: bool

    def choice_of(self, label: str) -> str | None:
        """The choice that means a label, None if there is none."""
        return self.values.get(label.casefold()) if self.values else label

    def chosen(self, labels: Sequence[str]) -> list[str]:
        """The choices that mean these labels, of which the best comes first."""
        found = [choice for label in labels if (choice := self.choice_of(label)) is not None]
        return found[:1] if self.is_single else found


def choices_of(configuration: str) -> Choices:
    """The first choices about an image.

    Raises:
        UserError: it is not XML, declares a document type, or has no choices about an image.
    """
    root = _parsed(configuration)
    images = {one.get("name", ""): one.get("value", "") for one in root.iter("Image")}
    for one in root.iter("Choices"):
        to_name = one.get("toName", "")
        if to_name in images and images[to_name].startswith("$"):
            values = (choice.get("alias") or choice.get("value") or "" for choice in one.iter("Choice"))
            named = {value.casefold(): value for value in values if value}
            is_single = one.get("choice", "single") != "multiple"
            return Choices(one.get("name", ""), to_name, images[to_name][1:], named, is_single)
    raise UserError(f"the labelling configuration has no choices about an image, expected {_EXAMPLE}")


def _parsed(configuration: str) -> ElementTree.Element:
    # Only a document type can declare entities, and those can grow without end or name files.
    if "<!DOCTYPE" in configuration:
        raise UserError("the labelling configuration declares a document type, which is not read")
    try:
        return ElementTree.fromstring(configuration)  # noqa: S314 - without entities, see above
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(f"the labelling configuration is not XML: {error}") from None
