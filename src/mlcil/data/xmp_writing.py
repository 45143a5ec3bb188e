"""Tags of photographs into XMP sidecars, so that they can be taken away again exactly.

A tag is written three times, since no list is read by every photo tool: into `dc:subject` as it is, into
`lr:hierarchicalSubject` as `mlcil|tag` and into `digiKam:TagsList` as `mlcil/tag`. What stands under the root `mlcil`
is ours. A plain subject does not show whose it is, so `mlcil:added` lists those that were not there before.

`|` and `/` in the name of a tag would make levels of a hierarchy. In the list that they separate they are written as
the other one: the tag `a/b` is `mlcil|a/b` for Lightroom and `mlcil/a|b` for digiKam, as Immich itself reads the
former. As a subject a tag keeps every letter.

Lists that a sidecar has are added to. Lists that it lacks come in an `rdf:Description` of our own, behind the others:
it holds `mlcil:added`, so that an empty list of somebody else is never taken for ours. Only `digiKam:TagsList` is not
made beside a hierarchy that somebody else wrote.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import escape, quoteattr

from ..core.errors import UserError
from ..core.files import write_bytes
from .folder import EXTENSIONS
from .xml_places import Element, apply, find_elements, indentation, insertion, removal
from .xmp import NAMESPACES, ROOT, BadSidecar, find_sidecars, load_sidecar, qualified

LISTS = {"dc:subject": "Bag", "lr:hierarchicalSubject": "Bag", "digiKam:TagsList": "Seq", "mlcil:added": "Bag"}
_SUBJECT, _HIERARCHY, _PATHS, _ADDED = map(qualified, LISTS)
_NAMES = {_SUBJECT, _HIERARCHY, _PATHS, _ADDED}
_CONTAINERS = {qualified(f"rdf:{kind}") for kind in ("Bag", "Seq", "Alt")}
_ABOUT = qualified("rdf:about")
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_DECLARED = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml\s[^>]*?encoding\s*=\s*["']([^"']+)""")
_EMPTY = f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="mlcil">
 <rdf:RDF xmlns:rdf="{NAMESPACES["rdf"]}">
 </rdf:RDF>
