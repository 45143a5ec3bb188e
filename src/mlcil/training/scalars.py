"""TensorBoard events, for those who asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import UserError


class ScalarLog:
    """Writes scalars to TensorBoard.

    Arguments:
        folder: where to; None for nowhere.
    """

    def __init__(self, folder: Path | None) -> None:
        self._writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError(
                    "tensorboard is not installed; install mlcil[tensorboard] or leave the option out"
                ) from None
            self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, prefix: str, values: Mapping[str, float], step: int) -> None:
        """Write named values at a step."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{prefix}/{name}", value, step)
            self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
