"""The protocol: which classes arrive in which session, and which labels that session may see."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError, unknown_name
from ..core.randomness import Stream, stream_key
from ..core.words import counted
from . import class_lists
from .images import ABSENT, BY_LABELS, EVERY_SESSION, PRESENT, UNKNOWN, DataSet, LabelledImages

FORMS = "B<base>-C<step> (such as B40-C10), joint, or class lists (such as cat,dog|car,bus)"


class Validation(NamedTuple):
    """Images of a session that no session has trained on, to calibrate scores with.

    Attributes:
        indices: int64 (V,), rows of the whole training set.
        labels: int8 (V, stop): new columns as annotated, older ones unknown (-1).
    """

    indices: NDArray[np.int64] = np.empty(0, np.int64)
    labels: NDArray[np.int8] = np.empty((0, 0), np.int8)


@dataclass(frozen=True, eq=False)
class Session:
    """What one session may see: its images, and of their labels the new columns alone.

    The labels of every other column are not here at all, so nothing can read them by mistake.

    Attributes:
        number: counts from 1.
        first: the first new column; the columns [0, first) belong to earlier sessions.
        stop: one past the last new column.
        classes: all `stop` classes seen so far, in column order.
        indices: int64 (N,), rows of the whole training set, to be trained on: as published, those that show a new
            class; where negatives count, also those that were looked at for the new classes and show none.
        labels: int8 (N, stop): new columns as annotated, older ones unknown (-1). An image that arrives with every
            session keeps its older columns, which earlier sessions saw as well.
        validation: further such images, set aside from training; usually none.
        all_fingerprints: int64 of the whole training set, see `LabelledImages.fingerprints`.
    """

    number: int
    first: int
    stop: int
    classes: tuple[str, ...]
    indices: NDArray[np.int64]
    labels: NDArray[np.int8]
    _annotations: NDArray[np.int8] = field(repr=False)  # (whole training set, stop - first)
    validation: Validation = field(default_factory=Validation)
    all_fingerprints: NDArray[np.int64] | None = field(default=None, repr=False)

    @property
    def fingerprints(self) -> NDArray[np.int64]:
        """(N,), 8 bytes of each image's content; its row where the content was not read."""
        return self.indices if self.all_fingerprints is None else self.all_fingerprints[self.indices]

    @property
    def new_classes(self) -> tuple[str, ...]:
        """The classes that this session adds."""
        return self.classes[self.first :]

    @property
    def is_back(self) -> NDArray[np.bool_]:
        """bool (N,), which images arrive with every session and were part of an earlier one; none as published."""
        return is_back(self.labels, self.first)

    def annotate(self, indices: NDArray[np.int64]) -> NDArray[np.int8]:
        """What an annotator would say about the new classes on any training images.

        Arguments:
            indices: int64 (n,), rows of the whole training set, such as exemplars of earlier sessions.

        Returns:
            int8 (n, stop - first).
        """
        return self._annotations[np.asarray(indices, dtype=np.int64)]


def is_back(labels: NDArray[np.int8], first: int) -> NDArray[np.bool_]:
    """bool (N,), which images with labels (N, stop) were part of a session before the one that begins at a column."""
    return np.asarray((labels[:, :first] != UNKNOWN).any(axis=1))


@dataclass(frozen=True, eq=False)
class Protocol:
    """A data set whose classes arrive in sessions.

    Attributes:
        data: the data set with its columns in session order, and only the classes that take part.
        sizes: the number of new classes of each session.
        has_negatives: whether images that show no class of a session can be part of it; not so as published.
    """

    data: DataSet
    sizes: tuple[int, ...]
    has_negatives: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """All classes in session order."""
        return self.data.train.classes

    def sessions(self, validation: float = 0.0, seed: int = 0) -> list[Session]:
        """The sessions in order.

        Arguments:
            validation: the part of all training images, 0 to 1, that is set aside. Chance alone draws them, whatever
                their labels are, and they stay aside in every session. Only where all images of a new class would be,
                its session trains on them, and from then on they are aside no more.
            seed: of that chance.
        """
        stops = np.cumsum(self.sizes).tolist()
        firsts = [0, *stops[:-1]]
        # One number per row, so that a row's fate does not depend on how many there are.
        chance = np.random.default_rng(stream_key(Stream.SET_ASIDE, seed)).random(len(self.data.train.labels))
        aside = chance < validation  # (whole training set,)
        found = []
        for number, (first, stop) in enumerate(zip(firsts, stops, strict=True), start=1):
            session = self._session(number, first, stop)
            aside[_all_aside(session, aside)] = False
            found.append(_divided(session, aside))
        return found

    def _session(self, number: int, first: int, stop: int) -> Session:
        # A copy: a view would carry the hidden columns along in its base.
        annotations = self.data.train.labels[:, first:stop].copy()
        arrivals = _arrivals(self.data.train)
        indices = _arriving(annotations, arrivals, number, number)
        labels = np.full((len(indices), stop), UNKNOWN, dtype=np.int8)
        labels[:, first:] = annotations[indices]
        back = arrivals[indices] == EVERY_SESSION
        labels[back, :first] = self.data.train.labels[indices[back], :first]
        prints = self.data.train.fingerprints
        return Session(number, first, stop, self.classes[:stop], indices, labels, annotations, all_fingerprints=prints)

    def test_rows(self, stop: int) -> NDArray[np.int64]:
        """The test images to score when the columns [0, stop) are known, int64 (n,): chosen as training images are."""
        last = int(np.searchsorted(np.cumsum(self.sizes), stop)) + 1
        return _arriving(self.data.test.labels[:, :stop], _arrivals(self.data.test), 1, last)


