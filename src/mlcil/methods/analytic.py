"""The analytic learner: sums over images, and one linear system per session (after Zhang et al., L3A, ICML 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option, with_default
from ..core.errors import UserError, unknown_name
from ..core.randomness import generator_from_torch
from ..data.images import PRESENT
from ..data.protocol import Session
from ..memory.buffer import Budget
from ..models.analytic import AnalyticTagger, tempered
from ..models.backbone import Backbone
from ..models.ledger import Ledger
from ..models.merging import check_same_features
from ..models.ridge import Solution, choose_ridge, solve, weights_at
from ..models.score_model import ScoreModel, score_model
from ..models.sums import SHARD, DescribedImages, Sums
from .base import Inference, Method, MethodConfig, Task
from .shard_sums import SumShard, read_sums

MATCHED = 1000  # images on which window scores are brought to the scale of whole images


@dataclass(frozen=True)
class AnalyticConfig(MethodConfig):
    """How features are computed and how the linear map is fitted."""

    missing: str = with_default(MethodConfig, "missing", "negative", choices=("negative",))
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
    remember: str = option(
        "none",
        "fingerprints: keep 8 bytes and the labels of each image, so that one that comes back counts once; none: it "
        "counts again, absent where its session does not label it",
        choices=("none", "fingerprints"),
    )


class HeldOut(NamedTuple):
    """Images of a session, all of them or as many as a shard has, each scored by a solution without it."""

    places: NDArray[np.int64]  # (n,) of them among the session's images, ascending
    scores: NDArray[np.float64]  # (n, K) probabilities; NaN where no image was left for a solution


class Analytic(Method):
    """Learns each session in one pass over its images and forgets nothing, because it keeps the sums over all images.

    Attributes:
        ledger: the sums over all sessions so far, and with `remember` who said what about which image.
        solution: of the last session; None after loading, as the model holds the weights.
        scores: what the scores of whole images mean.
        folds: into how many parts the images of a session are divided to score each part by a solution without it; 0
            for no such scores.
        held_out: these scores for images of the last session, or None.
    """

    name = "analytic"
    summary = "closed-form heads on frozen features: sums over images, one linear system a session"
    family = "closed form"
    reference = "Zhang et al., L3A, ICML 2025"
    Config = AnalyticConfig
    config: AnalyticConfig
    saved: ClassVar[tuple[str, ...]] = ("ledger", "scores", "_ridge", "_stretch", "_shift")
    only_for_learning: ClassVar[tuple[str, ...]] = ("ledger",)
    setting_defaults = {"augment": "none"}  # each image is seen once, unaugmented
    is_all_in_sums: ClassVar[bool] = True  # whether all that was learned is there, so that it can be taken back
    tagger: AnalyticTagger

    def __init__(self, config: AnalyticConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        super().__init__(config, backbone, task, budget)
        self.ledger = Ledger(self.tagger.width)
        self.folds = 0
        self.held_out: HeldOut | None = None
        self.solution: Solution | None = None
        self.scores = ScoreModel.empty()
        self._ridge: float | None = None  # of the last solution
        self._stretch = self._shift = torch.empty(0)  # (K,) from scores with windows to those of whole images

    @property
    def ridge(self) -> float | None:
        """The strength of the last solution; None before the first."""
        return self._ridge

    def make_tagger(self, backbone: Backbone) -> AnalyticTagger:
        """A tagger with fixed features and weights that are solved for."""
        backbone.stop_training()
        return self._tagger_of(backbone)

    def trains(self, session: Session) -> bool:
        """Nothing is trained."""
        return False

    def after_session(self, session: Session, infer: Inference) -> None:
        """Add the session's images to the sums and solve for all classes, old and new."""
        super().after_session(session, infer)
        tagger = self.tagger
        order = np.argsort(session.fingerprints, kind="stable")  # so that the order of a table does not matter
        if not self.ledger.features:
            if self.config.expansion:
                tagger.standardise(self._describe(session, infer, order[:SHARD]))
            self.ledger = Ledger(tagger.width, tagger.fingerprint())
        else:
            self.ledger = self._carried_over(session, infer)
        self._solve(self._with_session(session, infer, order))
        self._match_windows(session, infer)
        self._set_scores()
        self.held_out = self._cross_validate(session, infer, np.sort(order[:SHARD])) if self.folds else None

    def relearn(self, ledger: Ledger, ridge: float | None = None) -> None:
        """Solve for another ledger of the same features: with fewer steps or classes, or of two learners together.

        The columns of the model are then `ledger.classes`. Classes that were not here before take the scale of window
        scores from the median of those that were.

        Arguments:
            ridge: the strength to solve at; None for that of the options, or the one that is found.

        Raises:
            UserError: the features differ, or there is nothing to solve for; then all is as before.
        """
        check_same_features(self.ledger, ledger)
        before = self.ledger.classes
        _check_some(ledger.classes)
        self._solve(ledger, ridge)
        self._match_columns(before, ledger.classes)
        self._set_scores()

    def keep_classes(self, names: Sequence[str]) -> None:
        """Drop the other classes and leave the logits of these as they are, to the bit."""
        known = self.ledger.classes
        _check_some(names)
        if wrong := [name for name in names if name not in set(known)]:
            raise unknown_name("label", wrong[0], known)
        place = {name: column for column, name in enumerate(known)}
        columns = [place[name] for name in names]
        self._match_columns(known, names)
        self.ledger, self.solution = self.ledger.with_classes(names), None
        self.scores = ScoreModel(*(one[columns] for one in self.scores))
        self.tagger.keep(columns)

    def thresholds(self) -> NDArray[np.float64] | None:
        """Where F1 is highest if the scores of images with a class and without are normal; see `models.score_model`."""
        return None if self._ridge is None else self.probabilities(self.scores.best_thresholds())

    def probabilities(self, scores: Tensor, columns: Sequence[int] | None = None) -> NDArray[np.float64]:
        """Scores (..., K) of whole images as `predict` would give them; or of some columns alone, in this order."""
        chosen = slice(None) if columns is None else list(columns)
        slope, offset = self.scores.slope[chosen], self.scores.offset[chosen]
        found: NDArray[np.float64] = torch.sigmoid(tempered(slope * scores + offset)).numpy()
        return found

    def notes(self) -> dict[str, Any]:
        """The strength, the error that cross-validation expects, and how many images the sums are over."""
        if self.solution is None:
            return {}
        found = {"ridge": self.solution.ridge, "freedom": self.solution.freedom, "gcv_error": self.solution.error}
        return found | {"remember": self.config.remember, "images": round(self.ledger.images)}

    def _tagger_of(self, backbone: Backbone, still: Backbone | None = None) -> AnalyticTagger:
        c = self.config
        return AnalyticTagger(backbone, c.expansion, c.power, c.window, c.window_weight, still)

    def _carried_over(self, session: Session, infer: Inference) -> Ledger:
        """The ledger of earlier sessions with the features of today."""
        if self.ledger.features != self.tagger.fingerprint():
            raise UserError(
                "the features are not those of earlier sessions: the backbone, its weights or what computes it "
                "(--set runtime=torch or onnx) has changed, and sums of different features cannot be brought together"
            )
        return self.ledger

    def _with_session(self, session: Session, infer: Inference, order: NDArray[np.int64]) -> Ledger:
        """The ledger with a session's images, summed over in an order (N,)."""
        ledger = self.ledger.with_classes(session.classes)
        images = DescribedImages(
            partial(self._describe, session, infer), self._expand, ledger.width, partial(self._spread, session, infer)
        )
        if self.config.remember == "fingerprints":
            number = max(session.number, 1 + max(ledger.numbers, default=0))  # another learner may have been merged in
            return ledger.with_step(number, session.fingerprints, session.labels, images)
        # An image that arrives with every session shows no class, and an earlier session has added it already.
        new = order[~session.is_back[order]]
        return ledger.with_images(new, session.labels[new], images)

    def _describe(self, session: Session, infer: Inference, places: NDArray[np.int64]) -> Tensor:
        """(n,) places among a session's images -> (n, p)."""
        return torch.from_numpy(infer(self.tagger.describe, session.indices[places]))

    def _spread(
        self, session: Session, infer: Inference, shards: Sequence[NDArray[np.int64]], values: Sequence[NDArray[Any]]
    ) -> Iterator[Sums] | None:
        """See `models.sums.SumShards`."""
        work, rows = SumShard(self.tagger, self.tagger.fingerprint()), [session.indices[one] for one in shards]
        files = infer.spread(work, rows, [np.ascontiguousarray(one, np.int8) for one in values])
        return None if files is None else (read_sums(file, self.tagger.width, values[0].shape[1]) for file in files)

    def _expand(self, described: Tensor) -> Tensor:
        return self.tagger.expand(described.to(self.tagger.mean))

    def _solve(self, ledger: Ledger, ridge: float | None = None) -> None:
        """Solve for a ledger and keep it; see `relearn`."""
        given, sums = ridge or self.config.ridge, ledger.sums()
        self.solution = choose_ridge(sums, ledger.classes) if given is None else solve(sums, given)
        self._ridge, self.scores = self.solution.ridge, score_model(sums, self.solution)
        self.ledger = ledger

    def _match_windows(self, session: Session, infer: Inference) -> None:
        """Find the scale that brings scores with windows to the range of scores of whole images.

        It matches mean and deviation on some of the session's images. That needs no labels, so it serves old classes.
        """
        assert self.solution is not None
        ones = torch.ones(len(self.ledger.classes))
        self._stretch, self._shift = ones.double(), 0 * ones.double()
        if not self.config.window:
            return
        self.tagger.set_solution(self.solution.weights, ones, ones)
        some = generator_from_torch().permutation(len(session.indices))[:MATCHED]
        both = torch.from_numpy(infer(self.tagger.scores, np.sort(session.indices[some]))).double()  # (n, 2, K)
        (whole, combined), (spread, wide) = both.mean(0), both.std(0, unbiased=False).clamp(min=1e-12)
        self._stretch = spread / wide
        self._shift = whole - self._stretch * combined

    def _match_columns(self, before: Sequence[str], names: Sequence[str]) -> None:
        """Give the scale of window scores, and the model, the columns of these classes instead of those before."""
        known = {name: place for place, name in enumerate(before)}
        self._stretch, self._shift = (
            torch.stack([old[known[name]] if name in known else old.median() for name in names])
            for old in (self._stretch, self._shift)
        )
        self.tagger.sizes = [len(names)]

    def _set_scores(self) -> None:
        """Put the weights into the model, with the probabilities that belong to their scores."""
        assert self.solution is not None
        slope, offset = self.scores.slope * self._stretch, self.scores.slope * self._shift + self.scores.offset
        self.tagger.set_solution(self.solution.weights, slope, offset)

    def _cross_validate(self, session: Session, infer: Inference, places: NDArray[np.int64]) -> HeldOut:
        """Score images at these places (n,) of the session by solutions without them."""
        assert self._ridge is not None
        described, prints = self._describe(session, infer, places), session.fingerprints[places]
        sums, present = self.ledger.sums(), self._present_now(session, places)
        fold = prints.astype(np.uint64) % np.uint64(self.folds)
        counted = np.ones(len(fold), bool)
        if self.config.remember == "fingerprints":  # an image that the session has twice counts once
            counted[:] = False
            counted[np.unique(prints, return_index=True)[1]] = True
        found = torch.full((len(described), len(self.ledger.classes)), np.nan, dtype=torch.float64)
        for number in np.unique(fold):
            chosen, own = fold == number, counted & (fold == number)
            if own.sum() < sums.images:
                rest = sums - Sums.of(described[own], present[own], self._expand, self.ledger.width)
                found[chosen] = self._expand(described[chosen]).double() @ weights_at(rest, self._ridge)
        return HeldOut(places, self.probabilities(found))

    def _present_now(self, session: Session, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n, K), which classes the images at these places of the session count as showing."""
        if self.config.remember == "none":
            return np.asarray(session.labels[places] == PRESENT)
        return np.asarray(self.ledger.labels_now(self.ledger.find(session.fingerprints[places])) == PRESENT)


def _check_some(names: Sequence[str]) -> None:
    if not names:
        raise UserError("no label would be left; a tagger needs at least one")
