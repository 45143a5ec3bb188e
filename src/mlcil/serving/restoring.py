"""A trained method from what was saved of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core.state import State
from ..evaluation.calibration import Calibration
from ..methods.base import Method
from ..training.config import RunConfig
from ..training.prepare import prepare_method


def restored(
    config: RunConfig,
    state: State,
    classes: tuple[str, ...],
    calibration: Calibration | None,
    learns: bool = False,
) -> Method:
    """A trained method from its state.

    Arguments:
        learns: whether it is to learn more; otherwise it is in evaluation mode, for good.

    Raises:
        ValueError, KeyError, ...: the state does not fit.
    """
    blank = replace(config, settings=replace(config.settings, weights=None))  # the state holds the weights
    # Initial weights are drawn at random before they are overwritten, and a caller may have turned gradients off.
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        method, _ = prepare_method(blank, len(classes))
        method.load_state(state)
    # Scores under the wrong names would look right.
    if sum(method.tagger.sizes) != len(classes):
        raise ValueError(f"heads for {sum(method.tagger.sizes)} classes, names for {len(classes)}")
    if calibration is not None and len(calibration.thresholds) != len(classes):
        raise ValueError(f"calibration of {len(calibration.thresholds)} classes, names for {len(classes)}")
    if not learns:
        method.tagger.eval().requires_grad_(False)
    return method
