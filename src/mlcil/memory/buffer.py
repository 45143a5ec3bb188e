"""The rehearsal buffer: which training images are kept, and what is known about each."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..data.images import PRESENT, UNKNOWN
from ..data.protocol import Session
from .herding import herd
from .ocdm import balanced
from .prs import partitioning_reservoir
from .stream import Policy, StreamMemory, reservoir

Features = Callable[[NDArray[np.int64]], NDArray[np.float32]]
Choice = Callable[[NDArray[np.float32], int, np.random.Generator], NDArray[np.int64]]
Taken = NDArray[np.int64]


def by_herding(points: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose so that the mean of the chosen follows the mean of all."""
    return herd(points, count)


def by_random(points: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose at random."""
    return rng.permutation(len(points))[:count]


@dataclass(frozen=True)
class Budget:
    """How many images may be kept, per class or in total."""

    per_class: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "20" (per class) or "total:1000"."""
        match = re.fullmatch(r"(total:)?(\d{1,15})", text, re.ASCII)
        if match is None:
            raise UserError(f"buffer: got {text!r}, expected a number per class such as 20, or total:1000")
        return cls(total=int(match[2])) if match[1] else cls(per_class=int(match[2]))

    def __bool__(self) -> bool:
        return bool(self.per_class or self.total)

    def quotas(self, classes: int) -> list[int]:
        """The share of each class; they add up to at most the budget, and the oldest classes get the remainder."""
        if not self.total:
            return [self.per_class] * classes
        share, rest = divmod(self.total, classes)
        return [share + (column < rest) for column in range(classes)]


class Memory(ABC):
    """Images that are kept, with what is known about each. Subclasses choose them.

    Attributes:
        budget: how many images may be kept.
        indices: int64 (n,), rows of the training set, each once.
        labels: int8 (n, K): what is known about each exemplar, -1 for unknown.

    Arguments:
        label_onwards: whether classes defined after an exemplar was stored are annotated on it as well
            ("stored_onwards", the authors' code) or stay unknown ("stored_only").
    """

    saved: tuple[str, ...] = ("indices", "labels")
    is_streaming = False  # whether `observe` takes images while a session trains

    def __init__(self, budget: Budget, label_onwards: bool = True) -> None:
        self.budget, self.label_onwards = budget, label_onwards
        self.indices: NDArray[np.int64] = np.empty(0, np.int64)
        self.labels: NDArray[np.int8] = np.empty((0, 0), np.int8)

    def __len__(self) -> int:
        return len(self.indices)

    def open_session(self, session: Session) -> None:
        """Widen the labels by the session's new classes."""
        new = np.full((len(self), session.stop - session.first), UNKNOWN, np.int8)
        if self.label_onwards and len(self):
            new = session.annotate(self.indices)
        self.labels = np.concatenate([self.labels.reshape(len(self), session.first), new], axis=1)

    def observe(self, indices: NDArray[np.int64], labels: NDArray[np.int8], rng: np.random.Generator) -> Taken:
        """See a batch before it is trained on; only streaming memories keep any of it."""
        return np.empty(0, np.int64)

    def present(self) -> NDArray[np.int64]:
        """The rows that can be drawn at this point of the session."""
        return self.indices

    @abstractmethod
    def close_session(self, session: Session, features: Features, rng: np.random.Generator) -> None:
        """Choose among the session's images and drop others to stay within the budget.

        Arguments:
            features: maps rows of the training set to features (n, C) of the model just trained.
        """


class ExemplarBuffer(Memory):
    """Exemplars chosen class by class when a session ends.

    Arguments:
        choose: maps the features (n, C) of a class's images and a count to the rows to keep, best first.
        needs_features: False if `choose` only needs to know how many images there are.
    """

    saved = ("chosen",)

    def __init__(
        self, budget: Budget, label_onwards: bool = True, choose: Choice = by_herding, needs_features: bool = True
    ) -> None:
        super().__init__(budget, label_onwards)
        self.choose, self.needs_features = choose, needs_features
        self.chosen: list[NDArray[np.int64]] = []  # per class, best first

    def close_session(self, session: Session, features: Features, rng: np.random.Generator) -> None:
        """Choose exemplars of the session's classes and trim the others to their share."""
        quotas = self.budget.quotas(session.stop)
        points = features(session.indices) if self.needs_features else np.empty((len(session.indices), 0), np.float32)
        for column in range(session.first, session.stop):
            rows = np.flatnonzero(session.labels[:, column] == PRESENT)
            self.chosen.append(session.indices[rows[self.choose(points[rows], quotas[column], rng)]])
        self.chosen = [one[:quota] for one, quota in zip(self.chosen, quotas, strict=True)]
        self._keep(session)

    def _keep(self, session: Session) -> None:
        # An image that is chosen for several classes is kept once, at its first position.
        wanted = list(dict.fromkeys(np.concatenate(self.chosen).tolist()))
        known = dict(zip(self.indices.tolist(), self.labels, strict=True))
        unknown = np.full(session.stop, UNKNOWN, np.int8)
        labels = np.array([known.get(index, unknown) for index in wanted], np.int8).reshape(-1, session.stop)
        in_session = dict(zip(session.indices.tolist(), session.labels, strict=True))
        # An older exemplar gains the session's labels where it is chosen again, not where it merely returns.
        chosen_now = set(np.concatenate(self.chosen[session.first :]).tolist())
        for row, index in enumerate(wanted):
            if index in chosen_now:
                labels[row, session.first :] = in_session[index][session.first :]
        self.indices, self.labels = np.array(wanted, np.int64), labels


class StreamBuffer(Memory):
    """A memory filled image by image while a session trains, by labels alone.

    What a session takes becomes part of the saved state when it ends. Until then it follows from the
    state at the session's start and the order of its batches, so a resumed run finds it again.

    Arguments:
        policy: decides which images of the stream to take and which to drop for them.
    """

    saved = ("counts", "seen")
    is_streaming = True

    def __init__(self, budget: Budget, label_onwards: bool, policy: Policy) -> None:
        super().__init__(budget, label_onwards)
        self.policy = policy
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)  # (K,) positives that the stream has shown
        self.seen = 0  # images that the stream has shown
        self._live: StreamMemory | None = None

    def open_session(self, session: Session) -> None:
        """Widen labels and counts by the session's new classes."""
        super().open_session(session)
        self.counts = np.concatenate([self.counts, np.zeros(session.stop - session.first, np.int64)])

    def observe(self, indices: NDArray[np.int64], labels: NDArray[np.int8], rng: np.random.Generator) -> Taken:
        """Offer a batch to the memory."""
        capacity = self.budget.total or self.budget.per_class * len(self.counts)
        return self.policy(self._stock(), indices, labels, capacity, rng)

    def present(self) -> NDArray[np.int64]:
        """The rows that can be drawn at this moment of the session."""
        return self._stock().indices

    def close_session(self, session: Session, features: Features, rng: np.random.Generator) -> None:
        """Keep what the session's stream has left in the memory."""
        stock = self._stock()
        self.indices, self.labels, self.counts, self.seen = stock.indices, stock.labels, stock.counts, stock.seen
        self._live = None

    def _stock(self) -> StreamMemory:
        if self._live is None:
            self._live = StreamMemory(self.indices.copy(), self.labels.copy(), self.counts.copy(), self.seen)
        return self._live


POLICIES: dict[str, Callable[..., Taken]] = {"reservoir": reservoir, "prs": partitioning_reservoir, "ocdm": balanced}
SELECTIONS = ("herding", "random", *POLICIES)


def make_memory(selection: str, budget: Budget, label_onwards: bool) -> Memory:
    """Make the memory that chooses by `selection`, one of `SELECTIONS`."""
    if selection == "herding":
        return ExemplarBuffer(budget, label_onwards)
    if selection == "random":
        return ExemplarBuffer(budget, label_onwards, by_random, needs_features=False)
    return StreamBuffer(budget, label_onwards, POLICIES[selection])
