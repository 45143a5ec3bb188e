"""The analytic learner: sums over images, and one linear system per session (after Zhang et al., L3A, ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option, with_default
from ..core.errors import UserError
from ..core.randomness import generator_from_torch
from ..data.images import PRESENT
from ..data.protocol import Session
from ..memory.buffer import Budget
from ..models.analytic import AnalyticTagger, tempered
from ..models.backbone import Backbone
from ..models.ridge import Solution, choose_ridge, score_calibration, solve
from ..models.statistics import Statistics, check_same_features
from ..models.tagger import AttentionShape
from .base import Inference, Method, MethodConfig, Task

CHUNK = 4096  # images expanded at once
MATCHED = 1000  # images on which window scores are brought to the scale of whole images


@dataclass(frozen=True)
class AnalyticConfig(MethodConfig):
    """How features are computed and how the linear map is fitted."""

    missing: str = with_default(MethodConfig, "missing", "negative", choices=("negative",))
    base: str = option(
        "frozen",
        "frozen: the pretrained backbone as it is; finetune: trained in the first session, then frozen; attention: the "
        "same with cross-attention, whose embedding joins the features",
        choices=("frozen", "finetune", "attention"),
        paper="L3A",
    )
    expansion: int = option(2048, "number of random features added to the pooled ones", low=0, high=16384, paper="L3A")
    power: float = option(
        0.5, "power applied to the pooled values before standardisation, keeping their sign", low=0.1, high=2.0
    )
    window: float = option(
        0.4, "side of the windows that are scored too, relative to the image's side; 0 for no windows", low=0, high=1
    )
    window_weight: float = option(0.5, "weight of the best window's score, added to that of the whole image", low=0)
    ridge: float | None = option(
        None, "regularisation strength; none chooses it by generalised cross-validation", low=1e-9
    )
    balance: float = option(
        0.0,
        "beta, weights images by their classes' frequency to the power -beta",
        low=0,
        high=2,
        paper="L3A",
    )
    pseudo_above: float | None = option(
        None,
        "an old class with a probability above this gets a pseudo label; none for no pseudo labels",
        low=0.5,
        high=1,
    )
    width: int = option(384, "size of the embedding with base attention", low=1, paper="KRT, section 4.1")
    heads: int = option(8, "number of attention heads with base attention", low=1, paper="KRT, section 4.1")


class Analytic(Method):
    """Learns each session in one pass over its images and forgets nothing, because it keeps the sums over all images.

    Attributes:
        statistics: the sums over all sessions so far.
        solution: of the last session.
    """

    name = "analytic"
    summary = "closed-form heads on frozen features: sums over images, one linear system a session"
    family = "closed form"
    reference = "Zhang et al., L3A, ICML 2025"
    Config = AnalyticConfig
    config: AnalyticConfig
    saved = ("statistics", "_thresholds", "_stretch", "_shift")
    setting_defaults = {"augment": "none"}  # each image is seen once, unaugmented
    tagger: AnalyticTagger

    def __init__(self, config: AnalyticConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        if config.base == "attention" and config.width % config.heads:
            raise UserError(f"analytic: width {config.width} is not a multiple of heads {config.heads}")
        super().__init__(config, backbone, task, budget)
        self.statistics = Statistics.empty(self.tagger.width)
        self.solution: Solution | None = None
        self._thresholds: Tensor | None = None  # (K,) of probabilities
        self._stretch = self._shift = torch.empty(0)  # (K,) from scores with windows to those of whole images

    def make_tagger(self, backbone: Backbone) -> AnalyticTagger:
        """A tagger with fixed features and weights that are solved for."""
        c = self.config
        if c.base == "frozen":
            backbone.stop_training()
        attention = AttentionShape(c.width, c.heads) if c.base == "attention" else None
        trains_base = c.base != "frozen"
        return AnalyticTagger(backbone, c.expansion, c.power, c.window, c.window_weight, attention, trains_base)

    def trains(self, session: Session) -> bool:
        """Only the first session trains, and only if it adapts the backbone."""
        return session.number == 1 and self.config.base != "frozen"

    def freeze(self) -> None:
        """Keep the features that the first session's images were summed with."""
        if self.statistics.classes:
            self.tagger.backbone.stop_training()

    def after_session(self, session: Session, infer: Inference) -> None:
        """Add the session's images to the sums and solve for all classes, old and new."""
        super().after_session(session, infer)
        tagger = self.tagger
        tagger.backbone.stop_training()
        described = torch.from_numpy(infer(tagger.describe, session.indices))  # (N, p)
        if session.number == 1:
            tagger.standardise(described)
            self.statistics = Statistics.empty(tagger.width, tagger.fingerprint())
        self._add(described, session, infer)
        self._solve()
        self._match_windows(session, infer)
        self._set_scores()

    def relearn(self, statistics: Statistics) -> None:
        """Solve for other sums of the same features: of fewer sessions or classes, or of several learners together.

        The columns of the model are then `statistics.classes`. Classes that were not here before take the scale of
        window scores from the median of those that were.
        """
        check_same_features(self.statistics, statistics)
        known = {name: place for place, name in enumerate(self.statistics.classes)}
        self._stretch, self._shift = (
            torch.stack([old[known[name]] if name in known else old.median() for name in statistics.classes])
            for old in (self._stretch, self._shift)
        )
        self.statistics, self.tagger.sizes = statistics, [len(statistics.classes)]
        self._solve()
        self._set_scores()

    def thresholds(self) -> NDArray[np.float64] | None:
        """Where F1 is highest if the scores of images with a class and without are normal; see `models.ridge`."""
        return None if self._thresholds is None else self._thresholds.numpy()

    def notes(self) -> dict[str, Any]:
        """The regularisation strength, and the error that cross-validation expects."""
        if self.solution is None:
            return {}
        return {"ridge": self.solution.ridge, "freedom": self.solution.freedom, "gcv_error": self.solution.error}

    def _add(self, described: Tensor, session: Session, infer: Inference) -> None:
        """Add the images, described by (N, p), to the sums, with pseudo labels if there are to be any."""
        # An image that arrives with every session shows no class, and an earlier session has added it already.
        is_new = ~session.is_back
        described, indices = described[is_new], session.indices[is_new]
        labels = torch.from_numpy(session.labels[is_new] == PRESENT).float()
        annotated = labels.sum(0)
        if session.first and self.config.pseudo_above is not None:
            scores = torch.from_numpy(infer(self.predict, indices))
            labels[:, : session.first] = (scores[:, : session.first] > self.config.pseudo_above).float()
        sums = self.statistics.with_classes(session.classes)
        weights = balanced_weights(labels, sums.counts + annotated, self.config.balance)
        for start in range(0, len(described), CHUNK):
            part = slice(start, start + CHUNK)
            features = self.tagger.expand(described[part].to(self.tagger.mean)).cpu()
            sums = sums.with_images(features, labels[part], weights[part], annotated)
            annotated = torch.zeros_like(annotated)  # counted once
        self.statistics = sums

    def _solve(self) -> None:
        given = self.config.ridge
        self.solution = choose_ridge(self.statistics) if given is None else solve(self.statistics, given)

    def _match_windows(self, session: Session, infer: Inference) -> None:
        """Find the scale that brings scores with windows to the range of scores of whole images.

        It matches mean and deviation on some of the session's images. That needs no labels, so it serves old classes.
        """
        assert self.solution is not None
        ones = torch.ones(len(self.statistics.classes))
        self.tagger.set_solution(self.solution.weights, ones, ones)
        some = generator_from_torch().permutation(len(session.indices))[:MATCHED]
        both = torch.from_numpy(infer(self.tagger.scores, np.sort(session.indices[some]))).double()  # (n, 2, K)
        (whole, combined), (spread, wide) = both.mean(0), both.std(0, unbiased=False).clamp(min=1e-12)
        self._stretch = spread / wide
        self._shift = whole - self._stretch * combined

    def _set_scores(self) -> None:
        """Put the weights into the model, with the probabilities and thresholds that belong to their scores."""
        assert self.solution is not None
        slope, offset, threshold = score_calibration(self.statistics, self.solution)
        self.tagger.set_solution(self.solution.weights, slope * self._stretch, slope * self._shift + offset)
        self._thresholds = torch.sigmoid(tempered(slope * threshold + offset))


def balanced_weights(labels: Tensor, counts: Tensor, beta: float) -> Tensor:
    """(N,) weights by which rare classes count more: the mean of n_c^-beta over an image's classes (L3A).

    Arguments:
        labels: (N, K) of 0 and 1.
        counts: (K,) n_c, how many images show each class; the weights n_c^-beta are scaled to a mean of 1 over the
            classes with any.
    """
    seen = counts > 0
    by_class = torch.where(seen, counts.clamp(min=1).double() ** -beta, 0.0)
    by_class = by_class * seen.sum() / by_class.sum().clamp(min=1e-12)
    shown = labels.double().sum(1)
    mean = labels.double() @ by_class / shown.clamp(min=1)
    return torch.where(shown > 0, mean, 1.0)
