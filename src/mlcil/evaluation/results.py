"""The outcome of a run: a `RunResult` with one `SessionResult` per session; results.json holds it as JSON.

Metrics are in percent (forgetting and BWT in percent points) and are never rounded, so that a resumed run can be
compared with an uninterrupted one bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checksums import check_record, with_checksum
from ..core.errors import UserError
from ..core.files import read_json, write_json
from ..core.kinds import check_kinds
from .calibration import Calibration
from .metrics import Floats, Measurement, forgetting, meaningful_ap, measure
from .scores import ScoredImages


@dataclass(frozen=True)
class SessionResult:
    """What was measured after one session."""

    session: int  # counted from 1
    classes: list[str]  # every class seen so far, in column order
    new_classes: list[str]
    images: int  # training images, including exemplars
    test_images: int
    metrics: dict[str, float | None]  # by name, see `metrics.METRICS`
    ap: dict[str, float | None]  # average precision by class; None unless some test images show it and some do not
    thresholds: dict[str, float]  # by class, those stored with the model; empty if there are none
    temperature: float | None  # of the calibration of this session's classes, as is the shift
    shift: float | None
    train_seconds: float
    bytes_kept: int  # size of the tensors that the method keeps for the next session, including the model
    notes: dict[str, Any]  # what the method reports about the session

    @property
    def map(self) -> float | None:
        """The mean average precision in percent; None if every test image shows every class."""
        return self.metrics["mAP"]


@dataclass(frozen=True)
class RunResult:
    """What a run measured so far, with the settings that readers of results look for first."""

    method: str
    data: str
    protocol: str
    order: str | None
    backbone: str
    weights: str | None
    image_size: int
    buffer: str
    seed: int
    epochs: int
    preset: str | None
    negatives: str  # "labelled" if images without a class of a session were part of it, "none" as published
    data_digest: str  # stands for the images, their labels and their parts
    bad_images: list[str]  # images that could not be read and were left out
    finished: bool  # whether all sessions of the protocol are done
    sessions: list[SessionResult]
    allow_known_classes: bool = False  # whether weights were accepted that may have been trained on the classes

    @property
    def classes(self) -> list[str]:
        """Every class seen so far, in column order."""
        return self.sessions[-1].classes if self.sessions else []

    @property
    def average_map(self) -> float | None:
        """The mean of the mAP over the sessions that have one; None if there is none."""
        maps = [session.map for session in self.sessions if session.map is not None]
        return sum(maps) / len(maps) if maps else None

    @property
    def last_map(self) -> float | None:
        """The mAP after the latest session; None if it has none, or before the first."""
        return self.sessions[-1].map if self.sessions else None

    def forgetting_per_class(self) -> dict[str, float]:
        """Latest AP minus best AP in percent points, for the old classes that have an AP."""
        lost = forgetting(ap_matrix(self.classes, [session.ap for session in self.sessions])).tolist()
        return {name: value for name, value in zip(self.classes, lost, strict=True) if not math.isnan(value)}


_MEASURED = ("negatives", "data_digest", "bad_images", "finished", "sessions")
# The settings of a run that its result repeats.
HEADER = tuple(one.name for one in fields(RunResult) if one.name not in _MEASURED)


def evaluate(
    scored: ScoredImages,
    earlier: Sequence[SessionResult],
    *,
    images: int,
    train_seconds: float,
    bytes_kept: int,
    notes: Mapping[str, Any],
    thresholds: Floats | None = None,
    calibration: Calibration | None = None,
) -> SessionResult:
    """Measure the model after a session. What is not listed below becomes a field of the result.

    Arguments:
        scored: the test images of the sessions so far, with scores for all K seen classes.
        earlier: the results of all sessions before this one.
        thresholds, calibration: of the K classes, where the model or the run has any.

    Raises:
        UserError: no test image shows any seen class, so there is nothing to measure.
    """
    names, ap = list(scored.classes), _ap_by_class(scored)
    # Earlier APs are taken as results.json holds them, so that resuming changes no bit.
    history = ap_matrix(names, [*(result.ap for result in earlier), ap])
    probabilities = None if calibration is None else calibration.probabilities(scored.scores)
    return SessionResult(
        session=len(earlier) + 1,
        classes=names,
        new_classes=names[len(earlier[-1].classes) if earlier else 0 :],
        images=images,
        test_images=len(scored.scores),
        metrics=measure(Measurement(scored.scores, scored.labels, history, thresholds, probabilities)),
        ap=ap,
        thresholds={} if thresholds is None else dict(zip(names, thresholds.tolist(), strict=True)),
        temperature=None if calibration is None else float(calibration.temperatures[-1]),
        shift=None if calibration is None else float(calibration.shifts[-1]),
        train_seconds=float(train_seconds),
        bytes_kept=bytes_kept,
        notes=_as_json(notes),
    )


def write_results(path: Path, result: RunResult) -> None:
    """Write results.json. Its averages are for human readers: `load_results` computes them again."""
    record = dict(vars(result))  # not `asdict`, whose copies cost more than the file when there are many sessions
    sessions = [vars(one) for one in record.pop("sessions")]
    averages = {"average_map": result.average_map, "last_map": result.last_map}
    write_json(path, with_checksum(record | averages | {"sessions": sessions}))


def load_results(path: Path) -> RunResult:
    """Read results.json, given the file itself or its run folder.

    Raises:
        UserError: the file is missing, unreadable, damaged or not the result of a run.
    """
    file = path / "results.json" if path.is_dir() else path
    record = read_json(file)
    check_record(file, record, "repeat the command of the run to write it again")
    try:
        # Runs of earlier versions lack what has a default.
        names = [one.name for one in fields(RunResult) if one.default is MISSING or one.name in record]
        values = {name: record[name] for name in names}
        result = RunResult(**values | {"sessions": [session_from_dict(one) for one in values["sessions"]]})
        check_kinds(result)
        return result
    except (KeyError, TypeError) as error:
        raise UserError(f"{file} is not the result of a run of this version: {error}") from None


def session_from_dict(record: Mapping[str, Any]) -> SessionResult:
    """The inverse of `dataclasses.asdict` for a session.

    Raises:
        TypeError: another version wrote it, with other fields.
    """
    try:
        session = SessionResult(**record)
        check_kinds(session)
        if "mAP" not in session.metrics:
            raise TypeError("metrics lack mAP")
        return session
    except TypeError as error:
        raise TypeError(f"a session has other fields than in this version: {error}") from None


def _ap_by_class(scored: ScoredImages) -> dict[str, float | None]:
    names = scored.classes
    if not (scored.labels == 1).any():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise UserError(f"no test image shows any of the {len(names)} seen classes ({some})")
    percent = meaningful_ap(scored.scores, scored.labels).tolist()  # (K,)
    return {name: None if math.isnan(value) else value for name, value in zip(names, percent, strict=True)}


def ap_matrix(classes: Sequence[str], columns: Sequence[Mapping[str, float | None]]) -> Floats:
    """(K, T) AP of each class after each session; NaN if unseen or without a positive."""
    matrix = np.full((len(classes), len(columns)), np.nan)
    for t, ap in enumerate(columns):
        for k, name in enumerate(classes):
            value = ap.get(name)
            matrix[k, t] = np.nan if value is None else value
    return matrix


def _as_json(value: Any) -> Any:
    """`value` in terms of JSON: numpy unpacked, tuples and sets as lists, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _as_json(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
