"""Knowledge Restore and Transfer (Dong et al., ICCV 2023), its rehearsal form KRT-R and its ablations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.config import option
from ..core.errors import UserError
from ..data.images import PRESENT, UNKNOWN
from ..data.loading import Batch
from ..data.protocol import Session
from ..data.published import BENCHMARKS
from ..losses.cosine import cosine_distance, token_loss
from ..memory.buffer import Budget
from ..models.attention import LINEAR_STD
from ..models.backbone import Backbone
from ..models.tagger import AttentionShape, Output, TaggerNet
from .base import LOSS_SCALE, Inference, Task, TrainingSet
from .pseudo_labels import ClassRecall, fill_unknown, find_threshold, rate_per_image
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class KRTConfig(RehearsalConfig):
    """KRT's options; loss weights are in the paper's units."""

    dpl: bool = option(True, "fill in old labels with pseudo labels", paper="KRT, section 3.2")
    ica: bool = option(True, "use incremental cross-attention and the token loss", paper="KRT, section 3.3")
    kd: bool = option(False, "also distil the pooled feature", paper="KRT, table 4")
    pseudo_label_rule: str = option(
        "dynamic",
        "which scores become pseudo labels: those above one threshold that gives a target count (DPL), or above each "
        "class's own threshold, its mean score on its positives",
        choices=("dynamic", "per_class"),
        paper="HCP, recall enhancement",
    )
    entropy_gate: bool = option(
        True,
        "per_class also requires that the entropy is not above that of the positives",
        paper="KBK, uncertainty recall",
    )
    pseudo: str = option(
        "online",
        "compute pseudo labels at each step on the augmented image (authors' code), or once per session (paper)",
        choices=("online", "fixed"),
        paper="KRT, algorithm 1",
    )
    labels_per_image: float | None = option(
        None,
        "mu, mean number of labels per image over all classes; none means 2.9 on COCO, 1.4 on VOC, else an estimate",
        low=0.0,
        paper="KRT, section 4.1",
    )
    threshold: float = option(
        0.8, "where the threshold search starts", low=1e-4, high=0.999999, paper="KRT, section 4.1"
    )
    carry_threshold: bool = option(True, "start each search at the previous session's threshold (authors' code)")
    token_weight: float = option(
        100.0, "lambda of the token loss; 300 for B40 and B10", low=0.0, paper="KRT, section 4.1"
    )
    token_scaling: str = option(
        "sqrt",
        "scale the token weight by sqrt(seen / new classes) (authors' code), or not (paper)",
        choices=("sqrt", "none"),
        paper="KRT, eq. 7",
    )
    kd_weight: float = option(180.0, "weight of the feature distillation, scaled like the token loss", low=0.0)
    width: int = option(384, "d, the size of a token; 768 on VOC", low=1, paper="KRT, section 4.1")
    heads: int = option(8, "number of attention heads", low=1, paper="KRT, section 4.1")
    attend_to_kt: bool = option(
        True,
        "attend to [KT, KR, patches] (authors' code) instead of [KR, patches] (paper)",
        paper="KRT, eq. 3",
    )
    first_head: str = option(
        "default",
        "weights that the first session's head starts from: PyTorch's default, as in later sessions, or N(0, 0.01) "
        "(authors' code)",
        choices=("default", "normal"),
    )


class KRT(Rehearsal):
    """Old labels restored by the old model, old embeddings held in place by attention with memory tokens."""

    name = "krt"
    summary = "pseudo labels, cross-attention with a memory token per session, token loss; KRT-R with a buffer"
    family = "restore and transfer"
    reference = "Dong et al., Knowledge Restore and Transfer, ICCV 2023"
    saved = ("threshold", "search", "recall", "rates", "fixed_labels", "_pseudo")
    wants_teacher = True
    Config = KRTConfig
    config: KRTConfig
    base_is_finetuning = True
    finetuning_options = {"dpl": False, "ica": False, "kd": False, "first_head": "default"}

    def __init__(self, config: KRTConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        if config.width % config.heads:
            raise UserError(f"{self.name}: width {config.width} is not a multiple of heads {config.heads}")
        super().__init__(config, backbone, task, budget)
        self.threshold = config.threshold
        self.search: dict[str, float] = {}  # how this session's threshold was found; part of `notes`
        self.recall = ClassRecall.empty()  # with `pseudo_label_rule: per_class`
        self.rates: list[float | None] = []  # labels per image of each session's classes, see `rate_per_image`
        self.fixed_labels: NDArray[np.int8] | None = None  # (N, K) with `pseudo: fixed`
        self._pseudo: NDArray[np.bool_] | None = None  # (N, K_old) on the session's images, during the session

    def make_tagger(self, backbone: Backbone) -> TaggerNet:
        """A tagger with cross-attention unless it is switched off."""
        c = self.config
        return TaggerNet(backbone, AttentionShape(c.width, c.heads, c.attend_to_kt) if c.ica else None)

    def before_session(self, session: Session, infer: Inference) -> None:
        """Grow, find the threshold, and with it the pseudo labels."""
        super().before_session(session, infer)
        if session.number == 1 and self.config.first_head == "normal":
            self.tagger.heads[0].apply(_start_small)
        self.search, self.fixed_labels, self._pseudo = {}, None, None
        if self.teacher is not None and self.config.dpl:
            self._restore_labels(session, infer)
        self.rates.append(rate_per_image(session.labels[:, session.first :]))

    def freeze(self) -> None:
        """Keep the heads and tokens of older sessions as they are (KRT, section 3.3)."""
        if self.config.ica:
            self.tagger.freeze_old_sessions()

    def training_set(self, session: Session) -> TrainingSet:
        """The usual training set, with pseudo labels already filled in if they are fixed."""
        full = super().training_set(session)
        return full if self.fixed_labels is None else full._replace(labels=self.fixed_labels)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification on the completed labels, and the terms that preserve old knowledge."""
        batch = batch.joined()
        now = self.student(batch.images)
        if self.teacher is None:
            return self._taught(now, batch.labels)
        before = self.teacher_output(batch)  # one pass serves pseudo labels and distillation
        labels = batch.labels
        if self.config.dpl and self.config.pseudo == "online":
            labels = fill_unknown(labels, self._present(torch.sigmoid(before.logits.float())))
        terms = self._taught(now, labels)
        if self.config.ica and self.config.token_weight:
            distance = token_loss(now.embeddings, before.embeddings).mean()
            terms["token"] = self._weight(self.config.token_weight) * distance
        if self.config.kd:
            terms["kd"] = self._weight(self.config.kd_weight) * cosine_distance(now.pooled, before.pooled).mean()
        return terms

    def after_session(self, session: Session, infer: Inference) -> None:
        """Choose exemplars, and with `per_class` measure how sure the model is of each class."""
        super().after_session(session, infer)
        if self.config.dpl and self.config.pseudo_label_rule == "per_class":
            self._refresh_recall(session, infer)
        self.fixed_labels = self._pseudo = None

    def pseudo_labels(self) -> NDArray[np.bool_] | None:
        """What the old model finds in the session's images at the threshold."""
        return self._pseudo

    def notes(self) -> dict[str, Any]:
        """The threshold and how many labels it gave, or the mean of the classes' thresholds."""
        thresholds = self.recall.confidence[self.recall.count > 0]
        found = {"mean_threshold": float(thresholds.mean())} if len(thresholds) else {}
        return super().notes() | (self.search or found)

    def _taught(self, now: Output, labels: Tensor) -> dict[str, Tensor]:
        """The loss terms of the labels (B, K), pseudo labels included."""
        return {"classification": self.classification(now.logits, labels)}

    def _restore_labels(self, session: Session, infer: Inference) -> None:
        teacher = self.teacher
        assert teacher is not None
        full = self.training_set(session)  # the labels are not fixed yet
        scores = torch.from_numpy(infer(lambda images: torch.sigmoid(teacher(images).logits.float()), full.indices))
        target = self._target(session) if self.config.pseudo_label_rule == "dynamic" else None
        is_unknown = session.labels[:, : session.first] == UNKNOWN  # (N, K_old), all of them as published
        open_rows = is_unknown.any(axis=1)
        if target is not None and open_rows.any():
            start = self.threshold if self.config.carry_threshold else self.config.threshold
            found = find_threshold(scores[: len(session.indices)].numpy()[open_rows], target, start)
            self.threshold = found.value
            self.search = {"threshold": found.value, "pseudo_labels_per_image": found.mean_count}
            self.search |= {"target": target, "target_met": found.met}
        pseudo = self._present(scores)
        self._pseudo = pseudo[: len(session.indices)].numpy() & is_unknown
        if self.config.pseudo == "fixed":
            self.fixed_labels = fill_unknown(torch.from_numpy(full.labels), pseudo).numpy()

    def _present(self, scores: Tensor) -> Tensor:
        """bool (B, K_old), which old classes count as present given the old model's probabilities (B, K_old)."""
        if self.config.pseudo_label_rule == "per_class":
            return self.recall.accepts(scores, self.config.entropy_gate)
        return scores > self.threshold

    def _refresh_recall(self, session: Session, infer: Inference) -> None:
        positives = torch.from_numpy(session.labels == PRESENT)
        if self._pseudo is not None:
            positives[:, : session.first] = torch.from_numpy(self._pseudo)
        scores = torch.from_numpy(infer(self.predict, session.indices))
        self.recall = self.recall.refreshed(scores, positives)

    def _target(self, session: Session) -> float | None:
        """How many old labels to expect per image; None if it cannot be estimated, and the threshold stays."""
        given = self.config.labels_per_image
        if given is None and self.task.benchmark in BENCHMARKS:
            given = BENCHMARKS[self.task.benchmark].labels_per_image
        if given is not None:
            return given * session.first / self.task.total_classes  # mu^t; KRT, section 3.2
        sizes = self.tagger.sizes[:-1]
        known = [(rate, size) for rate, size in zip(self.rates, sizes, strict=True) if rate is not None]
        if not known:
            return None
        return session.first * sum(rate for rate, _ in known) / sum(size for _, size in known)

    def _weight(self, published: float) -> float:
        scale = self.distillation_scale() if self.config.token_scaling == "sqrt" else 1.0
        return published * scale / LOSS_SCALE


def _start_small(module: nn.Module) -> None:
    """Draw the weights of a linear layer as the authors' code does; its bias stays."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=LINEAR_STD)
