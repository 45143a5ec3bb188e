"""How right pseudo labels are, compared with labels that no method sees. It is logged and never used in training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.images import ABSENT, PRESENT


def pseudo_label_quality(pseudo: NDArray[np.bool_], truth: NDArray[np.int8]) -> dict[str, float | None]:
    """Precision and recall of pseudo labels in percent, and how many there are per image.

    Arguments:
        pseudo: (N, K), true where a method assumes that an old class is present.
        truth: (N, K) of 1, 0 or -1; unknown entries are left out.

    Returns:
        images, per_image, true_per_image, precision (None without a pseudo label) and recall (None without a true
        label).
    """
    right = int((pseudo & (truth == PRESENT)).sum())
    claimed = right + int((pseudo & (truth == ABSENT)).sum())
    present = int((truth == PRESENT).sum())
    return {
        "images": len(pseudo),
        "per_image": float(pseudo.sum() / len(pseudo)),
        "true_per_image": present / len(pseudo),
        "precision": 100 * right / claimed if claimed else None,
        "recall": 100 * right / present if present else None,
    }
