"""Label names that look like mistakes: two labels in one, or one label in two spellings."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ..core.words import counted
from .images import Finding, Level

SEPARATORS = {"semicolon": ";", "comma": ",", "pipe": "|", "slash": "/", "tab": "\t", "blank": " "}
_ORDINARY = ("blank", "slash")  # also part of ordinary names, such as "traffic light"
SHOWN = 5  # pairs that a finding names
RARE = 5  # a misspelt label has at most this fraction of the images of the right one
NOTHING = {"none", "nothing", "nolabel", "nolabels", "negative", "negatives", "noneofthese", "background", "empty"}
# What a cell holds that is no list of labels: a number, a date, yes or no.
VALUE = re.compile(r"[-+]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*|true|false|yes|no", re.IGNORECASE)
ANSWERS = {"0", "1", "-1", "true", "false", "yes", "no"}
SHORTEST = 3  # letters; among shorter names one letter is no sign of a mistake

Counts = Mapping[str, int]  # images of each label


def find_joined(counts: Counts, separator: str) -> list[Finding]:
    """Labels that seem to be several: with another separator inside than the given one (such as ";")."""
    found = []
    for word, other in SEPARATORS.items():
        joined = {name: count for name, count in counts.items() if other != separator and other in name}
        if word in _ORDINARY:
            joined = {
                name: count for name, count in joined.items() if all(part in counts for part in _parts(name, other))
            }
        if joined:
            found.append(Finding(Level.LOOK, _joined_text(joined, separator, word)))
    return found


def find_values(counts: Counts) -> list[Finding]:
    """Labels that look like the content of another column: values among names, or nothing but answers."""
    values = [name for name in counts if VALUE.fullmatch(name)]
    if not values or (len(values) == len(counts) and not {one.casefold() for one in values} <= ANSWERS):
        return []
    text = f"labels that look like values: {_named([[name] for name in values], counts)}; are they from another column?"
    return [Finding(Level.LOOK, text)]


def find_look_alikes(counts: Counts) -> list[Finding]:
    """Labels that mean no label, and labels that differ so little that they may be one class."""
    groups = defaultdict(list)
    for name in sorted(counts):
        groups[_folded(name)].append(name)
    alike = [names for names in groups.values() if len(names) > 1]
    near = [[rare, common] for rare, common in _near(counts) if _folded(rare) != _folded(common)]
    words = [
        Finding(
            Level.LOOK,
            f"{name!r} ({counted(counts[name], 'image')}) is taken as a class; leave the label cell empty for an image "
            "that shows none of the classes, or name the folder of such images by negatives=NAME",
        )
        for name in counts
        if _folded(name) in NOTHING
    ]
    kinds = ((alike, "case, blanks, hyphens or underscores"), (near, "one letter"))
    return words + [
        Finding(
            Level.LOOK,
            f"labels that differ only by {how}: {_named(pairs, counts)}; use one spelling if they are one class",
        )
        for pairs, how in kinds
        if pairs
    ]


def _joined_text(joined: Counts, separator: str, word: str) -> str:
    first = max(sorted(joined), key=joined.__getitem__)
    others = "another label contains" if len(joined) == 2 else f"{len(joined) - 1} more labels contain"
    more = f", and {others} {SEPARATORS[word]!r}" if len(joined) > 1 else ""
    return (
        f"{counted(joined[first], 'image has', 'images have')} the label {first!r}{more}; labels are "
        f"separated by {separator!r}, so this is one label; add separator={word} to the data set's name if it is two"
    )


def _parts(name: str, separator: str) -> list[str]:
    return name.split() if separator == " " else [part.strip() for part in name.split(separator)]


def _folded(name: str) -> str:
    """A name without case, blanks, hyphens and underscores; accents in one form."""
    return re.sub(r"[\s_-]+", "", unicodedata.normalize("NFKC", name)).casefold()


def _near(counts: Counts) -> Iterator[tuple[str, str]]:
    """Pairs of a rare label and a common one that differ by one letter."""
    sharing = defaultdict(list)  # what is left of a name without one letter, or with all of them
    for name in sorted(counts):
        for rest in {name, *(name[:place] + name[place + 1 :] for place in range(len(name)))}:
            sharing[rest].append(name)
    pairs = {(one, two) for names in sharing.values() for one in names for two in names}
    for rare, common in sorted(pairs):
        if counts[rare] * RARE <= counts[common] and rare != common and _by_one_letter(rare, common):
            yield rare, common


def _by_one_letter(one: str, two: str) -> bool:
    short, long = sorted((one, two), key=len)
    start = next((place for place, letter in enumerate(short) if letter != long[place]), len(short))
    rest = start + 1 if len(short) == len(long) else start
    changed = long[start : start + 1] + short[start:rest]
    return short[rest:] == long[start + 1 :] and changed.isalpha() and len(long) >= SHORTEST


def _named(groups: list[list[str]], counts: Counts) -> str:
    texts = [" and ".join(f"{name!r} ({counted(counts[name], 'image')})" for name in names) for names in groups[:SHOWN]]
    more = [f"{len(groups) - SHOWN} more"] if len(groups) > SHOWN else []
    return "; ".join(texts + more)
