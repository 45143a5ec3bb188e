"""First sessions that several runs have in common: trained by one of them, taken over by the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from .. import __version__
from ..core.config import identity
from ..core.locks import file_lock
from ..data.pixels import DECODING
from ..data.protocol import Session
from ..methods.base import Method, TrainingSet
from .config import RunSettings
from .folder import load_state, save_state

# What does not decide how a first session ends, or decides it through what is hashed besides.
_IRRELEVANT = {"method", "buffer", "protocol", "order", "epochs", "lr", "weights", "on_bad_image", "validation"}
# Of a module: its mode, hooks of a method, its parts, and how it is computed.
_MODES = {"training", "watched", "_frozen", "_layers", "_maps"}


class SharedBase:
    """The place of one first session in the folder of shared ones.

    Arguments:
        file: named by `base_name`.
        method: whose model is to be trained in that session, or was.

    Attributes:
        waited: seconds spent waiting for another run.
    """

    def __init__(self, file: Path, method: Method, fabric: Fabric) -> None:
        self.file, self.method, self.fabric = file, method, fabric
        self.waited = 0.0

    @contextmanager
    def claim(self, say: Any) -> Iterator[None]:
        """Hold the session, so that of runs which start together one trains and the others wait for it.

        A run of several processes does not wait: they would lose each other meanwhile.
        """
        if self.fabric.world_size > 1:
            yield
            return
        lock = self.file.with_suffix(".lock")
        with file_lock(
            lock, lambda: say("waiting for the first session, which another run is training")
        ) as self.waited:
            yield

    def take(self) -> dict[str, Any] | None:
        """Put the trained weights into the model, if they are there.

        Returns:
            What `give` was told, or None.
        """
        if not self.fabric.broadcast(self.file.exists()):  # all processes must agree
            return None
        tensors, values = load_state(self.file)
        self.method.tagger.load_state_dict(tensors)
        return values

    def give(self, values: dict[str, Any]) -> None:
        """Leave the trained weights for others, with values to go with them."""
        if not self.file.exists():
            save_state(self.file, self.method.tagger.state_dict(), values)


def base_name(method: Method, session: Session, training: TrainingSet, settings: RunSettings, fabric: Fabric) -> str:
    """A name for a first session, unlike that of any session which ends otherwise.

    It stands for the model the session starts from, to the bit, its images and labels, the settings of training,
    the seed and the versions of what computes it.

    Arguments:
        method: grown for the session and not yet trained; its first session is fine-tuning's.
        training: what the session trains on.
    """
    facts = {key: value for key, value in identity(settings).items() if key not in _IRRELEVANT}
    facts |= {"base_epochs": settings.base_epochs or settings.epochs, "missing": method.config.missing}
    facts |= {"classes": session.classes, "mlcil": __version__, "torch": str(torch.__version__)}
    facts |= {"processes": fabric.world_size, "device": fabric.device.type}
    facts |= {"decoding": DECODING}
    # What a module was made with and does not keep in its state, such as the number of attention heads.
    facts |= {"modules": {name: _made_with(module) for name, module in method.tagger.named_modules()}}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(training.indices[: training.shown].tobytes())
    digest.update(training.labels[: training.shown].tobytes())
    trained = {name for name, parameter in method.tagger.named_parameters() if parameter.requires_grad}
    for name, value in method.tagger.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {name in trained}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _made_with(module: nn.Module) -> dict[str, str]:
    plain = {key: value for key, value in vars(module).items() if isinstance(value, int | float | str | tuple | list)}
    return {"type": type(module).__qualname__} | {key: repr(value) for key, value in plain.items() if key not in _MODES}
