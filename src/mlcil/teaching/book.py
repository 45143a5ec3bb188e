"""What the journal comes to: the labels as they are to be, and what was said about which photo."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.errors import UserError, shown, unknown_name
from .journal import Entry

LONGEST_NAME = 200  # characters


@dataclass(frozen=True)
class TaughtLabel:
    """A label.

    Attributes:
        name: as it is called now.
        bases: the labels of the tagger that it consists of; none for a new one.
        marks: whether photos show it, by their ids.
        asked: marked photos that a person was asked about, and has not looked for.
        threshold: a probability that a person has chosen, None for the label's own.
    """

    name: str
    bases: tuple[str, ...] = ()
    marks: Mapping[str, bool] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    threshold: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether the tagger does not know it."""
        return not self.bases

    @property
    def yes(self) -> int:
        """Photos that were marked as showing it."""
        return sum(self.marks.values())


class Book:
    """The labels after everything that was said.

    Arguments:
        known: the labels of the tagger.
        chosen: thresholds that a person has chosen for them before.
    """

    def __init__(self, known: Sequence[str], chosen: Mapping[str, float], entries: Iterable[Entry] = ()) -> None:
        self.labels = {name: TaughtLabel(name, (name,), threshold=chosen.get(name)) for name in known}
        for entry in entries:
            try:
                self.apply(entry)
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                raise UserError(f"the journal has an entry that makes no sense: {shown(entry)}") from error

    def label(self, name: str) -> TaughtLabel:
        """A label by its name.

        Raises:
            UserError: there is no such label.
        """
        if name not in self.labels:
            raise unknown_name("label", name, self.labels)
        return self.labels[name]

    def apply(self, entry: Entry) -> None:
        """Do what an entry says; `check` has found that it can be done."""
        deeds = {
            "mark": self._mark,
            "rename": self._rename,
            "merge": self._merge,
            "delete": self._delete,
            "threshold": self._threshold,
        }
        deeds[entry["do"]](entry)

    def check(self, entry: Entry) -> None:
        """Find out whether an entry makes sense.

        Raises:
            UserError: it does not.
        """
        deed, name = entry["do"], entry["label"]
        if deed == "mark":
            if name not in self.labels:
                check_name(name)
            return
        self.label(name)
        if deed == "rename":
            check_name(entry["to"])
            if entry["to"] in self.labels:
                raise UserError(f"there is a label {entry['to']!r} already; merge the two instead")
        elif deed == "merge":
            self.label(entry["into"])
            if entry["into"] == name:
                raise UserError(f"cannot merge {name!r} with itself")
        elif deed == "threshold" and entry["value"] is not None and not 0 <= entry["value"] <= 1:
            raise UserError(f"got threshold {entry['value']} for {name!r}, expected 0 to 1")
        elif deed == "delete" and len(self.labels) == 1:
            raise UserError(f"{name!r} is the only label, and a tagger needs at least one")

    def _mark(self, entry: Entry) -> None:
        name = entry["label"]
        label = self.labels.get(name, TaughtLabel(name))
        marks, asked = dict(label.marks), set(label.asked)
        for said, present in (("yes", True), ("no", False), ("unknown", None)):
            for photo in entry.get(said, ()):
                marks.pop(photo, None)
                asked.discard(photo)
                if present is not None:
                    marks[photo] = present
                    asked |= {photo} & set(entry.get("asked", ()))
        self.labels[name] = replace(label, marks=marks, asked=frozenset(asked))

    def _rename(self, entry: Entry) -> None:
        old, new = entry["label"], entry["to"]
        self.labels = {
            new if name == old else name: replace(label, name=new) if name == old else label
            for name, label in self.labels.items()
        }

    def _merge(self, entry: Entry) -> None:
        gone, into = self.labels.pop(entry["label"]), self.labels[entry["into"]]
        marks = {**gone.marks, **into.marks}
        marks |= {photo: True for photo in marks if gone.marks.get(photo) or into.marks.get(photo)}
        self.labels[into.name] = replace(
            into, bases=(*into.bases, *gone.bases), marks=marks, asked=into.asked | gone.asked
        )

    def _delete(self, entry: Entry) -> None:
        del self.labels[entry["label"]]

    def _threshold(self, entry: Entry) -> None:
        label = self.labels[entry["label"]]
        self.labels[label.name] = replace(label, threshold=entry["value"])


def check_name(name: str) -> None:
    """Find out whether a label may be called so.

    Raises:
        UserError: the name is empty, very long, or has characters that cannot be shown in one line.
    """
    if not name.strip() or name != name.strip():
        raise UserError(f"got {name!r} as the name of a label, expected some text without spaces around it")
    if len(name) > LONGEST_NAME:
        raise UserError(f"the name of a label has {len(name)} characters, expected at most {LONGEST_NAME}")
    if any(unicodedata.category(one) in ("Cc", "Zl", "Zp", "Cs") for one in name):
        raise UserError(f"got {name!r} as the name of a label, expected text in one line")


def words(entry: Entry) -> str:
    """An entry for a person, as in "bicycle: yes to 3 photos"."""
    if entry["do"] == "mark":
        told = [f"{said} to {len(photos)}" for said in ("yes", "no", "unknown") if (photos := entry.get(said))]
        return f"{entry['label']}: {', '.join(told)}"
    if entry["do"] == "rename":
        return f"{entry['label']} renamed to {entry['to']}"
    if entry["do"] == "merge":
        return f"{entry['label']} merged into {entry['into']}"
    if entry["do"] == "threshold":
        return f"threshold of {entry['label']}"
    return f"{entry['label']} deleted"
