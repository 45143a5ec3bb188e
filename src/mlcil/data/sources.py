"""Naming a data set in one line of text, such as `coco:PATH,year=2017` or `digits`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError, unknown_name
from .coco import read_coco
from .contents import Contents
from .digits import read_digits
from .images import DataSet
from .table import read_table
from .voc import read_voc


@dataclass(frozen=True)
class Source:
    """A kind of data set.

    Attributes:
        name: what stands before the colon.
        usage: the shortest complete example.
        summary: one line about it.
        options: what each option means, by name.
        read: the function that reads it.
    """

    name: str
    usage: str
    summary: str
    options: Mapping[str, str]
    read: Callable[..., DataSet]
    negatives: bool = False

    @property
    def has_path(self) -> bool:
        """Whether a path stands after the colon."""
        return ":" in self.usage


_NEG = {"table"}


def _source(name: str, usage: str, summary: str, read: Callable[..., DataSet], **options: str) -> Source:
    return Source(name, usage, summary, options, read, name in _NEG)


Found = DataSet
SOURCES = {
    source.name: source
    for source in (
        _source(
            "coco",
            "coco:PATH",
            "MS-COCO 2014 or 2017, or any data set in COCO's layout",
            read_coco,
            year="2014 or 2017 (default: the one that is there, 2014 if both are)",
            train="another training annotation file, e.g. instances_mine.json",
            test="another test annotation file",
            images="the folder of the images (default: PATH)",
        ),
        _source(
            "voc",
            "voc:PATH",
            "PASCAL VOC; trains on trainval, tests on test",
            read_voc,
            year="which VOC<year> folder to take (default: 2007)",
            difficult="what a class seen only as difficult counts as: absent (default) or unknown",
        ),
        _source(
            "table",
            "table:FILE",
            "a CSV or Parquet table with a row per image",
            read_table,
            images="the folder that relative paths start from (default: the table's)",
            path="the column of image paths (default: path, file, filename or image)",
            labels="the column of ;-separated labels (default: labels or tags; else a column per class)",
            split="the column that says train or test (default: split or set; else a hash decides)",
            test_fraction="share of test images where no column decides (default: 0.2)",
        ),
        _source(
            "digits",
            "digits",
            "canvases with one to four handwritten digits; nothing to download",
            read_digits,
            train="number of training canvases (default: 2000)",
            test="number of test canvases (default: 1000)",
            size="height and width of a canvas in pixels (default: 64)",
            seed="another seed gives other canvases (default: 0)",
        ),
    )
}

# Options that are not plain text: how to read them, and what to call them in an error.
_WHOLE: tuple[Callable[[str], Any], str] = (int, "a whole number")
_CONVERT: dict[tuple[str, str], tuple[Callable[[str], Any], str]] = {
    **{("digits", name): _WHOLE for name in SOURCES["digits"].options},
    ("table", "test_fraction"): (float, "a number"),
    ("table", "images"): (lambda text: Path(text).expanduser(), "a folder"),
    ("coco", "images"): (lambda text: Path(text).expanduser(), "a folder"),
}


def kind_of(spec: str) -> str:
    """The kind."""
    return spec.partition(":")[0]


def counts_negatives(spec: str, setting: str) -> bool:
    """Whether images that show no class of a session take part in it, by the setting auto, none or labelled."""
    return setting == "labelled" or (setting == "auto" and SOURCES[kind_of(spec)].negatives)


def load(spec: str, images: str | None = None, contents: Contents | None = None) -> DataSet:
    """Read the data set that `spec` names, and look into its files where they decide what belongs together."""
    return resolve(read(spec, images), contents or Contents())


def resolve(found: DataSet, contents: Contents) -> DataSet:
    """The data set of what `read` has found, with duplicates brought together."""
    return found


def read(spec: str, images: str | None = None) -> DataSet:
    """Read what a data set lists, without looking into image files: `kind:path,option=value,...`.

    Arguments:
        spec: e.g. `coco:PATH,year=2017`, `voc:PATH`, `table:FILE,labels=tags`, `digits:train=400,seed=1`.
        images: the folder of the images; the same as the option `images=`.

    Raises:
        UserError: the kind or an option is unknown, a value is wrong, or the data set cannot be read.
    """
    kind, _, rest = spec.partition(":")
    if kind not in SOURCES:
        raise unknown_name("data set", kind, SOURCES)
    source = SOURCES[kind]
    path, options = _split(source, rest)
    if images is not None:
        _put(source, options, "images", images)
    values = {name: _convert(source, name, text) for name, text in options.items()}
    if not source.has_path:
        return source.read(**values)
    if not path:
        raise UserError(f"data set {spec!r} lacks its path, expected {source.usage}")
    return source.read(Path(path).expanduser(), **values)


def _split(source: Source, text: str) -> tuple[str, dict[str, str]]:
    """The path and the options of `path,option=value,...`; a path may itself contain commas."""
    first, *pieces = re.split(r",(?=\s*\w+\s*=)", text)
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
