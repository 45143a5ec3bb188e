"""Where the elements of an XML text stand, to change some of them and leave the rest as it is, to the byte.

Parsing a text and writing the tree again would rename prefixes, move declarations of namespaces and drop what stands
outside the root. Here the text is cut and pasted instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

_TAG = re.compile(rb"""<(?:[^"'>]++|"[^"]*"|'[^']*')*+>""")
_SPACE = b" \t\r\n"

Edit = tuple[int, int, bytes]  # from where to where, and what shall stand there


@dataclass(eq=False)
class Element:
    """An element and where it stands in the text, in bytes."""

    written: str  # the name with its prefix
    namespaces: dict[str, str]  # by prefix, as they hold inside
    attributes: dict[str, str]  # by `{namespace}local`, without declarations of namespaces
    start: int
    inside: int  # where the tag that opens it ends
    end: int = 0
    is_one_tag: bool = False  # such as <a/>
    text: str = ""  # without that of its children
    children: list[Element] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name as `{namespace}local`, or `local` without a namespace."""
        return _resolved(self.written, self.namespaces, self.namespaces.get("", ""))

    def walk(self) -> Iterator[Element]:
        """The element and all below it, in the order of the text."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)


def find_elements(content: bytes) -> Element:
    """The root of an XML text in UTF-8 (whatever encoding it declares) that has no document type.

    Raises:
        expat.ExpatError: it is not XML.
    """
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    outside = Element("", {"xml": "http://www.w3.org/XML/1998/namespace"}, {}, 0, 0)
    path = [outside]

    def begin(written: str, attributes: dict[str, str]) -> None:
        path[-1].children.append(_opened(content, parser.CurrentByteIndex, written, attributes, path[-1].namespaces))
        path.append(path[-1].children[-1])

    def finish(_: str) -> None:
        element = path.pop()
        element.end = element.inside if element.is_one_tag else content.index(b">", parser.CurrentByteIndex) + 1

    def read(text: str) -> None:
        path[-1].text += text

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, finish, read
    parser.Parse(content, True)
    return outside.children[0]


def apply(content: bytes, edits: Iterable[Edit]) -> bytes:
    """The text after edits that do not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        content = content[:start] + new + content[end:]
    return content


def removal(content: bytes, element: Element) -> Edit:
    """Take an element away, and the white space before it: the inverse of `insertion` of `indentation` and element."""
    return len(content[: element.start].rstrip(_SPACE)), element.end, b""


def insertion(parent: Element, new: bytes) -> Edit:
    """Put `new` behind the last child of an element, or first into one that has none."""
    if parent.is_one_tag:
        return parent.end - len(b"/>"), parent.end, b">" + new + f"</{parent.written}>".encode()
    place = parent.children[-1].end if parent.children else parent.inside
    return place, place, new


def indentation(content: bytes, parent: Element) -> str:
    """What should stand before a new child: line break and blanks as before the last one, nothing in a dense text."""
    if parent.children:
        return _line_before(content, parent.children[-1].start)
    outer = _line_before(content, parent.start)
    return outer + " " if outer else ""


def _line_before(content: bytes, place: int) -> str:
    space = content[len(content[:place].rstrip(_SPACE)) : place]
    lines, newline, blanks = space.rpartition(b"\n")
    return ((b"\r" if lines.endswith(b"\r") else b"") + newline + blanks).decode()


def _opened(content: bytes, start: int, written: str, attributes: dict[str, str], outer: dict[str, str]) -> Element:
    declared = {
        name.partition(":")[2]: value for name, value in attributes.items() if name.partition(":")[0] == "xmlns"
    }
    namespaces = outer | declared
    others = {
        _resolved(name, namespaces, ""): value
        for name, value in attributes.items()
        if name.partition(":")[0] != "xmlns"
    }
    tag = _TAG.match(content, start)
    assert tag, "expat only reports tags that are complete"
    return Element(written, namespaces, others, start, tag.end(), is_one_tag=tag[0].endswith(b"/>"))


def _resolved(written: str, namespaces: dict[str, str], default: str) -> str:
    prefix, _, local = written.rpartition(":")
    namespace = namespaces[prefix] if prefix else default
    return f"{{{namespace}}}{local}" if namespace else local
