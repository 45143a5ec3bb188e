"""What a table becomes for a method: a session of its own, counts of its labels, and a folder for checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checksums import check_record, set_aside, with_checksum
from ..core.errors import UserError
from ..core.files import read_json, remove, write_json
from ..core.locks import FileLock
from ..data.images import PRESENT
from ..data.protocol import Session, Validation
from ..methods.analytic import Analytic
from ..methods.base import Method
from ..training.config import RunConfig
from ..training.folder import RunFolder
from .records import LabelFacts
from .step_data import StepData


class LessonSession(Session):
    """A session whose photos may have labels of earlier ones without having been part of them."""

    @property
    def is_back(self) -> NDArray[np.bool_]:
        """Nobody knows: what does not remember its photos has to count them all."""
        return np.zeros(len(self.indices), bool)


def make_session(step: StepData, number: int, validation: float) -> Session:
    """The photos of a step as a session of a protocol.

    Arguments:
        validation: the part of them that is set aside to find thresholds with; which ones, their content decides.
    """
    images, first = step.train.images, step.first
    prints = np.zeros(int(step.train.rows.max(initial=-1)) + 1, np.int64)
    assert images.fingerprints is not None
    prints[step.train.rows] = images.fingerprints
    chance = (images.fingerprints.astype(np.uint64) >> np.uint64(11)).astype(np.float64) / 2.0**53
    aside = chance < validation
    is_needed = ~((images.labels == PRESENT) & ~aside[:, None]).any(axis=0) & (images.labels == PRESENT).any(axis=0)
    aside &= ~(images.labels[:, is_needed] == PRESENT).any(axis=1)
    annotations = np.full((len(prints), len(images.classes) - first), -1, np.int8)
    annotations[step.train.rows] = images.labels[:, first:]
    return LessonSession(
        number,
        first,
        len(images.classes),
        images.classes,
        step.train.rows[~aside],
        images.labels[~aside],
        annotations,
        Validation(step.train.rows[aside], images.labels[aside]),
        prints,
    )


def counted_facts(facts: tuple[LabelFacts, ...], step: StepData, method: Method) -> tuple[LabelFacts, ...]:
    """The facts with how many photos each label was learned from."""
    if isinstance(method, Analytic):
        images, positives = method.ledger.counts()
        return tuple(replace(one, images=int(images[k]), positives=int(positives[k])) for k, one in enumerate(facts))
    labels = step.train.images.labels
    seen, shown = (labels >= 0).sum(axis=0), (labels == PRESENT).sum(axis=0)
    return tuple(
        replace(one, images=(one.images or 0) + int(seen[k]), positives=(one.positives or 0) + int(shown[k]))
        if one.name in step.stated
        else one
        for k, one in enumerate(facts)
    )


def work_folder(
    path: Path | None, config: RunConfig, session: Session, method: Method, say: Callable[[str], None]
) -> RunFolder:
    """Where checkpoints of the training go; what another table, tagger or other settings left there is removed.

    Arguments:
        method: as it is before the lesson.
        say: takes a line for people.

    Raises:
        UserError: another process is at work there.
    """
    if path is None:
        return _NoFolder(Path())
    mark, name = path / "lesson.json", {"lesson": _name_of(config, session, method)}
    folder = RunFolder(path)
    if path.exists() and not _is_of(mark, name, say):
        _remove(path)
    folder.open(config)
    write_json(mark, with_checksum(name))
    return folder


def _is_of(mark: Path, name: dict[str, str], say: Callable[[str], None]) -> bool:
    """Whether a folder holds this lesson; if nobody can tell, as its mark is damaged, it is renamed and kept."""
    if not mark.exists():
        return False
    try:
        found = read_json(mark)
        check_record(mark, found)
    except UserError as error:
        say(f"{error}; the folder is renamed to {set_aside(mark.parent).name}, and learning begins anew")
        return False
    return bool(found == with_checksum(name))


def _name_of(config: RunConfig, session: Session, method: Method) -> str:
    """Equal for lessons that become the same tagger."""
    state = method.state()
    digest = hashlib.sha256(repr((sorted(config.flat().items()), session.classes, state.values)).encode())
    for part in (session.fingerprints, session.labels):
        digest.update(np.ascontiguousarray(part).tobytes())
    for value in state.tensors.values():
        digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: Tensor) -> bytes:
    flat = value.detach().cpu().contiguous().flatten()  # NumPy does not know every kind of number
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _remove(path: Path) -> None:
    lock = FileLock(path / ".lock")
    try:
        if not lock.try_to_claim():
            raise UserError(f"another process is learning in {path}; wait for it or choose another --out")
        remove(path)
    finally:
        lock.close()


class _NoFolder(RunFolder):
    """Keeps nothing."""

    def log(self, *records: Mapping[str, Any]) -> None:
        """Forget it."""

    def save(self, file: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Forget it."""
