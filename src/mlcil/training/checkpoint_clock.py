"""When to save a checkpoint within a session."""

from __future__ import annotations

import time

from lightning_fabric import Fabric

SHORT = 10.0  # seconds; epochs shorter than this are cheaper to repeat than to checkpoint
ASK_EVERY = 50  # steps between which several processes agree whether to save: asking takes a moment


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

    def seconds(self) -> float:
        """Training time of the session so far, that before an interruption included."""
        return time.monotonic() - self._began

    def is_due(self, step: int) -> bool:
        """Whether to save after this many steps of an epoch."""
        may_ask = self.fabric.world_size == 1 or step % ASK_EVERY == 0
        return may_ask and self._agreed(self._since_saved() >= self.every)

    def is_due_after_epoch(self) -> bool:
        """Whether to save at the end of an epoch."""
        return self._agreed(self._since_saved() >= min(SHORT, self.every))

    def saved(self) -> None:
        """A checkpoint was written."""
        self._saved_at = time.monotonic()

    def _since_saved(self) -> float:
        return time.monotonic() - self._saved_at

    def _agreed(self, due: bool) -> bool:
        """What the first process says: all of them must save together."""
        return due if self.fabric.world_size == 1 else bool(self.fabric.broadcast(due))
