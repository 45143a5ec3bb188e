"""The logits that the model gave an exemplar when it was stored (DER, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor


class StoredLogits:
    """Logits by image, each as wide as the classes that existed when they were stored."""

    saved = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}  # each (w,), float32 on the CPU

    def __contains__(self, index: int) -> bool:
        return index in self._rows

    def put(self, indices: Tensor, logits: Tensor) -> None:
        """Store or replace the logits (n, K) of the images (n,)."""
        for index, row in zip(indices.tolist(), logits.detach().float().cpu(), strict=True):
            self._rows[index] = row.clone()

    def get(self, indices: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """The logits (n, classes) stored of the images (n,), zeros where there are none, and bool: where there are."""
        values = torch.zeros(len(indices), classes)
        known = torch.zeros(len(indices), classes, dtype=torch.bool)
        for place, index in enumerate(indices.tolist()):
            row = self._rows.get(index)
            if row is not None:
                values[place, : len(row)], known[place, : len(row)] = row, True
        return values, known

    def keep(self, indices: list[int]) -> None:
        """Forget all other images."""
        self._rows = {index: self._rows[index] for index in indices if index in self._rows}