</x:xmpmeta>
""".encode()


def write_tags(photo: Path, tags: Sequence[str], *, adobe_names: bool = False) -> bool:
    """Put tags into the sidecar of a photo in place of those written before; all else in it stays as it is.

    Arguments:
        photo: an image file.
        tags: names in any order; without any, the same as `remove_tags`.
        adobe_names: call a new sidecar `photo.xmp` instead of `photo.jpg.xmp`, unless two images would share it.

    Returns:
        Whether a file changed.

    Raises:
        UserError: there is no such photo, a tag cannot be written, or the file system refused.
        BadSidecar: the sidecar that is there cannot be read or added to; it is untouched.
    """
    names = _checked(tags)
    if not names:
        return remove_tags(photo)
    target, *others = _sidecars(photo, adobe_names)
    contents = {target: _changed(target, names)} | {file: _changed(file, []) for file in others if file != target}
    return _save(contents)


def remove_tags(photo: Path) -> bool:
    """Take away what `write_tags` wrote, and a sidecar that it made if nobody else wrote into it.

    Returns:
        Whether a file changed.

    Raises:
        UserError: there is no such photo, or the file system refused.
        BadSidecar: a sidecar cannot be read; it is untouched.
    """
    return _save({file: _changed(file, []) for file in _found(photo)})


def _checked(tags: Sequence[str]) -> list[str]:
    """The tags without blanks around them, each once, sorted: the order given shall not change a file."""
    names = sorted({tag.strip() for tag in tags})
    for name in names:
        if not name or _UNWRITABLE.search(name):
            raise UserError(f"got tag {name!r}, expected text in one line without control characters")
    return names


def _found(photo: Path) -> list[Path]:
    if not photo.is_file():
        raise UserError(f"photo {photo} does not exist or is not a file")
    return find_sidecars([photo]).get(photo, [])


def _sidecars(photo: Path, adobe_names: bool) -> list[Path]:
    """The sidecars that a photo writes to, first the one that shall hold its tags; it may not be there yet.

    `a.xmp` may belong to a.jpg and a.png. Each would replace the tags of the other and show them on the wrong image, so
    then neither writes into it, and both get a sidecar with their full name. A raw file such as a.CR2 beside a.jpg is
    different: both are the same exposure, no tagger reads the raw file, and Lightroom looks for the keywords of the
    pair in `a.xmp`. So only images that can be tagged count. (`remove_tags` also clears an `a.xmp` that is shared by
    now: tags in it date from before the second image came, and could not be taken away otherwise.)
    """
    full, short = photo.with_name(photo.name + ".xmp"), photo.with_suffix(".xmp")
    found = _found(photo)
    own = [file for file in found if file.stem.lower() == photo.name.lower()]
    if (len(own) < len(found) or adobe_names) and not _shares_its_stem(photo):
        return found or [short]
    return own or [full]


def _shares_its_stem(photo: Path) -> bool:
    parts = [os.path.splitext(name.lower()) for name in os.listdir(photo.parent) if name != photo.name]
    return any(stem == photo.stem.lower() and extension in EXTENSIONS for stem, extension in parts)


def _save(contents: Mapping[Path, bytes | None]) -> bool:
    """Write the files that have a new content; remove one that is left without anything."""
    for file, content in contents.items():
        if content == _EMPTY:
            try:
                file.unlink()
            except OSError as error:
                raise UserError(f"cannot remove {file}: {error.strerror or error}") from None
        elif content is not None:
            write_bytes(file.resolve(), content)  # a link stays a link
    return any(content is not None for content in contents.values())


def _changed(file: Path, names: Sequence[str]) -> bytes | None:
    """The content that a sidecar, or a new one, gets with these tags of ours; None if it has them already."""
    if not os.path.lexists(file):
        return _with_tags(_EMPTY, names)
    content, _ = load_sidecar(file)
    encoding = _encoding(content)
    try:
        old = content.decode(encoding).encode()
        new = _with_tags(_without_tags(old), names)
    except (UnicodeError, LookupError, ExpatError) as error:  # an encoding that Python and expat take differently
        raise BadSidecar(f"not XML ({error})") from None
    if _lists(new) == _lists(old):
        return None  # other tools order and indent as they like
    return new.decode().encode(encoding, "xmlcharrefreplace")


def _encoding(content: bytes) -> str:
    if content[:1] == b"\0" or content[:2] == b"\xfe\xff":
        return "utf-16-be"  # keeps a byte order mark as a letter
    if content[1:2] == b"\0" or content[:2] == b"\xff\xfe":
        return "utf-16-le"
    declared = _DECLARED.match(content)
    return declared[1].decode() if declared else "utf-8"


def _without_tags(content: bytes) -> bytes:
    descriptions = _descriptions(_rdf(content))
    added = [_text(item) for description in descriptions for item in _items(description, _ADDED)]
    ours = [element for description in descriptions for element in _ours(description, added)]
    return apply(content, [removal(content, element) for element in ours])


def _ours(description: Element, added: list[str]) -> list[Element]:
    """The elements of ours in a description, or the description itself if nothing else is in it.

    `added` has the subjects of ours that were not met yet: where somebody else wrote one again, it is left once.
    """
    is_made = any(child.name == _ADDED for child in description.children)
    ours = []
    for child in description.children:
        container = _container(child)
        items = [item for item in container.children if _is_ours(item, child.name, added)] if container else []
        is_emptied = container is not None and child.name in _NAMES and items == container.children
        ours += [child] if child.name == _ADDED or (is_made and is_emptied) else items
    is_bare = description.attributes.keys() <= {_ABOUT}
    return [description] if is_made and is_bare and ours == description.children else ours


def _is_ours(item: Element, name: str, added: list[str]) -> bool:
    text = _text(item)
    if name == _SUBJECT and text in added:
        added.remove(text)
        return True
    return text.startswith(f"{ROOT}|") if name == _HIERARCHY else name == _PATHS and text.startswith(f"{ROOT}/")


def _with_tags(content: bytes, names: Sequence[str]) -> bytes:
    """Add tags to the text of a sidecar that has none of ours."""
    if not names:
        return content
    rdf = _rdf(content)
    descriptions = _descriptions(rdf)
    edits, missing = [], {}
    has_hierarchy = any(_items(description, _HIERARCHY) for description in descriptions)
    for name, texts in _entries(names, descriptions).items():
        container = _list_to_extend(descriptions, name)
        if container is None:
            # Immich reads the first of these lists that it finds: a new one would hide the owner's hierarchy there.
            if not (name == "digiKam:TagsList" and has_hierarchy):
                missing[name] = texts
        else:
            prefix = container.written[: -len("Bag")]  # the same for Seq and Alt
            edits.append(insertion(container, _rendered(texts, prefix, indentation(content, container)).encode()))
    about = next((text for element in descriptions if (text := element.attributes.get(_ABOUT))), "")
    declared = {prefix for prefix, namespace in NAMESPACES.items() if rdf.namespaces.get(prefix) == namespace}
    made = _rendered_description(missing, about, declared, indentation(content, rdf))
    return apply(content, [*edits, insertion(rdf, made.encode())])


def _entries(names: Sequence[str], descriptions: Sequence[Element]) -> dict[str, list[str]]:
    """What each of `LISTS` shall get."""
    there = {_text(item) for description in descriptions for item in _items(description, _SUBJECT)}
    subjects = [name for name in names if name not in there]
    hierarchy = dict.fromkeys(f"{ROOT}|{name.replace('|', '/')}" for name in names)  # a|b and a/b are one here
    paths = dict.fromkeys(f"{ROOT}/{name.replace('/', '|')}" for name in names)
    return dict(zip(LISTS, (subjects, list(hierarchy), list(paths), subjects), strict=True))


def _rendered_description(lists: Mapping[str, Sequence[str]], about: str, declared: Set[str], indent: str) -> str:
    """A description of ours; `about` must be that of the others, or Adobe's library refuses the whole file."""
    prefixes = {"rdf", *(name.partition(":")[0] for name in lists)} - declared
    namespaces = [f' xmlns:{prefix}="{NAMESPACES[prefix]}"' for prefix in NAMESPACES if prefix in prefixes]
    outer, inner, deep, deepest = (indent + " " * depth if indent else "" for depth in range(4))
    parts = [f"{outer}<rdf:Description rdf:about={quoteattr(about)}{''.join(namespaces)}>"]
    for name, texts in lists.items():
        items = _rendered(texts, "rdf:", deepest)
        parts += [f"{inner}<{name}>{deep}<rdf:{LISTS[name]}>{items}{deep}</rdf:{LISTS[name]}>{inner}</{name}>"]
    return "".join([*parts, f"{outer}</rdf:Description>"])


