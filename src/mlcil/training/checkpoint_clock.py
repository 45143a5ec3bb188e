"""When to save a checkpoint within a session, and to end after that if a signal has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ..core import interruption

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SHORT = 10.0  # seconds; epochs shorter than this are cheaper to repeat than to checkpoint
ASK_EVERY = 10  # steps between which several processes agree whether to save: asking takes a moment
_SAVE = 1  # what a process wants: to save, or the number of a signal, which is greater, to save and end


class CheckpointClock:
    """Measures a session's training time and says when the next checkpoint is due.

    Arguments:
        every: seconds between checkpoints within an epoch.
        spent: seconds that the session's training took before it was interrupted.
    """

    def __init__(self, every: float, spent: float, fabric: Fabric) -> None:
        self.every, self.fabric = every, fabric
        now = time.monotonic()
        self._began, self._saved_at = now - spent, now
        self._signal = 0  # to end with after the checkpoint that is due, 0 for none

    def seconds(self) -> float:
        """Training time of the session so far, that before an interruption included."""
        return time.monotonic() - self._began

    def is_due(self, step: int) -> bool:
        """Whether to save after this many steps of an epoch."""
        may_ask = self.fabric.world_size == 1 or step % ASK_EVERY == 0
        return may_ask and self._agreed(self._since_saved() >= self.every)

    def is_due_after_epoch(self) -> bool:
        """Whether to save at the end of an epoch; the last one's serves while the session's images are looked at."""
        return self._agreed(self._since_saved() >= min(SHORT, self.every))

    def saved(self) -> None:
        """A checkpoint was written; if it was due to a signal, the process ends."""
        self._saved_at = time.monotonic()
        if self._signal:
            interruption.end(self._signal)

    def _since_saved(self) -> float:
        return time.monotonic() - self._saved_at

    def _agreed(self, due: bool) -> bool:
        """Whether any process wants to save, or has got a signal: all of them must save, and end, together."""
        wish = interruption.waiting() or _SAVE * due
        if self.fabric.world_size > 1:
            most = self.fabric.all_reduce(torch.tensor(wish, device=self.fabric.device), reduce_op="max")
            wish = int(most)  # type: ignore[arg-type]
        self._signal = wish if wish > _SAVE else 0
        return wish > 0
