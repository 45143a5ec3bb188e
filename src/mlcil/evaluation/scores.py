"""The test scores after a session, which are kept so that two runs can be compared image by image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.checksums import DamagedFileError, digest_of, sealed, unsealed
from ..core.errors import UserError, reason_of
from ..core.files import write_atomically

_SCORES = "mlcil"  # name of what a file says beside its arrays


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
    digests = {name: _digest(one) for name, one in arrays.items()}
    data = save(arrays, {_SCORES: sealed(path, {"classes": scored.classes}, digests)})

    def write(partial: Path) -> None:
        partial.write_bytes(data)

    write_atomically(path, write)


def load_scores(path: Path) -> ScoredImages:
    """The inverse of `save_scores`.

    Raises:
        DamagedFileError: the file is damaged, or is something else.
        UserError: it is missing or cannot be read.
    """
    from safetensors import safe_open

    if not path.is_file():
        raise UserError(f"{path} does not exist; repeat the command of the run to compute the scores again")
    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in ("scores", "labels", "rows")}
            classes = _checked(path, file.metadata(), arrays)
            return ScoredImages(**arrays, classes=classes)
    except MemoryError:
        raise
    except OSError as error:  # it may be sound
        raise UserError(f"cannot read {path}: {error.strerror or reason_of(error)}") from error
    except Exception as error:  # safetensors has its own exceptions, and a foreign file can fail anywhere above
        advice = "repeat the command of the run to compute the scores again"
        raise DamagedFileError(path, f"it holds no scores as they were written ({reason_of(error)})", advice) from error


def _checked(path: Path, stored: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """The names of the classes, if the arrays are what was written.

    Raises:
        ValueError, KeyError, ...: they are not.
    """
    if _SCORES not in stored:  # earlier versions had no checksums
        return tuple(json.loads(stored["classes"]))
    values, digests = unsealed(path, stored[_SCORES])
    for name, array in arrays.items():
        if digests is None or digests[name] != _digest(array):
            raise ValueError(f"its {name} do not have their checksum")
    return tuple(values["classes"])


def _digest(array: NDArray[Any]) -> str:
    return digest_of(np.ascontiguousarray(array).tobytes(), array.dtype.str, array.shape)
