"""A trained run back in memory, ready to tag images: its folder is all that is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..core.state import State, part_of
from ..data.augmentation import normalise
from ..data.pixels import DecodedPixels, MemoryPixels
from ..evaluation.calibration import Calibration, stored_thresholds
from ..evaluation.metrics import Floats
from ..methods.base import Method
from ..models.backbone import SMALL, Backbone
from ..training.config import RunConfig, make_config, read_config
from ..training.folder import RunFolder, load_state
from ..training.prepare import prepare_method


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run as it was after one of its sessions.

    Attributes:
        config: what was run.
        method: in evaluation mode and on the CPU.
        classes: the K classes seen by then, in column order.
        session: counts from 1.
        path: the run's folder.
        calibration: of the K classes, if the run set images aside for it.
    """

    config: RunConfig
    method: Method
    classes: tuple[str, ...]
    session: int
    path: Path
    calibration: Calibration | None = None

    @property
    def thresholds(self) -> Floats | None:
        """(K,) above which a score means that the class is present, if the method or the run found any."""
        return stored_thresholds(self.method.thresholds(), self.calibration)

    def session_of(self, column: int) -> int:
        """The session, from 1, in which the class of this column was learned."""
        return int(np.searchsorted(np.cumsum(self.method.tagger.sizes), column, side="right")) + 1


def open_run(path: Path, session: int | None = None) -> TrainedRun:
    """Load the model of a run; neither its data nor its pretrained weights need to exist any more.

    Arguments:
        path: the run's folder.
        session: the session after which to take it, from 1; None for the last one that is finished.

    Raises:
        UserError: it is no run folder, the session is not finished, or a file is damaged.
    """
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
    config = make_config(read_config(path / "config.yaml"), where=str(path / "config.yaml"))
    folder = RunFolder(path)
    finished = folder.finished_sessions()
    if not finished:
        raise UserError(f"run {path} has no finished session yet, so there is no model to load")
    number = finished if session is None else session
    if not 1 <= number <= finished:
        raise UserError(f"run {path}: got session {number}, expected 1 to {finished}, the sessions that are finished")
    tensors, values = load_state(folder.state_file(number))
    method, classes, calibration = _restore(config, State(tensors, values), folder.state_file(number))
    return TrainedRun(config, method, classes, number, path, calibration)


def read_images(run: TrainedRun, paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Image files decoded and squashed as for training, uint8 (N, size, size, 3).

    Raises:
        BadImage: a file cannot be decoded; it is a `UserError` that names the file.
    """
    store = DecodedPixels([str(path) for path in paths], run.config.settings.image_size)
    return store[np.arange(len(paths))]


def prepare_images(run: TrainedRun, pixels: NDArray[np.uint8]) -> Tensor:
    """Pixels uint8 (N, H, W, 3) of any one size as the run's model takes them, float32 (N, 3, size, size)."""
    squares = MemoryPixels(pixels, run.config.settings.image_size)[np.arange(len(pixels))]
    images = torch.from_numpy(squares).permute(0, 3, 1, 2).contiguous()
    backbone = run.method.tagger.backbone
    return normalise(images, backbone.mean, backbone.std)


@torch.inference_mode()
def predict(run: TrainedRun, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The scores of images uint8 (N, H, W, 3) for the run's classes, float32 (N, K) in 0..1."""
    size = run.config.settings.batch_size
    parts = [pixels[start : start + size] for start in range(0, len(pixels), size)]
    scores = [run.method.predict(prepare_images(run, part)).numpy() for part in parts]
    return np.concatenate([np.empty((0, len(run.classes)), np.float32), *scores])


def _restore(config: RunConfig, state: State, file: Path) -> tuple[Method, tuple[str, ...], Calibration | None]:
    # The state holds the weights, and a few images are not worth a program.
    plain = replace(config.settings, weights=None, compile=False, checkpointing=False)
    blank = replace(config, settings=plain)
    try:
        classes = tuple(str(name) for name in state.values["result"]["classes"])
        with torch.random.fork_rng(devices=[]):  # what is about to be overwritten starts at random
            method, _ = prepare_method(blank, len(classes))
            method.load_state(State(part_of(state.tensors, "method."), state.values["method"]))
        if sum(method.tagger.sizes) != len(classes):
            raise ValueError(f"heads for {sum(method.tagger.sizes)} classes, names for {len(classes)}")
        found = state.values.get("calibration")
        calibration = None if found is None else Calibration.from_values(found)
        if calibration is not None and len(calibration.thresholds) != len(classes):
            raise ValueError(f"calibration of {len(calibration.thresholds)} classes, names for {len(classes)}")
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"checkpoint {file} does not fit the run's config.yaml: {reason[:200]}") from error
    _take_normalisation(method.tagger.backbone, config.settings.weights)
    method.tagger.eval().requires_grad_(False)
    return method, classes, calibration


def _take_normalisation(backbone: Backbone, weights: str | None) -> None:
    """Tags of one architecture may differ in normalisation, which no checkpoint holds."""
    if weights is None or backbone.name == SMALL:
        return
    import timm

    name = f"{backbone.name.split('.')[0]}.{weights}"
    if name in timm.list_pretrained(f"{backbone.name.split('.')[0]}.*"):
        configuration: Any = timm.get_pretrained_cfg(name)
        backbone.mean, backbone.std = tuple(configuration.mean), tuple(configuration.std)
