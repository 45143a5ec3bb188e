"""All that a closed-form learner keeps of its images: sums, which can be added, taken away and merged.

A ridge regression needs of its data no more than these sums, so a learner that keeps them has lost nothing by letting
the images go: after any number of sessions, in any order, it solves the same equations as if it had all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UserError, unknown_name

_SUMS = ("gram", "cross", "total", "positives", "counts", "weight", "images")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Weighted sums over images with features z (d,), labels y (K,) of 0 and 1 and weights w; float64, on the CPU."""

    classes: tuple[str, ...]  # the names of the K columns
    gram: Tensor  # (d (d + 1) / 2,), sum of w z z', of which only the lower triangle is kept, row by row; see `matrix`
    cross: Tensor  # (d, K), sum of w z y'
    total: Tensor  # (d,), sum of w z
    positives: Tensor  # (K,), sum of w y
    counts: Tensor  # (K,), how many images were annotated with each class, pseudo labels left out
    weight: Tensor  # (), sum of w
    images: Tensor  # (), how many there are
    features: str = ""  # what the features are; only sums of the same features can be brought together

    @classmethod
    def empty(cls, width: int, features: str = "") -> Statistics:
        """Of no image and no class, for `width` features."""
        shapes = [(width * (width + 1) // 2,), (width, 0), (width,), (0,), (0,), (), ()]
        sums = {key: torch.zeros(shape, dtype=torch.float64) for key, shape in zip(_SUMS, shapes, strict=True)}
        return cls((), features=features, **sums)

    @property
    def width(self) -> int:
        """d, the number of features."""
        return len(self.total)

    def matrix(self) -> Tensor:
        """(d, d), the lower triangle of the sum of w z z', zeros above it."""
        matrix = self.gram.new_zeros(self.width, self.width)
        matrix[_lower_triangle(self.width)] = self.gram
        return matrix

    def with_classes(self, names: Sequence[str]) -> Statistics:
        """With these classes in this order: a new one gets zeros, one that is not named is left out.

        To leave a class out is exact removal: the result is as if its labels had never been given.
        """
        place = {name: column for column, name in enumerate(self.classes)}
        old = [column for column, name in enumerate(names) if name in place]
        source = [place[names[column]] for column in old]

        def arranged(values: Tensor) -> Tensor:
            wide = values.new_zeros(*values.shape[:-1], len(names))
            wide[..., old] = values[..., source]
            return wide

        columns: dict[str, Any] = {key: arranged(getattr(self, key)) for key in ("cross", "positives", "counts")}
        return replace(self, classes=tuple(names), **columns)

    def with_images(
        self, features: Tensor, labels: Tensor, weights: Tensor | None = None, annotated: Tensor | None = None
    ) -> Statistics:
        """With more images.

        Arguments:
            features: (N, d).
            labels: (N, K) of 0 and 1 for every class, pseudo labels among them.
            weights: (N,), 1 where not given.
            annotated: (K,) how many images were annotated with each class; by default the positives of `labels`.
        """
        x, y = features.double(), labels.double()
        w = x.new_ones(len(x)) if weights is None else weights.double()
        weighted = x * w[:, None]
        return replace(
            self,
            gram=self.gram + (x.T @ weighted)[_lower_triangle(self.width)],
            cross=self.cross + weighted.T @ y,
            total=self.total + weighted.sum(0),
            positives=self.positives + w @ y,
            counts=self.counts + (y.sum(0) if annotated is None else annotated.double()),
            weight=self.weight + w.sum(),
            images=self.images + len(x),
        )


def _lower_triangle(width: int) -> Tensor:
    """bool (d, d), the places on and below the diagonal."""
    return torch.ones(width, width, dtype=torch.bool).tril()


def merged(first: Statistics, second: Statistics) -> Statistics:
    """The statistics of two learners' images together, exactly; a class that both know is the same class.

    The columns are those of `first`, then those that only `second` has.
    """
    check_same_features(first, second)
    names = list(dict.fromkeys((*first.classes, *second.classes)))
    one, other = first.with_classes(names), second.with_classes(names)
    return replace(one, **{key: getattr(one, key) + getattr(other, key) for key in _SUMS})


def without(whole: Statistics, part: Statistics) -> Statistics:
    """The statistics as if the images of `part`, say a session, had never been there.

    A class of which no image is left is left out as well.
    """
    check_same_features(whole, part)
    for name in part.classes:
        if name not in whole.classes:
            raise unknown_name("class to take away", name, whole.classes)
    other = part.with_classes(whole.classes)
    left = replace(whole, **{key: getattr(whole, key) - getattr(other, key) for key in _SUMS})
    if (left.counts < 0).any() or left.images < 0:
        raise UserError("these images were never part of the learner: taking them away would leave less than nothing")
    has_any = (left.counts > 0) | (left.positives > 1e-9 * whole.weight)  # pseudo labels count as positives only
    return left.with_classes([name for name, keep in zip(left.classes, has_any.tolist(), strict=True) if keep])


def without_class(whole: Statistics, name: str) -> Statistics:
    """The statistics as if the labels of one class had never been given; its images stay, as those of others."""
    if name not in whole.classes:
        raise unknown_name("class", name, whole.classes)
    return whole.with_classes([one for one in whole.classes if one != name])


def check_same_features(first: Statistics, second: Statistics) -> None:
    """Make sure that sums can be brought together."""
    if (first.features, first.width) != (second.features, second.width):
        raise UserError(
            "the two learners do not have the same features: they need the same backbone, weights, image size, "
            "expansion and standardisation"
        )
