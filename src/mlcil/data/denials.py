"""Lists that deny a label: `-cat` says that a photo was looked at and shows no cat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from .images import ABSENT, PRESENT, UNKNOWN, LabelledImages

NO = ("-", "\u2212", "\u2013")  # a minus sign before a label in a list, also as word processors write it: not shown


def is_denial(name: str) -> bool:
    """Whether a name in a list of labels denies a label."""
    return name.startswith(NO) and len(name) > 1


def with_denials(images: LabelledImages) -> tuple[LabelledImages, NDArray[np.bool_]]:
    """The images with each label `-x` of a list taken as "does not show x".

    Returns:
        The images, and bool (N, K) where a label is denied outright: by `-x`, or by 0 in a column of its own. Where a
        list merely lacks a label, it is absent and not denied.

    Raises:
        UserError: a photo has a label and its denial.
    """
    denials = [name for name in images.classes if images.has_lists and is_denial(name)]
    plain = sorted({name for name in images.classes if name not in denials} | {name[1:].strip() for name in denials})
    column = {name: place for place, name in enumerate(images.classes)}
    empty = ABSENT if images.has_lists else UNKNOWN
    labels = np.full((len(images), len(plain)), empty, np.int8)
    denied = np.zeros(labels.shape, bool)
    for place, name in enumerate(plain):
        if name in column:
            labels[:, place] = images.labels[:, column[name]]
            denied[:, place] = (labels[:, place] == ABSENT) & (not images.has_lists)
    for name in denials:
        place, is_no = plain.index(name[1:].strip()), images.labels[:, column[name]] == PRESENT
        if (both := is_no & (labels[:, place] == PRESENT)).any():
            photo = images.paths[int(both.argmax())]
            raise UserError(f"{photo} has both the label {name[1:]!r} and its denial {name!r}; keep one of them")
        denied[is_no, place] = True
    return replace(images, labels=labels, classes=tuple(plain)), denied
