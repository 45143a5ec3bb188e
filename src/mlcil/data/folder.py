"""Reading a folder of photos: labels from folder names, from XMP sidecars or from a metadata table."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..core.errors import UserError, unknown_name
from ..core.remote import list_files
from ..core.words import counted
from .folder_metadata import metadata_files, read_metadata
from .images import BY_LABELS, UNKNOWN, Finding, Level
from .listing import Listing
from .table import SPLITS, Labels, from_lists
from .xmp import find_sidecars, read_sidecars

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".jfif",
    ".png",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".avif",
    ".heic",
    ".heif",
    ".jp2",
)
LABELS = ("auto", "folders", "metadata", "xmp")
WILDCARDS = frozenset("*?[")


def read_folder(
    root: Path,
    labels: str = "auto",
    negatives: str | None = None,
    separator: str = "semicolon",
    test_fraction: float = 0.2,
) -> Listing:
    """Read the photos of a folder and of the folders in it.

    Arguments:
        root: the folder, or a pattern such as `photos/**/*.jpg`.
        labels: where labels come from: folders (`cat/1.jpg`), xmp (sidecars), metadata (`metadata.csv`, `.jsonl` or
            `.parquet`), or auto for the first of metadata, xmp and folders that is there.
        negatives: the folder whose photos show none of the classes.
        separator: of the labels in a metadata table, see `read_table`.
        test_fraction: see `sources.SOURCES`.

    Returns:
        Labels int8 (N, K), rows sorted by path, classes by name.

    Raises:
        UserError: there are no photos or no labels, or an option is wrong.
    """
    if labels not in LABELS:
        raise unknown_name("value for option labels of folder", labels, LABELS)
    is_pattern = not os.path.exists(root) and bool(WILDCARDS & set(str(root)))
    photos = find_photos(root, is_pattern)
    base = _fixed_part(root) if is_pattern else root
    tables = [] if is_pattern else metadata_files(root)
    sidecars = find_sidecars(photos) if labels == "xmp" or (labels == "auto" and not tables) else {}
    if labels == "auto":
        labels = "metadata" if tables else "xmp" if sidecars else "folders"
    if negatives is not None and labels != "folders":
        raise UserError(f"negatives= names a folder of photos, but the labels of {root} come from {labels}")
    if labels == "metadata":
        return read_metadata(base, tables, photos, separator, test_fraction)
    if labels == "xmp":
        return _from_sidecars(base, photos, sidecars, test_fraction)
    return _from_folders(base, photos, is_pattern, negatives, test_fraction)


def _in_any_case(pattern: str) -> str:
    """A pattern whose ending also matches as cameras write it, such as .JPG."""
    stem, dot, ending = pattern.rpartition(".")
    if os.sep in ending or not ending.isalnum():
        return pattern
    return stem + dot + "".join(f"[{one.lower()}{one.upper()}]" for one in ending)


def find_photos(root: Path, is_pattern: bool) -> list[Path]:
    """The photos of a folder and of those in it, or of a pattern, sorted.

    Raises:
        UserError: there are none.
    """
    if is_pattern:
        names = glob.iglob(_in_any_case(str(root)), recursive=True)
        found = {Path(name) for name in names if _is_photo(os.path.basename(name)) and os.path.isfile(name)}
    elif os.path.isdir(root):
        found = set(_photos_below(root))
    else:
        raise UserError(f"folder {root} does not exist or is not a folder")
    if not found:
        raise UserError(f"{root} {'matches' if is_pattern else 'has'} no image files (such as .jpg or .png)")
    return sorted(found)


def find_photos_at(url: str) -> list[str]:
    """The URLs of the photos in a folder at a URL and in those below it, or of a pattern, sorted; a file is itself one.

    Raises:
        UserError: there are none, or it cannot be read.
    """
    found = list_files(url, _in_any_case(url) if WILDCARDS & set(url) else None)
    photos = found if found == [url] else [one for one in found if _is_photo(one.rpartition("/")[2])]
    if not photos:
        raise UserError(f"{url} has no image files (such as .jpg or .png)")
    return photos


def _fixed_part(pattern: Path) -> Path:
    """The folder of a pattern above its first wildcard."""
    fixed = pattern
    while WILDCARDS & set(str(fixed)):
        fixed = fixed.parent
    return fixed


def _photos_below(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The photos of a folder and those in it; `above` are the folders that it is in, as links may lead in circles."""
    real = os.path.realpath(folder)
    try:
        entries = [] if real in above else [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"cannot read folder {folder}: {error.strerror or error}") from None
    for entry in entries:
        if os.path.isdir(entry):
            yield from _photos_below(entry, above | {real})
        elif _is_photo(entry.name):
            yield entry


