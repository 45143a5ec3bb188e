"""Keywords of photographs from XMP sidecars, as Lightroom, darktable and digiKam write them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

_ITEM = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"
_SUBJECT = "{http://purl.org/dc/elements/1.1/}subject"
_HIERARCHY = "{http://ns.adobe.com/lightroom/1.0/}hierarchicalSubject"


class BadSidecar(Exception):  # noqa: N818 - a noun, as it is also collected
    """A sidecar that cannot be read; its text says why without naming the file."""


def find_sidecars(photos: Sequence[Path]) -> dict[Path, list[Path]]:
    """The sidecars of the photos that have any: `photo.jpg.xmp` or `photo.xmp`."""
    beside: dict[Path, dict[str, Path]] = {}
    found = {}
    for photo in photos:
        folder = photo.parent
        if folder not in beside:
            names = (name for name in os.listdir(folder) if name.lower().endswith(".xmp") and name[0] != ".")
            beside[folder] = {name[: -len(".xmp")].lower(): folder / name for name in names}
        files = [beside[folder][key] for key in (photo.name.lower(), photo.stem.lower()) if key in beside[folder]]
        if files:
            found[photo] = files
    return found


def read_sidecars(sidecars: Mapping[Path, Sequence[Path]]) -> tuple[dict[Path, set[str]], list[str]]:
    """The keywords of each photo, and of each sidecar that cannot be read its name and why."""
    keywords: dict[Path, set[str]] = {photo: set() for photo in sidecars}
    damaged = []
    for photo, files in sidecars.items():
        for file in files:
            try:
                keywords[photo] |= read_keywords(file)
            except BadSidecar as error:
                damaged.append(f"{file}: {error}")
    return keywords, damaged


def read_keywords(file: Path) -> set[str]:
    """The keywords of a sidecar: `dc:subject`, and of `lr:hierarchicalSubject` the last part (`Animals|Cat`: Cat).

    Raises:
        BadSidecar: it cannot be read, is not XML, or declares a document type.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadSidecar(f"unreadable ({error.strerror})") from None
    plain = content.replace(b"\0", b"")  # UTF-16 has zeros between the letters
    if b"<!DOCTYPE" in plain or b"<!ENTITY" in plain:
        raise BadSidecar("it declares a document type, which no sidecar needs")  # could expand without end
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # also unknown encodings
        raise BadSidecar(f"not XML ({error})") from None
    subjects = _items(root, _SUBJECT)
    leaves = [text.rpartition("|")[2] for text in _items(root, _HIERARCHY)]
    return {name for text in subjects + leaves if (name := text.strip())}


def _items(root: ElementTree.Element, tag: str) -> list[str]:
    return [item.text or "" for bag in root.iter(tag) for item in bag.iter(_ITEM)]
