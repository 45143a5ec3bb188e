"""Heads in closed form on fixed features: what features and labels can give, without the luck of training heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.images import PRESENT, UNKNOWN
from ..data.protocol import Session
from ..models.ridge import choose_ridge
from ..models.sums import Sums
from .diagnosis import ClosedForms, map_of
from .scores import ScoredImages

Bools = NDArray[np.bool_]


class Arrivals(NamedTuple):
    """The training images of T sessions, one session after another: an image that returns stands here again.

    Attributes:
        rows: int64 (U,) the different rows of the training set, ascending.
        places: int64 (N,) of each image among `rows`.
        prints: int64 (N,) equal for images of equal content.
        sessions: int64 (N,) the place of its session among the T.
        labels: int8 (N, K) as that session gave them, unknown (-1) in all other columns.
        truth: int8 (N, K) all labels that the data set has.
        bounds: (T, 2) the first new column of each session and one past its last.
    """

    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    prints: NDArray[np.int64]
    sessions: NDArray[np.int64]
    labels: NDArray[np.int8]
    truth: NDArray[np.int8]
    bounds: list[tuple[int, int]]


def arrivals(sessions: Sequence[Session], truth: NDArray[np.int8]) -> Arrivals:
    """The images that sessions train on, with the labels that each gave.

    Arguments:
        truth: int8 (whole training set, at least K), which no method sees.
    """
    stop = sessions[-1].stop
    padded = [np.pad(one.labels, ((0, 0), (0, stop - one.stop)), constant_values=UNKNOWN) for one in sessions]
    indices = np.concatenate([one.indices for one in sessions])
    rows, places = np.unique(indices, return_inverse=True)
    return Arrivals(
        rows,
        places,
        np.concatenate([one.fingerprints for one in sessions]),
        np.repeat(np.arange(len(sessions)), [len(one.indices) for one in sessions]),
        np.concatenate(padded),
        truth[indices, :stop],
        [(one.first, one.stop) for one in sessions],
    )


class ClosedFormHeads:
    """Heads on the pooled features of one trunk, by ridge regressions that see more or less of the labels.

    Unknown labels count as absent.

    Arguments:
        images: the training images.
        features: float32 (U, C) of `images.rows`.
        tested: the test images, whose scores are not used.
        test_features: float32 (M, C) of them.
    """

    def __init__(
        self,
        images: Arrivals,
        features: NDArray[np.float32],
        tested: ScoredImages,
        test_features: NDArray[np.float32],
    ) -> None:
        self.images, self.features = images, torch.from_numpy(features)
        self.tested, self.test_features = tested, torch.from_numpy(test_features)

    def all_forms(self, pseudo: Bools | None = None) -> ClosedForms:
        """The mAP of all ways to have labels.

        Arguments:
            pseudo: bool (U, K), what is to stand for the old labels that a session does not give.
        """
        images = self.images
        return ClosedForms(
            self.all_labels(),
            self._map_of_united(images.labels),
            self._map(images.places, images.labels == PRESENT),
            None if pseudo is None else self._map(images.places, self._filled(pseudo)),
            self._own_session(),
        )

    def all_labels(self) -> float | None:
        """The mAP if every image has all its true labels."""
        return self._map_of_united(self.images.truth)

    def _map_of_united(self, labels: NDArray[np.int8]) -> float | None:
        """Each image once, with what is known of it from any session."""
        _, first, same = np.unique(self.images.prints, return_index=True, return_inverse=True)
        known = np.full((len(first), labels.shape[1]), UNKNOWN, np.int8)
        np.maximum.at(known, same, labels)  # present wins over absent, absent over unknown
        return self._map(self.images.places[first], known == PRESENT)

    def _filled(self, pseudo: Bools) -> Bools:
        """(N, K) the labels of each session, and for older classes that it says nothing about, the pseudo labels."""
        images = self.images
        firsts = np.array([first for first, _ in images.bounds])[images.sessions]  # (N,)
        is_old = np.arange(images.labels.shape[1]) < firsts[:, None]  # (N, K)
        return np.where(is_old & (images.labels == UNKNOWN), pseudo[images.places], images.labels == PRESENT)

    def _own_session(self) -> float | None:
        """The heads of each session from its images alone."""
        parts = []
        for number, (first, stop) in enumerate(self.images.bounds):
            own = self.images.sessions == number
            parts.append(self._scores(self.images.places[own], self.images.labels[own, first:stop] == PRESENT))
        return map_of(np.concatenate(parts, axis=1), self.tested.labels)

    def _map(self, places: NDArray[np.int64], present: Bools) -> float | None:
        return map_of(self._scores(places, present), self.tested.labels)

    def _scores(self, places: NDArray[np.int64], present: Bools) -> NDArray[Any]:
        """(M, n) by heads from the images at `places` (N,), which show the n classes where `present` (N, n)."""

        def expand(chosen: Tensor) -> Tensor:
            return _expand(self.features[chosen])

        width = self.features.shape[1] + 1
        sums = Sums.of(torch.from_numpy(places), present.astype(np.int8), expand, width)
        names = tuple(f"{column:06d}" for column in range(present.shape[1]))
        scores = _expand(self.test_features).double() @ choose_ridge(sums, names).weights
        return np.asarray(scores.numpy())


def _expand(pooled: Tensor) -> Tensor:
    """(n, C) -> (n, C + 1): square roots with the sign kept, and 1."""
    return torch.cat([pooled.sign() * pooled.abs().sqrt(), pooled.new_ones(len(pooled), 1)], dim=1)
