"""What a person should know about data before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.words import counted, listed
from .contents import Contents, FileFacts
from .decoding import BadImage
from .denials import with_denials
from .images import ABSENT, PRESENT, UNKNOWN, DataSet, Finding, LabelledImages, Level
from .listing import Listing
from .pixels import DecodedPixels
from .protocol import Protocol, Session, make_protocol
from .sources import counts_negatives, read, resolve

FEW = 10  # a class with fewer training images is hardly learned
ANY_SIZE = 32  # pixels; to see whether an image can be decoded, a small copy will do
SMALL = 64  # pixels; the shorter side of an image that shows little


class LabelCounts(NamedTuple):
    """On how many images each class is present, known to be absent, and unknown; each int64 (K,)."""

    present: NDArray[np.int64]
    absent: NDArray[np.int64]
    unknown: NDArray[np.int64]


@dataclass(frozen=True)
class Review:
    """A data set, what a protocol makes of it, and what should be known about both.

    Attributes:
        data: the images, duplicates brought together.
        files: what is known about each image file, training images first; empty for images that are no files.
        protocol, sessions: what a protocol makes of the data; None and none if no protocol was named.
        findings: the worst first.
    """

    data: DataSet = field(repr=False)
    files: tuple[FileFacts, ...] = field(repr=False)
    protocol: Protocol | None = field(repr=False)
    sessions: tuple[Session, ...] = field(repr=False)
    findings: tuple[Finding, ...]


def review(
    spec: str,
    contents: Contents,
    images: str | None = None,
    protocol: str | None = None,
    order: str | None = None,
    negatives: str = "auto",
    decodes: bool = False,
) -> Review:
    """Look at a data set and train nothing: as a run does if there is a protocol, otherwise as a lesson of a tagger.

    Arguments:
        spec, images, protocol, order, negatives: the settings `data`, `images`, ... of a run.
        contents: looks into the image files.
        decodes: decode every image, and not only look at its header.

    Raises:
        UserError: the data set cannot be read, or the protocol does not fit it.
    """
    found = read(spec, images)
    if protocol is None and isinstance(found, Listing):
        data = found.united(contents, draws=False)
        data = DataSet(with_denials(data.train)[0], with_denials(data.test)[0], data.findings)
    else:
        data = resolve(found, contents)
    is_in_files = data.train.pixels is None
    files = tuple(contents.look((*data.train.paths, *data.test.paths))) if is_in_files else ()
    findings = [*data.findings, *review_files((*data.train.paths, *data.test.paths), files)]
    if decodes and is_in_files:
        findings += _decode_all(data, files, contents)
    made, sessions = None, []
    if protocol is not None:
        made = make_protocol(data, protocol, order, counts_negatives(spec, negatives))
        sessions = made.sessions()
        findings += review_protocol(data, made, sessions)
    return Review(data, files, made, tuple(sessions), tuple(sorted(findings)))


def count_labels(labels: NDArray[np.int8]) -> LabelCounts:
    """Count the labels (N, K) of each class."""
    return LabelCounts(*((labels == value).sum(axis=0) for value in (PRESENT, ABSENT, UNKNOWN)))


def review_files(paths: Sequence[str], files: Sequence[FileFacts]) -> list[Finding]:
    """What the files themselves tell: which cannot be read, and which are very small."""
    both = list(zip(paths, files, strict=False))  # images in memory have no files
    reasons: dict[str, list[str]] = {}
    for path, one in both:
        if one.problem is not None:
            reasons.setdefault(one.problem, []).append(path)
    found = [
        Finding(Level.FIX_FIRST, f"{counted(len(bad), 'image')} cannot be read ({reason}): {listed(bad, 3)}")
        for reason, bad in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    small = [path for path, one in both if 0 < min(one.width, one.height) < SMALL]
    if small:
        count = counted(len(small), "image")
        found.append(Finding(Level.LOOK, f"smaller than {SMALL} pixels: {count}, {listed(small, 3)}"))
    return found


def review_protocol(whole: DataSet, protocol: Protocol, sessions: Sequence[Session]) -> list[Finding]:
    """What a protocol makes of the data: what it leaves out, and what cannot be learned or measured.

    Arguments:
        whole: the data set with all of its classes.
        protocol: made of it.
        sessions: those of the protocol.
    """
    found = _left_out(whole, protocol, sessions) + _hidden(whole, protocol)
    for session in sessions:
        counts = count_labels(session.labels[:, session.first :])
        tested = protocol.data.test.labels[protocol.test_rows(session.stop)][:, session.first : session.stop]
        found += _unlearnable(session, counts, protocol.has_negatives) + _unmeasurable(session, count_labels(tested))
    return found


def _decode_all(data: DataSet, files: Sequence[FileFacts], contents: Contents) -> list[Finding]:
    """Decode every image whose header is in order, and name those that cannot be decoded."""
    paths = [path for path, one in zip((*data.train.paths, *data.test.paths), files, strict=True) if not one.problem]
    decoder = DecodedPixels(paths, ANY_SIZE, [one.digest for one in files if not one.problem], contents.megapixels, 2)
    found = []
    for done, (_, image) in enumerate(decoder.compute(range(len(paths))), start=1):
        if isinstance(image, BadImage):
            found.append(Finding(Level.FIX_FIRST, str(image)))
        if contents.on_progress:
            contents.on_progress(done, len(paths))
    return found


def _left_out(whole: DataSet, protocol: Protocol, sessions: Sequence[Session]) -> list[Finding]:
    kept = set(protocol.classes)
    shown = _shown(whole.train) + _shown(whole.test)
    names = sorted((name for name in whole.train.classes if name not in kept), key=lambda name: (-shown[name], name))
    found = []
    if names:
        counts = [counted(shown[names[0]], "image"), *(str(shown[name]) for name in names[1:])]
        text = listed(f"{name!r} ({count})" for name, count in zip(names, counts, strict=True))
        found.append(Finding(Level.LOOK, f"left out by the protocol: {text}"))
    used = [one.indices for one in sessions] + [one.validation.indices for one in sessions]
    unused = len(whole.train) - len(np.unique(np.concatenate(used)))
    if unused:
        why = "nothing is known about them" if protocol.has_negatives else "they show none of its classes"
        text = f"in no session: {counted(unused, 'image')} for training, because {why}"
        if protocol.has_negatives:
            text += " or their labels are of classes that the protocol leaves out"
        found.append(Finding(Level.NOTE, text))
    return found


def _hidden(whole: DataSet, protocol: Protocol) -> list[Finding]:
    """How many test labels a session column turns into unknown ones."""
    given = whole.test.with_classes(protocol.classes).labels
    hidden = int(((protocol.data.test.labels == UNKNOWN) & (given != UNKNOWN)).sum())
    if not hidden:
        return []
    text = (
        f"{hidden} of {given.size} test labels are taken as unknown, because a list of labels that came with one "
        "session says nothing about classes of others; in a table with a column per class, 0 and 1 are known"
    )
    return [Finding(Level.NOTE, text)]


def _unlearnable(session: Session, counts: LabelCounts, has_negatives: bool) -> list[Finding]:
    names, where = session.new_classes, f"session {session.number}"
    found = []
    only = [name for name, *row in zip(names, counts.present, counts.absent, strict=True) if row[0] and not row[1]]
    if only:
        alone = " and teaches nothing else" if len(names) == 1 else ""
        advice = "Add photos that do not show it, with an empty label cell"
        if not has_negatives:
            advice = "With negatives=labelled, photos that show no class are part of it"
        text = (
            f"{where} has no image without {listed(only)}{alone}, so it cannot learn what tells such a class from "
            f"others: it may be tagged on everything or on nothing. {advice}"
        )
        found.append(Finding(Level.FIX_FIRST, text))
    few = [f"{name} ({count})" for name, count in zip(names, counts.present, strict=True) if count < FEW]
    if few:
        found.append(Finding(Level.LOOK, f"{where} has fewer than {FEW} training images of {listed(few)}"))
    return found


def _unmeasurable(session: Session, counts: LabelCounts) -> list[Finding]:
    names, where = session.new_classes, f"session {session.number}"
    missing = [name for name, count in zip(names, counts.present, strict=True) if not count]
    everywhere = [
        name for name, *row in zip(names, counts.present, counts.absent, strict=True) if row[0] and not row[1]
    ]
    found = []
    if missing:
        found.append(Finding(Level.LOOK, f"no test image that {where} is measured on shows {listed(missing)}"))
    if everywhere:
        text = (
            f"every test image after {where} shows {listed(everywhere)}, so its AP would always be 100 and is left out"
        )
        found.append(Finding(Level.LOOK, text))
    return found


def _shown(part: LabelledImages) -> Counter[str]:
    return Counter(dict(zip(part.classes, count_labels(part.labels).present.tolist(), strict=True)))
