"""The rehearsal buffer: which training images are kept, and what is known about each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..data.images import PRESENT, UNKNOWN
from ..data.protocol import Session
from .herding import herd


@dataclass(frozen=True)
class Budget:
    """How many images may be kept: so many per class, or so many in total."""

    per_class: int = 0
    total: int = 0

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read "20" (per class) or "total:1000"."""
        match = re.fullmatch(r"(total:)?(\d+)", text, re.ASCII)
        if match is None:
            raise UserError(f"buffer: got {text!r}, expected a number per class such as 20, or total:1000")
        return cls(total=int(match[2])) if match[1] else cls(per_class=int(match[2]))

    def __bool__(self) -> bool:
        return bool(self.per_class or self.total)

    def quotas(self, classes: int) -> list[int]:
        """The share of each class, never more than the budget in all; the oldest get the remainder."""
        if not self.total:
            return [self.per_class] * classes
        share, rest = divmod(self.total, classes)
        return [share + (column < rest) for column in range(classes)]


class ExemplarBuffer:
    """Exemplars chosen by herding, class by class.

    Attributes:
        indices: int64 (n,), rows of the training set, each once.
        labels: int8 (n, K): what is known of each exemplar, -1 elsewhere.

    Arguments:
        budget: how many images may be kept.
        label_onwards: whether classes defined after an exemplar was stored are annotated on it as well
            ("stored_onwards", the authors' code) or stay unknown ("stored_only").
    """

    def __init__(self, budget: Budget, label_onwards: bool = True) -> None:
        self.budget, self.label_onwards = budget, label_onwards
        self.chosen: list[NDArray[np.int64]] = []  # per class, in the order of herding
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

    def close_session(self, session: Session, features: Callable[[NDArray[np.int64]], NDArray[np.float32]]) -> None:
        """Choose exemplars of the session's classes and trim the others to their share.

        Arguments:
            features: from rows of the training set to their features (n, C), by the model just trained.
        """
        quotas = self.budget.quotas(session.stop)
        points = features(session.indices)
        for column in range(session.first, session.stop):
            rows = np.flatnonzero(session.labels[:, column] == PRESENT)
            self.chosen.append(session.indices[rows[herd(points[rows], quotas[column])]])
        self.chosen = [one[:quota] for one, quota in zip(self.chosen, quotas, strict=True)]
        self._keep(session)

    def _keep(self, session: Session) -> None:
        # An image chosen for several classes is kept once, at its first place.
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

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the buffer holds, as tensors and plain values."""
        tensors = {
            "indices": torch.from_numpy(self.indices),
            "labels": torch.from_numpy(self.labels),
            "chosen": torch.from_numpy(np.concatenate([*self.chosen, np.empty(0, np.int64)])),
        }
        return tensors, {"chosen_per_class": [len(one) for one in self.chosen]}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.indices, self.labels = tensors["indices"].numpy(), tensors["labels"].numpy()
        ends = np.cumsum(values["chosen_per_class"], dtype=np.int64)[:-1]
        self.chosen = list(np.split(tensors["chosen"].numpy(), ends)) if values["chosen_per_class"] else []
