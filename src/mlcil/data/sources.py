"""Naming a data set in one line of text, such as `coco:PATH,year=2017` or `digits`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError, unknown_name
from ..core.remote import is_url, path_or_url
from .coco import read_coco
from .contents import Contents
from .digits import CLASSES, read_digits
from .folder import WILDCARDS, read_folder
from .images import DataSet
from .label_names import SEPARATORS
from .listing import Listing
from .spreadsheet import is_table
from .table import LABEL_COLUMNS, PATH_COLUMNS, read_table
from .voc import read_voc

NEGATIVES = ("auto", "none", "labelled")
Found = Listing | DataSet
"""What `read` finds; `resolve` makes a data set of it."""


@dataclass(frozen=True)
class Source:
    """A kind of data set.

    Attributes:
        name: what stands before the colon.
        usage: the shortest complete example.
        summary: one line about it.
        options: what each option means, by name.
        read: the function that reads it.
        negatives: whether an image without labels has been looked at and shows none of the classes.
        classes: where they are the same in every data set of the kind.
    """

    name: str
    usage: str
    summary: str
    options: Mapping[str, str]
    read: Callable[..., Found]
    negatives: bool = False
    classes: tuple[str, ...] = ()

    @property
    def has_path(self) -> bool:
        """Whether a path stands after the colon."""
        return ":" in self.usage


SOURCES = {
    source.name: source
    for source in (
        Source(
            "table",
            "table:FILE",
            "a spreadsheet with a row per image: .csv, .tsv, .txt, .xlsx, .parquet or .jsonl",
            {
                "images": "the folder or URL that relative paths start from (default: the table's)",
                "path": f"the column of image paths (default: {', '.join(PATH_COLUMNS)})",
                "labels": f"the column of label lists (default: {', '.join(LABEL_COLUMNS)}; else a column per class)",
                "separator": f"what separates labels: {', '.join(SEPARATORS)} or a character (default: semicolon)",
                "split": "the column that says train or test (default: split or set; else the image's content decides)",
                "session": "the column of the session, from 1, in which an image arrives (default: session)",
                "test_fraction": "share of test images where no column decides (default: 0.2)",
            },
            read_table,
            negatives=True,
        ),
        Source(
            "folder",
            "folder:PATH",
            "a folder of photos, or a pattern such as photos/**/*.jpg",
            {
                "labels": "folders (cat/1.jpg), xmp (sidecars), metadata (metadata.csv), or auto (default)",
                "negatives": "the class folder whose photos show none of the classes",
                "separator": "what separates labels in metadata.csv (default: semicolon)",
                "test_fraction": "share of test images where no folder named train or test decides (default: 0.2)",
            },
            read_folder,
            negatives=True,
        ),
        Source(
            "coco",
            "coco:PATH",
            "MS-COCO 2014 or 2017, or any data set in COCO's layout",
            {
                "year": "2014 or 2017 (default: the one that is there, 2014 if both are)",
                "train": "another training annotation file, e.g. instances_mine.json",
                "test": "another test annotation file",
                "images": "the folder of the images (default: PATH)",
            },
            read_coco,
        ),
        Source(
            "voc",
            "voc:PATH",
            "PASCAL VOC; trains on trainval, tests on test",
            {
                "year": "which VOC<year> folder to take (default: 2007)",
                "difficult": "what a class seen only as difficult counts as: absent (default) or unknown",
            },
            read_voc,
        ),
        Source(
            "digits",
            "digits",
            "canvases with one to four handwritten digits; nothing to download",
            {
                "train": "number of training canvases (default: 2000)",
                "test": "number of test canvases (default: 1000)",
                "size": "height and width of a canvas in pixels (default: 64)",
                "seed": "another seed gives other canvases (default: 0)",
            },
            read_digits,
            classes=CLASSES,
        ),
    )
}


def _path(text: str) -> Path:
    if is_url(text):
        raise UserError(f"{text} is a URL, but only the photos of a table may have one; expected a local path")
    if "\0" in text:
        raise UserError(f"got {text!r} as a path, which has a zero byte")
    return Path(os.path.expanduser(text))  # leaves the ~ of an unknown user alone


_OPTION = re.compile(r",(?=\s*\w+\s*=)")  # a path may itself contain commas

# Options that are not plain text: how to read them, and what to call them in an error.
_WHOLE: tuple[Callable[[str], Any], str] = (int, "a whole number")
_CONVERT: dict[tuple[str, str], tuple[Callable[[str], Any], str]] = {
    **{("digits", name): _WHOLE for name in SOURCES["digits"].options},
    ("table", "test_fraction"): (float, "a number"),
    ("folder", "test_fraction"): (float, "a number"),
    ("table", "images"): (lambda text: path_or_url(os.path.expanduser(text)), "a folder"),
    ("coco", "images"): (_path, "a folder"),
}


def counts_negatives(spec: str, setting: str) -> bool:
    """Whether images that show no class of a session take part in it, by the setting auto, none or labelled."""
    if setting not in NEGATIVES:
        raise unknown_name("value for negatives", setting, NEGATIVES)
    return setting == "labelled" or (setting == "auto" and SOURCES[kind_of(spec)].negatives)


def load(spec: str, images: str | None = None, contents: Contents | None = None) -> DataSet:
    """Read the data set that `spec` names, and look into its files where they decide what belongs together."""
    return resolve(read(spec, images), contents or Contents())


def resolve(found: Found, contents: Contents) -> DataSet:
    """The data set of what `read` has found, with duplicates brought together."""
    return found.resolve(contents) if isinstance(found, Listing) else found


def read(spec: str, images: str | None = None) -> Found:
    """Read what a data set lists, without looking into image files: `kind:path,option=value,...`.

    Arguments:
        spec: e.g. `coco:PATH,year=2017`, `voc:PATH`, `table:FILE,labels=tags`, `digits:train=400,seed=1`. The kind of
            an existing table or folder may be left out: `labels.csv,separator=comma`.
        images: the folder of the images; the same as the option `images=`.

    Raises:
        UserError: the kind or an option is unknown, a value is wrong, or the data set cannot be read.
    """
    source = SOURCES[kind_of(spec)]
    is_named = spec == source.name or spec.startswith(f"{source.name}:")
    path, options = _split(source, spec[len(source.name) + 1 :] if is_named else spec)
    if images is not None:
        _put(source, options, "images", images)
    values = {name: _convert(source, name, text) for name, text in options.items()}
    if not source.has_path:
        return source.read(**values)
    if not path:
        raise UserError(f"data set {spec!r} lacks its path, expected {source.usage}")
    return source.read(_path(path), **values)


def kind_of(spec: str) -> str:
    """The kind of data set that `spec` names, or that the file or folder which it names is; a key of SOURCES.

    Raises:
        UserError: it is neither a kind nor there.
    """
    kind = spec.partition(":")[0]
    if kind in SOURCES:
        return kind
    name = _OPTION.split(spec)[0]
    path = _path(name)
    if name and os.path.isdir(path):  # unlike a Path's own, never an error
        return _kind_of_folder(path)
    if os.path.isfile(path):
        return "table"
    if re.match(r"\w{2,}:", spec) is None:  # one letter is a drive of Windows
        if is_table(path):
            return "table"
        if WILDCARDS & set(name):
            return "folder"
        if len(path.parts) > 1 or path.suffix or name.startswith((".", "~")):
            raise UserError(f"{name} does not exist; expected a table, a folder, or one of {_usages()}")
    error = unknown_name("data set", kind, SOURCES)
    raise UserError(f"{error}; there is no file or folder of that name either")


def kind_if_there(spec: str) -> str | None:
    """As `kind_of`, None for what is not there (any more)."""
    try:
        return kind_of(spec)
    except UserError:
        return None


def _kind_of_folder(path: Path) -> str:
    if any(path.glob("annotations/instances_*.json")):
        return "coco"
    is_voc = any((path / name).is_dir() for name in ("ImageSets/Main", "VOCdevkit")) or any(path.glob("VOC*/ImageSets"))
    return "voc" if is_voc else "folder"


def _usages() -> str:
    return ", ".join(source.usage for source in SOURCES.values())


def _split(source: Source, text: str) -> tuple[str, dict[str, str]]:
    """The path and the options of `path,option=value,...`."""
    first, *pieces = _OPTION.split(text)
    if not source.has_path and text:
        first, pieces = "", [first, *pieces]
    options: dict[str, str] = {}
    for piece in pieces:
        name, _, value = piece.partition("=")
        _put(source, options, name.strip(), value)
    return first, options


def _put(source: Source, options: dict[str, str], name: str, value: str) -> None:
    if name not in source.options:
        raise unknown_name(f"option of {source.name}", name, source.options)
    if name in options:
        raise UserError(f"option {name} of {source.name} is given twice: {options[name]!r} and {value!r}")
    options[name] = value


def _convert(source: Source, name: str, text: str) -> Any:
    convert, expected = _CONVERT.get((source.name, name), (str, "text"))
    try:
        if not text:
            raise ValueError
        return convert(text)
    except ValueError:
        raise UserError(f"got {text!r} for option {name} of {source.name}, expected {expected}") from None
