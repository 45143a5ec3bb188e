"""Where a run loses against joint training, from test scores alone; the functions here know no file and no model.

All values are mean AP in percent, and differences are in percent points. A class counts where it has an AP, that is
where some of the images show it and some do not; a value is None where no class does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .metrics import Floats, meaningful_ap
from .scores import ScoredImages


class Drift(NamedTuple):
    """What became in a session of the classes that were known before it."""

    session: int  # counted from 1; 0 for all sessions together
    classes: int  # that were known before and have an AP
    before: float | None  # by the scores before the session, on the test images until then
    after: float | None  # by the scores after it, on the same images
    all_images: float | None  # by the scores after it, on all test images after it
    by_training: float | None  # what the session destroyed (below 0) or gained
    by_images: float | None  # what the further test images cost the same model


class NewClasses(NamedTuple):
    """The classes of a session after it, with and without the images that show none of them."""

    session: int
    classes: int  # that are new and have an AP
    shown: float | None  # on the test images that show at least one of them
    everywhere: float | None  # on all test images of the session

    @property
    def cost(self) -> float | None:
        """What images without any new class cost."""
        return None if self.shown is None or self.everywhere is None else self.everywhere - self.shown


class ClosedForms(NamedTuple):
    """The mAP of heads in closed form on the features of one trunk, on the last test images."""

    all_labels: float | None  # every image with all its true labels
    united: float | None  # with the labels that its sessions gave, an image that returns counted once
    separate: float | None  # the same, but an image counts anew in each of its sessions
    restored: float | None  # as `separate`, with old labels as the final model sees them; None if that was not asked
    own_session: float | None  # the heads of a session from its own images alone


class Stage(NamedTuple):
    """A place on the way from joint training to the run."""

    key: str  # "joint", "joint_features", a field of `ClosedForms`, or "run"
    map: float
    change: float | None  # since the stage before; None for the first


def drifts(sessions: Sequence[ScoredImages]) -> list[Drift]:
    """What became of the old classes in every session but the first, and in the last entry in all of them together.

    The last entry sums what each class gained or lost in the sessions after its own, and takes the mean over classes,
    so that its two parts add up to the backward transfer (BWT).

    Arguments:
        sessions: the test images with their scores after each session. The classes before come first among those
            after, and every test image before is one after.
    """
    found, names = [], sessions[-1].classes
    sums = np.full((2, len(names)), np.nan)  # (2, K) by training and by images
    for number, (before, after) in enumerate(pairwise(sessions), start=2):
        old = len(before.classes)
        same = of_images(after, before.rows)
        # Three of (old,). A class that has an AP on the first images has one on more of them.
        ap = [meaningful_ap(one.scores[:, :old], one.labels[:, :old]) for one in (before, same, after)]
        counts = ~np.isnan(ap[0])
        changes = np.stack([ap[1] - ap[0], ap[2] - ap[1]])[:, counts]
        sums[:, :old][:, counts] = np.nan_to_num(sums[:, :old][:, counts]) + changes
        values = [_mean(one[counts]) for one in ap]
        found.append(Drift(number, int(counts.sum()), *values, *map(_mean, changes)))
    if found:
        changed = sums[:, ~np.isnan(sums[0])]
        found.append(Drift(0, changed.shape[1], None, None, None, *map(_mean, changed)))
    return found


def new_classes(session: int, scored: ScoredImages, names: Sequence[str]) -> NewClasses:
    """The AP of the classes that a session has added.

    Arguments:
        session: its number.
        scored: the test images of the session, with the scores of a model that knows these classes.
        names: of the new classes.
    """
    columns = [scored.classes.index(name) for name in names]
    scores, labels = scored.scores[:, columns], scored.labels[:, columns]
    shows = (labels == 1).any(axis=1)
    shown, everywhere = meaningful_ap(scores[shows], labels[shows]), meaningful_ap(scores, labels)
    # In a session of one class, every image that shows a new class shows that one: nothing can be compared.
    counts = ~np.isnan(shown)
    return NewClasses(session, int(counts.sum()), _mean(shown[counts]), _mean(everywhere[counts]))


def of_images(scored: ScoredImages, rows: NDArray[np.int64]) -> ScoredImages:
    """The images of the test set with these rows (n,), in this order.

    Raises:
        KeyError: one of them is not there.
    """
    place = {row: index for index, row in enumerate(scored.rows.tolist())}
    chosen = [place[row] for row in rows.tolist()]
    return ScoredImages(scored.scores[chosen], scored.labels[chosen], rows, scored.classes)


def map_of(scores: NDArray[np.floating], labels: NDArray[np.int8]) -> float | None:
    """The mAP in percent of scores (N, K), as a run's results have it; None if no class has an AP."""
    ap = meaningful_ap(scores, labels)
    return _mean(ap[~np.isnan(ap)])


def waterfall(joint: float | None, joint_features: float | None, heads: ClosedForms, run: float | None) -> list[Stage]:
    """The way from joint training to the run, stage by stage; stages without a value are left out.

    Arguments:
        joint: the mAP of the joint run, None if there is none.
        joint_features: the mAP of heads in closed form with all labels on the trunk of the joint run, None if unknown.
        heads: on the trunk of the run.
        run: the mAP of the run itself.
    """
    values = {"joint": joint, "joint_features": joint_features} | heads._asdict() | {"run": run}
    # The filled labels are another way to have labels, not a step further on this way.
    known = [(key, value) for key, value in values.items() if value is not None and key != "restored"]
    before = [None, *(value for _, value in known)]
    return [
        Stage(key, value, None if last is None else value - last)
        for (key, value), last in zip(known, before, strict=False)
    ]


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
