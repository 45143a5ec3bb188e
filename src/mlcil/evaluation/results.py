"""The record of a run: one `SessionResult` after each session, together the content of results.json.

Every quality is in percent (forgetting and BWT in percent points) and none is rounded, so that a resumed
run can be compared with an uninterrupted one bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..core.files import read_json
from .calibration import Calibration
from .metrics import (
    Floats,
    average_precision,
    backward_transfer,
    expected_calibration_error,
    f1_scores,
    forgetting,
)

THRESHOLDS = (0.5, 0.8)  # 0.8 is that of KRT's tables
_ROUNDING = 1e-5  # a cosine brought to 0..1 may leave it by so much


@dataclass(frozen=True)
class SessionResult:
    """What was measured after one session."""

    session: int
    new_classes: list[str]
    classes: list[str]  # every class seen so far, in column order
    images: int  # training images, exemplars included
    test_images: int
    map: float  # mean over the classes with a positive
    f1: dict[
        str, float
    ]  # "cf1@0.5", "cf1_of_means@0.5", "of1@0.5", the same at 0.8, and @stored if there are such thresholds
    ap: dict[str, float | None]  # None for a class without a positive
    classes_without_positives: list[str]
    forgetting: float
    forgetting_per_class: dict[str, float]  # old classes only
    bwt: float
    train_seconds: float
    notes: dict[str, Any]  # what the method tells about the session
    calibration: dict[str, Any] = field(default_factory=dict)  # see `_calibration`; empty in older results
    bytes_kept: int | None = None  # of the method's tensors after the session, the model among them


def evaluate(
    scores: NDArray[Any],
    labels: NDArray[Any],
    session: int,
    classes: Sequence[str],
    first: int,
    earlier: Sequence[SessionResult],
    images: int,
    train_seconds: float,
    notes: Mapping[str, Any],
    thresholds: Floats | None = None,
    calibration: Calibration | None = None,
    bytes_kept: int | None = None,
) -> SessionResult:
    """Measure the model after a session.

    Arguments:
        scores: (N, K) over the test images that show a seen class and over all seen classes.
        labels: (N, K) of 1, 0 or -1.
        classes: the K names; the columns from `first` on are new in this session.
        earlier: the results of all sessions before, for forgetting and BWT.
        thresholds: (K,), those stored with the model, if there are any.
        calibration: of the K classes, if images were set aside for it.
        bytes_kept: the size of what the method keeps for the next session.

    Raises:
        UserError: no test image shows any seen class, so that there is nothing to measure.
    """
    names = _column_names(scores, classes)
    ap = 100 * average_precision(scores, labels)  # (K,)
    rated = ~np.isnan(ap)
    if not rated.any():
        raise UserError(f"no test image shows any of the {len(names)} seen classes ({_some(names)})")
    named_ap = dict(zip(names, _without_nan(ap), strict=True))
    # In percent and from what results.json holds, so that resuming changes no bit.
    matrix = _matrix(names, [*(result.ap for result in earlier), named_ap])
    lost = forgetting(matrix)
    return SessionResult(
        session=session,
        new_classes=names[first:],
        classes=names,
        images=images,
        test_images=len(scores),
        map=float(ap[rated].mean()),
        f1=_f1_by_name(scores, labels, thresholds),
        ap=named_ap,
        classes_without_positives=[name for name, value in named_ap.items() if value is None],
        forgetting=lost.mean,
        forgetting_per_class={
            name: value for name, value in zip(names, _without_nan(lost.per_class), strict=True) if value is not None
        },
        bwt=backward_transfer(matrix),
        train_seconds=float(train_seconds),
        notes=_json_safe(notes),
        calibration=_calibration(scores, labels, names, thresholds, calibration),
        bytes_kept=bytes_kept,
    )


def summarise(run: Mapping[str, Any], sessions: Sequence[SessionResult], finished: bool) -> dict[str, Any]:
    """The content of results.json: the run's header, its averages, its sessions and the AP matrix.

    Arguments:
        run: what the run is (method, data, protocol, seed, backbone, ...); its keys stand at the top level.
        sessions: those done so far; none is allowed.
        finished: whether all sessions of the protocol are done.
    """
    maps = [result.map for result in sessions]
    return {
        **_json_safe(run),
        "finished": finished,
        "average_map": sum(maps) / len(maps) if maps else None,
        "last_map": maps[-1] if maps else None,
        "sessions": [_json_safe(asdict(result)) for result in sessions],
        "ap_matrix": _ap_matrix(sessions),
    }


def session_from_dict(record: Mapping[str, Any]) -> SessionResult:
    """The session that one entry of `sessions` in results.json describes; an older one may lack the youngest fields.

    Raises:
        UserError: a field is missing.
    """
    known = fields(SessionResult)
    needed = [one.name for one in known if one.default is MISSING and one.default_factory is MISSING]
    missing = [name for name in needed if name not in record]
    if missing:
        raise UserError(f"a session of the results lacks {', '.join(missing)}")
    return SessionResult(**{one.name: record[one.name] for one in known if one.name in record})


def load_results(path: Path) -> dict[str, Any]:
    """Read results.json, given itself or the run folder that holds it.

    Raises:
        UserError: the file is missing, unreadable or not the results of a run.
    """
    file = path / "results.json" if path.is_dir() else path
    try:
        record = read_json(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    sessions = record.get("sessions") if isinstance(record, dict) else None
    if not isinstance(sessions, list) or not all(isinstance(entry, dict) for entry in sessions):
        raise UserError(f"{file} is not the results of a run: it has no list of sessions")
    try:
        for entry in sessions:
            session_from_dict(entry)
    except UserError as error:
        raise UserError(f"{file} is not the results of a run: {error}") from None
    return dict(record)


def _column_names(scores: NDArray[Any], classes: Sequence[str]) -> list[str]:
    if scores.shape[1:] != (len(classes),):
        raise ValueError(f"got scores {scores.shape} for {len(classes)} classes, expected one column each")
    return list(classes)


def _f1_by_name(scores: NDArray[Any], labels: NDArray[Any], stored: Floats | None) -> dict[str, float]:
    thresholds: dict[str, float | Floats] = {str(threshold): threshold for threshold in THRESHOLDS}
    if stored is not None:
        thresholds["stored"] = stored
    return {
        f"{name}@{text}": 100 * value
        for text, threshold in thresholds.items()
        for name, value in f1_scores(scores, labels, threshold)._asdict().items()
    }


def _calibration(
    scores: NDArray[Any],
    labels: NDArray[Any],
    names: Sequence[str],
    thresholds: Floats | None,
    calibration: Calibration | None,
) -> dict[str, Any]:
    """The error "ece" of the scores in percent, None if they are no probabilities, and as far as there are any
    "ece_calibrated" of calibrated ones, "temperature" and "shift" of the session's classes, "thresholds" by class."""
    found: dict[str, Any] = {"ece": _ece(scores, labels)}
    if calibration is not None:
        found["ece_calibrated"] = _ece(calibration.probabilities(scores), labels)
        found |= {"temperature": float(calibration.temperatures[-1]), "shift": float(calibration.shifts[-1])}
    if thresholds is not None:
        found["thresholds"] = dict(zip(names, thresholds.tolist(), strict=True))
    return found