def _is_photo(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(EXTENSIONS)


def _from_folders(
    base: Path, photos: list[Path], is_pattern: bool, negatives: str | None, test_fraction: float
) -> Listing:
    """A class per folder: the one right below the base or its part; of a pattern, the one that the photo is in."""
    parts = _parts(base, photos)
    names = []
    for photo, part in zip(photos, parts, strict=True):
        folders = photo.relative_to(base).parts[1 if part else 0 : -1]
        alone = base.absolute().name if is_pattern and not part else ""
        names.append(folders[-1 if is_pattern else 0] if folders else alone)
    labelled = [row for row, name in enumerate(names) if name]
    if not labelled:
        raise UserError(f"{base} has no class folders with images, expected such as {base / 'cat' / '1.jpg'}")
    if negatives is not None and negatives not in names:
        raise unknown_name(f"folder of negatives in {base}:", negatives, {names[row] for row in labelled})
    classes, matrix, findings = from_lists([{names[row]} - {negatives or ""} for row in labelled])
    if not classes:
        raise UserError(f"{base} has no class folders besides the negatives {negatives!r}")
    if len(labelled) < len(photos):
        loose = photos[names.index("")]
        count = counted(len(photos) - len(labelled), "image is", "images are")
        text = f"{count} in no class folder of {base} and left out, first {loose}"
        findings += (Finding(Level.LOOK, text),)
    chosen = [photos[row] for row in labelled]
    return _listing(base, chosen, (classes, matrix, findings), [parts[row] for row in labelled], test_fraction)


def _parts(base: Path, photos: Sequence[Path]) -> list[str]:
    """The part of each photo by the folder on top: "train", "test", or "" if that says nothing.

    A class may be called train as well: beside other folders, the name is a part only if it has folders of its own.
    """
    tops = [photo.relative_to(base).parts for photo in photos]
    names = {parts[0] for parts in tops if len(parts) > 1}
    splits = {name for name in names if name.lower() in SPLITS}
    if splits != names:
        splits &= {parts[0] for parts in tops if len(parts) > 2}
    return [SPLITS[parts[0].lower()] if parts[0] in splits else "" for parts in tops]


def _from_sidecars(base: Path, photos: list[Path], sidecars: dict[Path, list[Path]], test_fraction: float) -> Listing:
    keywords, damaged = read_sidecars(sidecars)
    tags = [keywords.get(photo, set()) for photo in photos]
    classes, matrix, findings = from_lists(tags)
    if not classes:
        wrong = f"; damaged: {damaged[0]}" if damaged else ""
        raise UserError(f"no photo in {base} has a keyword in an XMP sidecar{wrong}")
    unlabelled = [row for row, names in enumerate(tags) if not names]
    matrix[unlabelled] = UNKNOWN
    if unlabelled:
        first = photos[unlabelled[0]]
        count = counted(len(unlabelled), "image has", "images have")
        text = f"{count} no keywords in {base}, first {first}; taken as not looked at"
        findings += (Finding(Level.NOTE, text),)
    if damaged:
        count = "1 sidecar is" if len(damaged) == 1 else f"{len(damaged)} sidecars are"
        findings += (Finding(Level.LOOK, f"{count} damaged and left out, first {damaged[0]}"),)
    return _listing(base, photos, (classes, matrix, findings), _parts(base, photos), test_fraction)


def _listing(
    base: Path,
    photos: list[Path],
    labels: Labels,
    parts: list[str],
    test_fraction: float,
) -> Listing:
    classes, matrix, findings = labels
    paths = tuple(map(str, photos))
    arrivals = np.full(len(paths), BY_LABELS, dtype=np.int16)
    places = ("",) * len(paths)
    return Listing(str(base), paths, matrix, classes, tuple(parts), arrivals, places, test_fraction, findings)
