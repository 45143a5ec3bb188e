"""Loss terms summed over an epoch, in all processes together."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from lightning_fabric import Fabric
from torch import Tensor


class LossMeter:
    """Sums each loss term over the images of an epoch without waiting for the device.

    Arguments:
        totals: sums of all processes so far, where an interrupted epoch goes on.
    """

    def __init__(self, fabric: Fabric, totals: Mapping[str, float]) -> None:
        self.fabric = fabric
        is_first = fabric.global_rank == 0  # the saved totals are those of all processes: one of them goes on with them
        self._sums = {
            name: torch.tensor(value if is_first else 0.0, device=fabric.device) for name, value in totals.items()
        }

    def add(self, terms: Mapping[str, Tensor], images: int) -> None:
        """Count loss terms, each a mean over `images` images."""
        for name, term in terms.items():
            counted = term.detach() * images
            self._sums[name] = self._sums[name] + counted if name in self._sums else counted

    def totals(self) -> dict[str, float]:
        """Each term summed over the images of all processes; this waits for the device."""
        # Reducing changes its argument, and the sums are still needed.
        reduced = {
            name: self.fabric.all_reduce(value.clone(), reduce_op="sum") for name, value in sorted(self._sums.items())
        }
        return {name: float(total) for name, total in reduced.items()}  # type: ignore[arg-type]

    def not_finite(self) -> list[str]:
        """The terms whose sum is NaN or infinite."""
        return [name for name, value in self.totals().items() if not math.isfinite(value)]