def _ece(scores: NDArray[Any], labels: NDArray[Any]) -> float | None:
    probabilities = np.clip(scores, 0, 1)
    # A method from elsewhere may score as it likes; that is no reason to lose a trained session.
    if np.abs(probabilities - scores).max(initial=0) > _ROUNDING:
        return None
    return 100 * expected_calibration_error(probabilities, labels)


def _ap_matrix(sessions: Sequence[SessionResult]) -> dict[str, Any]:
    """AP per class (rows) and session (columns), None where a class is unseen or has no positive."""
    classes = sessions[-1].classes if sessions else []
    matrix = _matrix(classes, [result.ap for result in sessions])
    return {
        "classes": list(classes),
        "sessions": [result.session for result in sessions],
        "ap": [_without_nan(row) for row in matrix],
    }


def _matrix(classes: Sequence[str], columns: Sequence[Mapping[str, float | None]]) -> Floats:
    """(K, T) with NaN for what is not there."""
    matrix = np.full((len(classes), len(columns)), np.nan)
    for t, ap in enumerate(columns):
        for k, name in enumerate(classes):
            value = ap.get(name)
            matrix[k, t] = np.nan if value is None else value
    return matrix


def _without_nan(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _json_safe(value: Any) -> Any:
    """`value` in what JSON knows: numpy unpacked, tuples as lists, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _json_safe(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _json_safe(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_safe(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
