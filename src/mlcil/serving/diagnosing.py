"""Heads in closed form on the features of a run: what its features, its labels and its sessions could give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.progress import progress_line
from ..evaluation.calibration import stored_thresholds
from ..evaluation.closed_form import Arrivals, ClosedFormHeads, arrivals
from ..evaluation.diagnosis import ClosedForms
from ..evaluation.scores import ScoredImages, load_scores, scores_file
from ..models.tagger import TaggerNet
from ..training.folder import RunFolder
from ..training.inference import infer
from ..training.launch import launch
from ..training.prepare import Say, Store, kept_stem, make_feed, prepare_method
from ..training.run_data import prepare_run_data, read_run_data
from .loading import open_run

FILL = 0.5  # scores above it become labels where the model has no thresholds


class RunHeads(NamedTuple):
    """The heads in closed form of a run.

    Attributes:
        last: on the trunk as it is after the last finished session.
        first: on the trunk as it was before the first session; None if it was the same or cannot be made again.
        note: why there is no `first`, in a sentence without a full stop; empty if there is one.
    """

    last: ClosedForms
    first: ClosedForms | None
    note: str = ""


def run_heads(path: Path, session: int, has_pseudo_labels: bool, say: Say) -> RunHeads:
    """Solve for heads on the features of a run.

    Arguments:
        session: the last finished one.
        has_pseudo_labels: whether to ask the final model for the old labels of the training images as well.
        say: called with a line about each step.

    Raises:
        UserError: the data are gone or have changed, or the model cannot be loaded.
    """
    opened = _OpenedRun(path, session, say)
    pseudo = opened.predicted() if has_pseudo_labels else None
    last = opened.heads(opened.method.tagger, opened.method.pooled).all_forms(pseudo)
    try:
        first = opened.first_tagger()
    except UserError as error:
        return RunHeads(last, None, f"the trunk before the first session cannot be made again: {error}")
    if not first.enters_backbone and _is_same(first, opened.method.tagger):
        return RunHeads(last, None, "the run did not train its trunk, so the features are those it began with")
    return RunHeads(last, opened.heads(first, lambda images: first.backbone(images).mean(dim=(2, 3))).all_forms(pseudo))


def joint_features(path: Path, say: Say) -> float | None:
    """The mAP of heads in closed form, with all labels, on the trunk of a run of one session.

    Raises:
        UserError: as for `run_heads`.
    """
    opened = _OpenedRun(path, 1, say)
    return opened.heads(opened.method.tagger, opened.method.pooled).all_labels()


class _OpenedRun:
    """A run with its model after a session and its data, on one device of this machine."""

    def __init__(self, path: Path, session: int, say: Say) -> None:
        tagger = open_run(path, session)
        self.say, self.method, self.calibration = say, tagger.method, tagger.calibration
        # One process, however many the run had, and whatever hardware is here.
        settings = replace(tagger.config.settings, accelerator="auto", devices=1, nodes=1, strategy="auto")
        settings = replace(settings, precision="32-true")
        self.config, folder = replace(tagger.config, settings=settings), RunFolder(path)
        self.fabric = launch(settings)
        self.method.tagger.to(self.fabric.device)
        whole, before = read_run_data(settings, folder, say)
        stem = kept_stem(settings, self.method.tagger, self.fabric.device)
        self.data, sessions, _ = prepare_run_data(whole, before, settings, folder, say, stem)
        self.images: Arrivals = arrivals(sessions[:session], self.data.protocol.data.train.labels)
        self.tested: ScoredImages = load_scores(scores_file(path, session))

    def heads(self, tagger: TaggerNet, pooled: Callable[[Tensor], Tensor]) -> ClosedFormHeads:
        """Heads on the features (B, C) that a function makes of images."""
        train = self._infer(pooled, tagger, self.data.train, self.images.rows, "features of training images")
        test = self._infer(pooled, tagger, self.data.test, self.tested.rows, "features of test images")
        return ClosedFormHeads(self.images, train, self.tested, test)

    def predicted(self) -> NDArray[np.bool_]:
        """(U, K) which classes the model sees on the training images."""
        what = "predictions for training images"
        scores = self._infer(self.method.predict, self.method.tagger, self.data.train, self.images.rows, what)
        thresholds = stored_thresholds(self.method.thresholds(), self.calibration)
        return np.asarray(scores > (FILL if thresholds is None else thresholds))

    def first_tagger(self) -> TaggerNet:
        """The model as it was before the first session, without heads."""
        with torch.random.fork_rng(devices=[]):  # weights are drawn at random where there are none
            method, _ = prepare_method(self.config, len(self.data.whole.train.classes))
        return method.tagger.to(self.fabric.device)

    def _infer(
        self,
        function: Callable[[Tensor], Tensor],
        tagger: TaggerNet,
        images: Store,
        rows: NDArray[np.int64],
        what: str,
    ) -> NDArray[np.float32]:
        settings = self.config.settings
        feed = make_feed(settings, images, tagger.backbone, self.fabric)
        show = progress_line(self.say, what)
        return infer(function, rows, tagger, self.fabric, feed, settings.batch_size, show)


def _is_same(one: TaggerNet, other: TaggerNet) -> bool:
    """Whether two models have the same backbone, to the bit."""
    ours, theirs = (tagger.backbone.state_dict() for tagger in (one, other))
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)
