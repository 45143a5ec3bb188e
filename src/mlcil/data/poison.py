"""The poison test: with noise in place of every label that a session may not see, nothing may change."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .images import DataSet
from .protocol import Protocol, Session


@dataclass(frozen=True, eq=False)
class PoisonedProtocol(Protocol):
    """The same sessions as those of `truth`, cut from data whose other labels are noise."""

    truth: DataSet = None  # type: ignore[assignment]

    def _session(self, number: int, first: int, stop: int) -> Session:
        seen = _noise(self.truth, number)
        seen.train.labels[:, first:stop] = self.truth.train.labels[:, first:stop]
        return Protocol(seen, self.sizes)._session(number, first, stop)


def poisoned(protocol: Protocol) -> Protocol:
    """The protocol with noise in place of every label that a session may not see."""
    return PoisonedProtocol(_noise(protocol.data, 0), protocol.sizes, protocol.data)


def _noise(data: DataSet, seed: int) -> DataSet:
    noise = np.random.default_rng(seed).integers(-1, 2, data.train.labels.shape).astype(np.int8)
    return DataSet(replace(data.train, labels=noise), data.test)
