"""First sessions that several runs have in common: trained by one of them, taken over by the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import __version__
from ..core.checksums import DamagedFileError, set_aside_damaged
from ..core.config import identity
from ..core.errors import UserError
from ..core.locks import file_lock
from ..data.pixels import DECODING
from ..data.protocol import Session
from ..methods.base import Method, TrainingSet
from .config import RunSettings
from .inference import in_all, on_first
from .states import load_state, save_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Settings that do not change how a first session ends, or change it only through what is hashed besides.
_OF_LATER_SESSIONS = {"buffer", "epochs", "lr", "norm_statistics"}
_IRRELEVANT = _OF_LATER_SESSIONS | {"method", "protocol", "order", "weights", "on_bad_image", "validation"}


class SharedBase:
    """The place of one first session in the folder of shared ones.

    Arguments:
        file: named by `base_name`.
        method: the method whose model is trained in that session.
    """

    def __init__(self, file: Path, method: Method, fabric: Fabric) -> None:
        self.file, self.method, self.fabric = file, method, fabric

    @contextmanager
    def claim(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the session, so that of runs which start together one trains and the others wait for it.

        A run of several processes does not wait: its processes would lose each other meanwhile.
        """
        if self.fabric.world_size > 1:
            yield
            return
        lock = self.file.with_suffix(".lock")
        with file_lock(lock, lambda: say("waiting for the first session, which another run is training")):
            yield

    def take(self, say: Callable[[str], None]) -> dict[str, Any] | None:
        """Put the trained weights into the model if another run has left them; returns what it left beside them.

        Damaged ones are set aside, and this run trains them again.
        """
        found = in_all(self.fabric, lambda: self._found(say) if self.fabric.global_rank == 0 else None)
        if not self.fabric.broadcast(found is not None):  # all processes must agree
            return None
        tensors, values = in_all(self.fabric, lambda: found or load_state(self.file))
        self.method.tagger.load_state_dict(tensors)
        return values

    def _found(self, say: Callable[[str], None]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        try:
            return load_state(self.file) if self.file.exists() else None
        except DamagedFileError as error:
            try:
                say(set_aside_damaged(error, "it is made again"))
            except UserError as refusal:  # in a folder where this run may only read
                say(f"{refusal}; this run makes its own")
            return None

    def give(self, values: Callable[[], dict[str, Any]]) -> None:
        """Leave the trained weights for others, with plain values beside them."""

        def save() -> None:
            if not self.file.exists():
                save_state(self.file, self.method.tagger.state_dict(), values())

        on_first(self.fabric, save)


def base_name(
    method: Method, session: Session, training: TrainingSet, settings: RunSettings, fabric: Fabric, data: str
) -> str:
    """A name for a first session that no session has which would end differently.

    It stands for the model that the session starts from, to the bit, its images and labels, the settings of training,
    the seed, and the versions of what computes it.

    Arguments:
        method: grown for the session and not yet trained; its first session is that of fine-tuning.
        training: what the session trains on.
        data: a digest of the training images in their order.
    """
    tagger = method.tagger
    facts = {key: value for key, value in identity(settings).items() if key not in _IRRELEVANT}
    facts |= {"base_epochs": settings.epochs_of(1), "missing": method.config.missing, "classes": session.classes}
    facts |= {"mlcil": __version__, "torch": str(torch.__version__), "decoding": DECODING, "images": data}
    facts |= {"keeps_statistics": settings.keeps_statistics(1)}
    facts |= {"processes": fabric.world_size, "device": fabric.device.type}
    # The modules with their sizes, and what their weights do not show, such as the number of attention heads.
    facts |= {"modules": repr(tagger), "attention": repr(tagger.attention_shape)}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(training.indices[: training.shown].tobytes())
    digest.update(training.labels[: training.shown].tobytes())
    trained = {name for name, parameter in tagger.named_parameters() if parameter.requires_grad}
    for name, value in tagger.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {name in trained}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
