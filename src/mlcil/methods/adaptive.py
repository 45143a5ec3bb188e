"""The adaptive learner: closed-form heads on features that go on learning, with sums that move along."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import with_default
from ..core.errors import UserError
from ..data.images import UNKNOWN
from ..data.protocol import Session
from ..memory.buffer import Budget
from ..models.analytic import AnalyticTagger
from ..models.backbone import Backbone
from ..models.ledger import Ledger
from ..models.moving import fit_move, moved
from .analytic import Analytic, AnalyticConfig
from .base import Inference, Task, TrainingSet


@dataclass(frozen=True)
class AdaptiveConfig(AnalyticConfig):
    """As for the analytic learner; what is remembered of an image also says which old classes it shows."""

    remember: str = with_default(AnalyticConfig, "remember", "fingerprints")


class Adaptive(Analytic):
    """Trains the backbone in every session and solves for all classes from sums over everything seen.

    An image is described twice: by the backbone as it is now, and by a copy that has never changed. The sums of the
    second part are exact, as for the analytic learner; those of the first part move with the features. See
    `models.moving`.
    """

    name = "adaptive"
    summary = "closed-form heads on features that go on learning: the sums over earlier images move along"
    reference = "Zhang et al., L3A, ICML 2025; Yu et al., Semantic Drift Compensation, CVPR 2020"
    Config = AdaptiveConfig
    config: AdaptiveConfig
    saved = ("_before", "_explained")
    only_for_learning = (*Analytic.only_for_learning, "_before", "_explained")
    is_all_in_sums = False
    setting_defaults = {"norm_statistics": "frozen"}  # so that features move no further than training takes them

    def __init__(self, config: AdaptiveConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        super().__init__(config, backbone, task, budget)
        self._before: Tensor | None = None  # (N, C), the trained features of the session's images before it
        self._now: Tensor | None = None  # (N, p), the session's images as they are described after it, while it ends
        self._explained: float | None = None  # how much of the new features the old ones told

    def make_tagger(self, backbone: Backbone) -> AnalyticTagger:
        """A tagger with the backbone that learns beside a copy that does not."""
        if not any(one.requires_grad for one in backbone.parameters()):
            raise UserError(
                f"{self.name} trains a part of the backbone, and all of it is frozen; set freeze to a number of stages "
                "or a module, or take the method analytic"
            )
        still = copy.deepcopy(backbone)
        still.stop_training()
        return self._tagger_of(backbone, still)

    def trains(self, session: Session) -> bool:
        """Every session does."""
        return True

    def before_session(self, session: Session, infer: Inference) -> None:
        """Look at the session's images with the features that the sums are over."""
        self._before = self._explained = None
        if self.ledger.features:
            super()._carried_over(session, infer)  # the sums are over the features of this backbone
            self._before = torch.from_numpy(infer(self.tagger.describe_learned, session.indices))
        super().before_session(session, infer)

    def training_set(self, session: Session) -> TrainingSet:
        """The session's images, with what earlier sessions said about those that come back."""
        labels = session.labels.copy()
        ledger = self.ledger.with_classes(session.classes)
        rows = ledger.find(session.fingerprints)
        told = ledger.labels_now(rows[rows >= 0])
        labels[rows >= 0] = np.where(labels[rows >= 0] == UNKNOWN, told, labels[rows >= 0])
        return TrainingSet(session.indices, labels)

    def after_session(self, session: Session, infer: Inference) -> None:
        """Move the sums, add the session's images to them and solve."""
        self._now = torch.from_numpy(infer(self.tagger.describe, session.indices))
        super().after_session(session, infer)
        self._before = self._now = None

    def notes(self) -> dict[str, Any]:
        """What the analytic learner notes, and how well the old features told the new ones."""
        return super().notes() | ({} if self._explained is None else {"explained": self._explained})

    def _carried_over(self, session: Session, infer: Inference) -> Ledger:
        """The sums of earlier sessions, moved to the features of today."""
        assert self._before is not None
        assert self._now is not None
        tagger, now, size = self.tagger, self._now, self.tagger.backbone.channels
        before = torch.cat([self._before, now[:, size:]], dim=1)
        mean, deviation = tagger.mean.cpu(), tagger.deviation.cpu()
        move = fit_move((before - mean) / deviation, ((now - mean) / deviation)[:, :size])
        self._explained = move.explained
        return moved(self.ledger, move, tagger.fingerprint())

    def _describe(self, session: Session, infer: Inference, places: NDArray[np.int64]) -> Tensor:
        """(n,) places among a session's images -> (n, p)."""
        assert self._now is not None
        return self._now[places]

    def _spread(self, *_: Any) -> None:
        """All images are described already."""
        return
