"""Keywords of photographs from XMP sidecars, as Lightroom, darktable and digiKam write them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from ..core.errors import one_line

NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "mlcil": "urn:mlcil:xmp:1.0/",  # a name that nobody looks up; Exiv2 adds a slash to one that ends without
}
ROOT = "mlcil"  # above all tags in a hierarchy that a tagger wrote


def qualified(name: str) -> str:
    """A name such as `dc:subject` as ElementTree writes it: `{http://purl.org/dc/elements/1.1/}subject`."""
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


class BadSidecar(Exception):  # noqa: N818 - a noun, as it is also collected
    """A sidecar that cannot be read; its text says why without naming the file."""

    def __str__(self) -> str:
        return one_line(super().__str__())


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
    _, root = load_sidecar(file)
    subjects = _items(root, "dc:subject")
    paths = [text for text in _items(root, "lr:hierarchicalSubject") if not text.startswith(f"{ROOT}|")]
    leaves = [text.rpartition("|")[2] for text in paths]  # a tagger's own also stand in dc:subject, with every letter
    return {name for text in subjects + leaves if (name := text.strip())}


def load_sidecar(file: Path) -> tuple[bytes, ElementTree.Element]:
    """The bytes of a sidecar, and the root of the XML that they are.

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
        return content, ElementTree.fromstring(content)  # noqa: S314 - without entities, see above
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # also unknown encodings
        raise BadSidecar(f"not XML ({error})") from None


def _items(root: ElementTree.Element, name: str) -> list[str]:
    return [item.text or "" for bag in root.iter(qualified(name)) for item in bag.iter(qualified("rdf:li"))]
