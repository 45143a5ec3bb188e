"""Teaching a tagger by marks: the photos of a folder, what was said about them, and what follows from it.

All that is shown is a function of the tagger, the photos and the journal, so a restart shows the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.words import counted
from ..methods.analytic import Analytic
from ..serving.changing import exact_copy
from ..serving.tagger import Tagger
from .book import Book, TaughtLabel, words
from .indexing import Indexer
from .journal import Entry, Journal
from .photo_index import PhotoIndex
from .photos import Photos
from .saving import Lesson, taught
from .scoring import LabelScores, Scorer
from .suggestions import Suggestions, suggest
from .teaching_folder import TeachingFolder


class Workbench:
    """Everything that the page asks for; each method may be called from any thread.

    Arguments:
        tagger: that is taught; it stays as it is, and `save` writes a new one.
        paths: the photos.
        folder: the teaching folder, made if it is not there.
        source: where the photos are, in words.

    Raises:
        UserError: the tagger cannot learn by marks, or another program is teaching in this folder.
    """

    def __init__(self, tagger: Tagger, paths: Sequence[str], folder: Path, source: str) -> None:
        net = check_teachable(tagger).tagger
        self.tagger, self.source = tagger, source
        self.folder = TeachingFolder(folder, tagger)
        self.journal = Journal(self.folder.journal)
        self.index = PhotoIndex(self.folder.index, net.fingerprint())
        self.photos = Photos(net.width, len(paths))
        self.indexer = Indexer(tagger, paths, self.index, self.photos)
        self.scorer = Scorer(tagger, self.photos)
        self.book = self._replayed()
        self.lock = RLock()
        self._shown: dict[str, set[str]] = {}  # photos that were suggested, by label
        self._saved_until = self.folder.saved_until()
        self.indexer.start()

    def close(self) -> None:
        """Stop looking at photos and let go of the folder."""
        self.indexer.stop()
        self.index.close()
        self.folder.close()

    def mark(self, label: str, yes: Sequence[str], no: Sequence[str], unknown: Sequence[str]) -> None:
        """Note what a person says about photos; it is on disk when this returns.

        Raises:
            UserError: a photo is not there, is marked in two ways, or the label cannot be called so.
        """
        photos = [*yes, *no, *unknown]
        for photo in photos:
            if self.photos.row(photo) is None:
                raise UserError(f"there is no photo {photo[:40]!r} here")
        if len(set(photos)) < len(photos):
            raise UserError(f"a photo is marked in two ways for {label!r}, expected one")
        if not photos:
            return
        asked = [photo for photo in (*yes, *no) if photo in self._shown.get(label, ())]
        self.do({"do": "mark", "label": label, "yes": yes, "no": no, "unknown": unknown, "asked": asked})

    def do(self, entry: Entry) -> None:
        """Do what an entry says and keep it.

        Raises:
            UserError: it makes no sense, or cannot be kept; then nothing has changed.
        """
        with self.lock:
            self.book.check(entry)
            if entry["do"] == "merge":
                self._check_merge(entry)
            self.journal.add(entry)
            self.book.apply(entry)

    def undo(self, again: bool = False) -> str | None:
        """Take the last deed back, or do `again` what was undone last; returns what it was, in words."""
        with self.lock:
            entry = self.journal.redo() if again else self.journal.undo()
            self.book = self._replayed()
            return None if entry is None else words(entry)

    def view(self, name: str) -> tuple[TaughtLabel, LabelScores | None, Suggestions | None]:
        """A label, how photos score for it, and which ones to ask about."""
        with self.lock:
            label = self.book.labels.get(name, TaughtLabel(name))
            found = self.scorer.of(label)
            if found is None:
                return label, None, None
            told = self.told(label)[: len(found.scores)]
            rows = suggest(found, told, self.photos.features[: len(found.scores)])
            shown = self._shown.setdefault(name, set())
            shown |= {self.photos.id(int(row)) for row in (*rows.likely, *rows.unsure, *rows.surprising)}
            return label, found, rows

    def told(self, label: TaughtLabel) -> NDArray[np.int8]:
        """(N,) what is known about photos: what was marked here, else what the tagger was told before."""
        found = self.scorer.told(label).copy()
        for photo, shown in label.marks.items():
            row = self.photos.row(photo)
            if row is not None and row < len(found):
                found[row] = int(shown)
        return found

    def tags(self) -> dict[str, NDArray[np.bool_]]:
        """(N,) by label, whether photos get it."""
        with self.lock:
            _, own = self.scorer.probabilities()
            found = {}
            for label in self.book.labels.values():
                if len(label.bases) == 1 and not label.marks and label.threshold is None:
                    found[label.name] = own[:, self.tagger.column(label.bases[0])]
                elif (scores := self.scorer.of(label)) is not None:
                    found[label.name] = scores.is_tagged
            count = min((len(one) for one in found.values()), default=0)
            return {name: one[:count] for name, one in found.items()}

    def save(self, name: str | None) -> tuple[Tagger, list[str]]:
        """Write a new version of the tagger; returns it, and what there is to say.

        Arguments:
            name: of its folder, beside the tagger's own; None for the next free one.

        Raises:
            UserError: the name is taken, or nothing was changed.
        """
        with self.lock:
            if not self.journal.done:
                raise UserError("nothing was marked or changed yet, so there is nothing to save")
            target = self.folder.next_version() if name is None else self.folder.version(name)
            lesson, before, sequence = self._lesson(), self.tags(), self.journal.sequence
        began = time.monotonic()
        made = Tagger.load(taught(self.tagger, lesson).save(target))
        self.folder.note_save(sequence, target.name)
        self._saved_until = sequence
        seconds = time.monotonic() - began
        return made, [*self._report(made, lesson, before), f"saved {target.name} in {seconds:.1f} s"]

    @property
    def unsaved(self) -> int:
        """Lines of the journal since the last save."""
        return max(0, self.journal.sequence - self._saved_until)

    def _lesson(self) -> Lesson:
        """What is to be learned."""
        labels = [one for one in self.book.labels.values() if not one.is_new or one.yes]
        scores = {one.name: found for one in labels if (found := self.scorer.of(one)) is not None}
        count = min(len(one.scores) for one in scores.values())
        photos = [self.photos.id(row) for row in range(count)]
        changed = [one for one in labels if one.is_new or one.threshold is not None]
        facts = {}
        for one in labels:
            if one.marks:
                precision, recall = scores[one.name].expectation.at(scores[one.name].score_threshold)
                facts[one.name] = precision.value, recall.value
        return Lesson(
            labels,
            self.source,
            photos,
            self.photos.fingerprints[:count],
            self.photos.features[:count],
            {name: one.weights for name, one in scores.items()},
            {one.name: scores[one.name].score_threshold for one in changed},
            facts,
        )

    def _report(self, made: Tagger, lesson: Lesson, before: dict[str, NDArray[np.bool_]]) -> list[str]:
        """What became of the labels on the photos here."""
        new = [one.name for one in lesson.labels if one.is_new]
        told = sum(len(one.marks) for one in lesson.labels)
        lines = [f"{counted(len(made.classes), 'label')}, {len(new)} of them new, from {counted(told, 'mark')}"]
        here = set(lesson.photos)
        if lost := len({photo for one in lesson.labels for photo in one.marks} - here):
            lines.append(f"{counted(lost, 'marked photo')} could not be found any more and did not count")
        after = Scorer(made, self.photos).probabilities()[1]
        touched = {one.name for one in lesson.labels if one.marks or one.threshold is not None or len(one.bases) > 1}
        others = [name for name in made.classes if name not in touched]
        pairs = [(before[name][: len(here)], after[: len(here), made.column(name)]) for name in others]
        moved = sum(int((one[: len(other)] != other[: len(one)]).sum()) for one, other in pairs)
        if others:
            decisions = f"{moved:,} of {sum(len(one) for one, _ in pairs):,} decisions"
            lines.append(f"the {counted(len(others), 'other label')}: {decisions} on the photos here are different now")
        return lines

    def _check_merge(self, entry: Entry) -> None:
        """Make sure that the photos that have both labels are here."""
        bases = [*self.book.label(entry["label"]).bases, *self.book.label(entry["into"]).bases]
        ledger = self.scorer.ledger
        if len(bases) < 2:
            return
        labels = ledger.labels_now()[:, [ledger.classes.index(name) for name in bases]]
        both = ledger.fingerprints[(labels == 1).sum(axis=1) > 1]
        missing = int((~np.isin(both, self.photos.fingerprints)).sum())
        if missing:
            raise UserError(
                f"cannot merge {entry['label']!r} into {entry['into']!r} exactly: {counted(missing, 'photo')} that the "
                "tagger has learned both from cannot be looked at here"
            )

    def _replayed(self) -> Book:
        return Book(self.tagger.classes, self.tagger.chosen or {}, self.journal.done)


def check_teachable(tagger: Tagger) -> Analytic:
    """Make sure that a tagger can learn by marks; returns its method.

    Raises:
        UserError: it has another method than the closed form, or lacks what learning needs.
    """
    method = tagger.method
    if not isinstance(method, Analytic) or not method.is_all_in_sums or tagger.slim:
        return exact_copy(tagger, "learn by marks")  # which says why not
    if not method.ledger.remembers:
        raise UserError(f"{tagger.path} does not remember its photos (remember: none), so it cannot learn by marks")
    return method
