"""Runs small enough for tests: a few canvases of digits, a small net, a handful of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from mlcil.testing import _outcome as outcome
from mlcil.training.states import load_session

__all__ = ["KRT", "SETTINGS", "final_state", "outcome", "settings"]

SETTINGS: dict[str, Any] = {
    "data": "digits:train=48,test=40,size=16",
    "protocol": "0,1,2|3,4|5,6",
    "backbone": "small_conv",
    "image_size": 16,
    "epochs": 2,
    "batch_size": 8,
    "base_lr": 1e-3,
    "lr": 1e-3,
    "augment": "flip",
    "threads": 1,
}
KRT = {"width": 16, "heads": 4, "labels_per_image": 2.5}


def settings(method: str, **changes: Any) -> dict[str, Any]:
    """The settings of a tiny run; keyword arguments of either kind win."""
    return SETTINGS | {"method": method, "options": KRT if method == "krt" else {}} | changes


def final_state(folder: Path) -> dict[str, Tensor]:
    """The tensors after the last session."""
    return load_session(sorted(folder.glob("session-*/state.safetensors"))[-1])[0]