def _rendered(texts: Sequence[str], prefix: str, indent: str) -> str:
    return "".join(f"{indent}<{prefix}li>{escape(text)}</{prefix}li>" for text in texts)


def _list_to_extend(descriptions: Sequence[Element], name: str) -> Element | None:
    """The container of a list, None if there is no such list: a second one is an error in XMP."""
    for description in descriptions:
        for child in description.children:
            if child.name == qualified(name) and (container := _container(child)):
                return container
        if qualified(name) in {*description.attributes, *(child.name for child in description.children)}:
            raise BadSidecar(f"its {name} is not a list")
    return None


def _rdf(content: bytes) -> Element:
    for element in find_elements(content).walk():
        if element.name == qualified("rdf:RDF"):
            return element
    raise BadSidecar("it is XML, but holds no rdf:RDF")


def _descriptions(rdf: Element) -> list[Element]:
    """Those about the photo itself; deeper ones describe for instance the photos that it was made from."""
    return [child for child in rdf.children if child.name == qualified("rdf:Description")]


def _items(description: Element, name: str) -> list[Element]:
    containers = [_container(child) for child in description.children if child.name == name]
    return [item for container in containers if container for item in container.children]


def _container(child: Element) -> Element | None:
    return next((element for element in child.children if element.name in _CONTAINERS), None)


def _text(item: Element) -> str:
    return item.text.strip()


def _lists(content: bytes) -> dict[str, list[str]]:
    """What stands in each of `LISTS` that there is, sorted."""
    descriptions = _descriptions(_rdf(content))
    names = {child.name for description in descriptions for child in description.children} & _NAMES
    return {
        name: sorted(_text(item) for description in descriptions for item in _items(description, name))
        for name in names
    }
