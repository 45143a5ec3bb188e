"""The poison test: with noise in place of every label that a session may not see, nothing may change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .images import BY_LABELS, EVERY_SESSION, PRESENT, DataSet
from .protocol import Protocol, Session


@dataclass(frozen=True, eq=False)
class PoisonedProtocol(Protocol):
    """The same sessions as those of `truth`, cut from data whose other labels are noise."""

    truth: DataSet = None  # type: ignore[assignment]

    def _session(self, number: int, first: int, stop: int) -> Session:
        seen, truth = _noise(self.truth, number), self.truth.train
        seen.train.labels[:, first:stop] = truth.labels[:, first:stop]
        if truth.arrivals is not None:  # an image of every session shows its labels of earlier ones again
            back = truth.arrivals == EVERY_SESSION
            seen.train.labels[back, :first] = truth.labels[back, :first]
        return Protocol(seen, self.sizes, self.has_negatives)._session(number, first, stop)


def poisoned(protocol: Protocol) -> Protocol:
    """The protocol with noise in place of every label that a session may not see."""
    return PoisonedProtocol(_noise(protocol.data, 0), protocol.sizes, protocol.has_negatives, protocol.data)


def with_negatives(protocol: Protocol) -> Protocol:
    """The protocol with the images that show none of its classes as negatives of every session."""
    train = protocol.data.train
    shows_none = ~(train.labels == PRESENT).any(axis=1)
    arrivals = np.where(shows_none, EVERY_SESSION, BY_LABELS).astype(np.int16)
    data = protocol.data._replace(train=replace(train, arrivals=arrivals))
    return replace(protocol, data=data, has_negatives=True)


def _noise(data: DataSet, seed: int) -> DataSet:
    noise = np.random.default_rng(seed).integers(-1, 2, data.train.labels.shape).astype(np.int8)
    return data._replace(train=replace(data.train, labels=noise))
