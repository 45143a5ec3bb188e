"""The model of a run, loaded from its folder and ready to tag images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.errors import UserError
from ..core.state import State, part_of
from ..data.augmentation import normalise
from ..data.decoding import decode, resized, upright_rgb
from ..data.pixels import MemoryPixels
from ..evaluation.calibration import Calibration, stored_thresholds
from ..evaluation.metrics import Floats
from ..methods.base import Method
from ..models.backbone import SMALL, Backbone
from ..training.config import RunConfig, make_config, read_config
from ..training.folder import RunFolder, load_state
from ..training.prepare import prepare_method

Picture = str | Path | Image.Image | NDArray[np.uint8]  # a file, a PIL image, or pixels (H, W, 3)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """The model of a run as it was after one of its sessions.

    Attributes:
        config: the settings and options of the run.
        method: the trained method, in evaluation mode and on the CPU.
        classes: the K classes learned so far, in the order of the scores' columns.
        session: the session after which the model was saved, counted from 1.
        path: the folder of the run.
        calibration: the calibration of the K classes, if the run held images out for it.
    """

    config: RunConfig
    method: Method
    classes: tuple[str, ...]
    session: int
    path: Path
    calibration: Calibration | None = None

    @property
    def thresholds(self) -> Floats | None:
        """(K,) scores above which a class counts as present; None if neither the method nor the run has stored any."""
        return stored_thresholds(self.method.thresholds(), self.calibration)

    def session_of(self, column: int) -> int:
        """The session, counted from 1, in which the class of this column was learned."""
        return int(np.searchsorted(np.cumsum(self.method.tagger.sizes), column, side="right")) + 1

    @torch.inference_mode()
    def predict(self, images: Picture | Sequence[Picture]) -> NDArray[np.float32]:
        """Score images for all classes.

        Arguments:
            images: one image or several, each a file, a PIL image or pixels uint8 (H, W, 3) in RGB; also one array
                uint8 (N, H, W, 3).

        Returns:
            float32 (N, K) in 0..1, with the columns of `classes`.

        Raises:
            UserError: a file cannot be read, or an array is not an image.
        """
        listed, size = _as_list(images), self.config.settings.batch_size
        scores = [np.empty((0, len(self.classes)), np.float32)]
        for start in range(0, len(listed), size):
            pixels = np.stack([self._square(image) for image in listed[start : start + size]])
            scores.append(self.method.predict(self.prepare(pixels)).numpy())
        return np.concatenate(scores)

    def prepare(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Turn pixels uint8 (N, H, W, 3) into the model's input."""
        squares = MemoryPixels(pixels, self.config.settings.image_size)[np.arange(len(pixels))]
        images = torch.from_numpy(squares).permute(0, 3, 1, 2).contiguous()
        backbone = self.method.tagger.backbone
        return backbone.stem(normalise(images, backbone.mean, backbone.std))

    def _square(self, image: Picture) -> NDArray[np.uint8]:
        """One image resized as for training, uint8 (size, size, 3)."""
        size = self.config.settings.image_size
        if isinstance(image, str | Path):
            return decode(str(image), size, self.config.settings.megapixels)
        if isinstance(image, Image.Image):
            return resized(upright_rgb(image), size)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise UserError(f"got an array of {image.dtype} {image.shape}, expected an image of uint8 (H, W, 3)")
        return resized(Image.fromarray(image), size)


def open_run(path: Path, session: int | None = None) -> TrainedRun:
    """Load the model of a run; see `mlcil.load`."""
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
    """Decode image files and resize them as for training, uint8 (N, size, size, 3)."""
    settings = run.config.settings
    return np.stack([decode(str(path), settings.image_size, settings.megapixels) for path in paths])


def _as_list(images: Picture | Sequence[Picture]) -> Sequence[Picture]:
    if isinstance(images, str | Path | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        return [images] if images.ndim == 3 else list(images)
    return images


def _restore(config: RunConfig, state: State, file: Path) -> tuple[Method, tuple[str, ...], Calibration | None]:
    blank = replace(config, settings=replace(config.settings, weights=None))  # the state holds the weights
    try:
        classes = tuple(str(name) for name in state.values["result"]["classes"])
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn at random before they are overwritten
            method, _ = prepare_method(blank, len(classes))
            method.load_state(State(part_of(state.tensors, "method."), state.values["method"]))
        found = state.values.get("calibration")
        calibration = None if found is None else Calibration.from_values(found)
        # Scores under the wrong names would look right.
        if sum(method.tagger.sizes) != len(classes):
            raise ValueError(f"heads for {sum(method.tagger.sizes)} classes, names for {len(classes)}")
        if calibration is not None and len(calibration.thresholds) != len(classes):
            raise ValueError(f"calibration of {len(calibration.thresholds)} classes, names for {len(classes)}")
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"checkpoint {file} does not fit the run's config.yaml: {reason[:200]}") from error
    _take_normalisation(method.tagger.backbone, config.settings.weights)
    method.tagger.eval().requires_grad_(False)
    return method, classes, calibration


def _take_normalisation(backbone: Backbone, weights: str | None) -> None:
    """Use the normalisation of the pretrained weights: it may differ by timm tag, and no checkpoint holds it."""
    if weights is None or backbone.name == SMALL:
        return
    import timm

    name = f"{backbone.name.split('.')[0]}.{weights}"
    if name in timm.list_pretrained(f"{backbone.name.split('.')[0]}.*"):
        configuration: Any = timm.get_pretrained_cfg(name)
        backbone.mean, backbone.std = tuple(configuration.mean), tuple(configuration.std)
