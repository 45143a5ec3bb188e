"""The test scores after a session, which are kept so that two runs can be compared image by image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.files import write_atomically


class ScoredImages(NamedTuple):
    """The scores of a model for test images, and the true labels."""

    scores: NDArray[np.float32]  # (N, K), higher means more likely present
    labels: NDArray[np.int8]  # (N, K) of 1, 0 or -1
    rows: NDArray[np.int64]  # (N,) the rows of the images in the test set, each at most once
    classes: tuple[str, ...]  # (K,) the names of the columns


def scores_file(run: Path, session: int) -> Path:
    """Where the run folder `run` keeps the scores after a session, counted from 1."""
    return run / f"session-{session:02d}" / "scores.safetensors"


def save_scores(path: Path, scored: ScoredImages) -> None:
    """Write the scores atomically.

    Raises:
        UserError: the file cannot be written, for instance because the disk is full.
    """
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {
        "scores": np.ascontiguousarray(scored.scores, np.float32),
        "labels": np.ascontiguousarray(scored.labels, np.int8),
        "rows": np.ascontiguousarray(scored.rows, np.int64),
    }
    data = save(arrays, {"classes": json.dumps(scored.classes)})

    def write(partial: Path) -> None:
        partial.write_bytes(data)

    write_atomically(path, write)


def load_scores(path: Path) -> ScoredImages:
    """The inverse of `save_scores`.

    Raises:
        UserError: the file is missing or damaged.
    """
    from safetensors import safe_open

    if not path.is_file():
        raise UserError(f"{path} does not exist")
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in ("scores", "labels", "rows")}
            return ScoredImages(**arrays, classes=tuple(json.loads(file.metadata()["classes"])))
    except Exception as error:  # safetensors has its own exceptions, and a foreign file can fail anywhere above
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is damaged or holds no scores: {reason}") from error