def make_protocol(
    data: DataSet, text: str, order: str | None = None, has_negatives: bool = False, is_joint: bool = False
) -> Protocol:
    """Divide the classes of a data set into sessions.

    As published, a session holds the images that show one of its classes. That leaves out photos that show none, and
    those tell a tagger when to be silent. With `has_negatives`, an image on which nothing was found is a negative of
    every class that it was looked at for, in every session. An image that a `session` column brings is part of that
    session alone, a negative of those of its classes that it does not show. What a list of labels says about classes of
    other sessions is taken as unknown: nobody looked for them.

    Arguments:
        data: the data set.
        text: `B40-C10`, `joint`, or class lists as in `cat,dog|car,bus` (see `class_lists`), which fix the order as
            well and leave out the classes that they do not name.
        order: the class order, see `class_order`; not together with class lists.
        has_negatives: whether images without a class take part.
        is_joint: all classes in one session, with all images and labels that the sessions have.

    Raises:
        UserError: the text or the order is wrong, or a class has no training image.
    """
    names, sizes = session_classes(data.train.classes, text, order)
    train, test = (_with_arrivals(part, names, sizes, has_negatives, is_joint) for part in (data.train, data.test))
    ordered = data._replace(train=train, test=test)
    protocol = Protocol(ordered, (sum(sizes),) if is_joint else tuple(sizes), has_negatives)
    _check_positives(protocol)
    return protocol


def session_classes(classes: Sequence[str], text: str, order: str | None = None) -> tuple[list[str], list[int]]:
    """The classes of all sessions one after another, and the number of each session's; see `make_protocol`."""
    if class_lists.is_list(text) or text.strip() in classes:
        if order is not None:
            raise UserError(f"protocol {text!r} fixes the class order itself; leave out the order {order!r}")
        lists = class_lists.parse(text)
        _check_names([name for part in lists for name in part], classes, "protocol")
        return [name for part in lists for name in part], [len(part) for part in lists]
    names = class_order(classes, order)
    return names, parse_protocol(text, len(names))


def parse_protocol(text: str, classes: int) -> list[int]:
    """The session sizes of `B<base>-C<step>` or `joint` over a number of classes.

    `B40-C10` over 80 classes gives [40, 10, 10, 10, 10]; B0 means no base session. Where the steps do
    not divide evenly, the last session takes what is left over.

    Raises:
        UserError: the text is malformed, a step is empty, or there are too few classes.
    """
    if text.strip().lower() == "joint":
        return [classes]
    match = re.fullmatch(r"B(\d{1,9})-C(\d{1,9})", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise UserError(f"malformed protocol {text!r}, expected {FORMS}")
    base, step = int(match[1]), int(match[2])
    if step < 1:
        raise UserError(f"protocol {text!r} adds no classes per session, expected C1 or more")
    if base + step > classes:
        raise UserError(f"protocol {text!r} needs at least {base + step} classes, the data set has {classes}")
    sizes = [base] if base else []
    return sizes + [min(step, classes - first) for first in range(base, classes, step)]


def class_order(classes: Sequence[str], order: str | None = None) -> list[str]:
    """The classes by name, permuted by "shuffle:SEED", or in an order that names each of them, with commas."""
    if order is None:
        return sorted(classes)
    if order.startswith("shuffle:"):
        return _shuffled(classes, order)
    names = [name for part in class_lists.parse(order) for name in part]
    _check_names(names, classes, "class order")
    missing = sorted(set(classes) - set(names))
    if missing:
        raise UserError(f"the class order must name every class, it lacks: {', '.join(missing)}")
    return names


def _shuffled(classes: Sequence[str], order: str) -> list[str]:
    seed = order.removeprefix("shuffle:")
    if not (seed.isascii() and seed.isdigit() and len(seed) < 20):
        raise UserError(f"got class order {order!r}, expected shuffle:SEED with a whole number such as shuffle:1")
    names = sorted(classes)
    return [names[place] for place in np.random.default_rng(int(seed)).permutation(len(names))]


def _check_names(names: Sequence[str], classes: Sequence[str], what: str) -> None:
    for name in names:
        if name not in classes:
            raise unknown_name(f"class in the {what}:", name, map(class_lists.quoted, classes))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"the {what} must name a class once, it repeats: {', '.join(twice)}")


def _check_positives(protocol: Protocol) -> None:
    empty = []
    for session in protocol.sessions():
        is_shown = (session.labels[:, session.first :] == PRESENT).any(axis=0)
        empty += [name for name, shown in zip(session.new_classes, is_shown, strict=True) if not shown]
    if empty:
        has_sessions = (_arrivals(protocol.data.train) > 0).any()
        raise UserError(
            f"no training image {'of its session ' if has_sessions else ''}has any of these classes: "
            f"{', '.join(empty)}; leave them out with a protocol of class lists such as cat,dog|car,bus"
        )


def _all_aside(session: Session, aside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The images of the new classes that would have none to be trained on."""
    is_present = session.labels[:, session.first :] == PRESENT  # (N, new)
    is_left = ~aside[session.indices]
    untrained = ~(is_present & is_left[:, None]).any(axis=0)
    return np.asarray(session.indices[is_present[:, untrained].any(axis=1)])


def _divided(session: Session, aside: NDArray[np.bool_]) -> Session:
    held = aside[session.indices]
    validation = Validation(session.indices[held], session.labels[held])
    return replace(session, indices=session.indices[~held], labels=session.labels[~held], validation=validation)


def _with_arrivals(
    part: LabelledImages, names: Sequence[str], sizes: Sequence[int], has_negatives: bool, is_joint: bool
) -> LabelledImages:
    """The images with the columns of the protocol, and the sessions that each arrives with."""
    chosen = part.with_classes(names)
    if not has_negatives:
        return replace(chosen, arrivals=None)
    arrivals = _arrivals(part).copy()
    if arrivals.max(initial=0) > len(sizes):
        place = int(arrivals.argmax())
        count = counted(len(sizes), "session")
        raise UserError(f"{part.paths[place]}: its session is {arrivals[place]}, but the protocol has {count}")
    # Judged by all labels of the data set: an image of a class that is left out was not found empty.
    nothing_found = (part.labels == ABSENT).any(axis=1) & ~(part.labels == PRESENT).any(axis=1)
    arrivals[nothing_found & (arrivals == BY_LABELS)] = EVERY_SESSION
    session_of_column = np.repeat(np.arange(1, len(sizes) + 1), sizes)  # (K,)
    # A label that stands in a column of its class is known; a list says nothing about classes nobody looked for then.
    hidden = (arrivals[:, None] > 0) & (arrivals[:, None] != session_of_column) & part.has_lists  # (N, K)
    if is_joint:  # it has every label that was given, but nobody looked for the others
        hidden, arrivals = hidden & (chosen.labels == ABSENT), np.minimum(arrivals, 1)
    return replace(chosen, labels=np.where(hidden, np.int8(UNKNOWN), chosen.labels), arrivals=arrivals)


def _arrivals(part: LabelledImages) -> NDArray[np.int16]:
    return np.full(len(part), BY_LABELS, np.int16) if part.arrivals is None else part.arrivals


def _arriving(labels: NDArray[np.int8], arrivals: NDArray[np.int16], first: int, last: int) -> NDArray[np.int64]:
    """The images of the sessions from `first` to `last`, int64 (n,), given the columns (N, n) of their classes."""
    is_brought = (arrivals == EVERY_SESSION) | ((arrivals >= first) & (arrivals <= last))
    is_known, is_present = (labels != UNKNOWN).any(axis=1), (labels == PRESENT).any(axis=1)
    return np.flatnonzero((is_brought & is_known) | ((arrivals == BY_LABELS) & is_present)).astype(np.int64)
