"""Loss terms summed over an epoch, in all processes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class NotFinite(NamedTuple):
    """The first step of an epoch, from 0, whose loss is NaN or infinite, and the terms that are."""

    step: int
    terms: list[str]


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
        self._unseen: dict[int, dict[str, Tensor]] = {}  # the sums after each step since the last look

    def add(self, terms: Mapping[str, Tensor], images: int, step: int) -> None:
        """Count loss terms, each a mean over `images` images of a step."""
        for name, term in terms.items():
            counted = term.detach() * images
            self._sums[name] = self._sums[name] + counted if name in self._sums else counted
        self._unseen[step] = dict(self._sums)

    def totals(self) -> dict[str, float]:
        """Each term summed over the images of all processes; this waits for the device."""
        # Reducing changes its argument, and the sums are still needed.
        reduced = {
            name: self.fabric.all_reduce(value.clone(), reduce_op="sum") for name, value in sorted(self._sums.items())
        }
        return {name: float(total) for name, total in reduced.items()}  # type: ignore[arg-type]

    def look(self) -> NotFinite | None:
        """Where a term was first not finite, in any process, since the last look; this waits for the device once."""
        steps, names, zero = list(self._unseen), sorted(self._sums), torch.zeros((), device=self.fabric.device)
        rows = [torch.stack([sums.get(name, zero) for name in names]) for sums in self._unseen.values()]
        self._unseen.clear()
        if not rows:
            return None
        # Once a sum is not finite it stays so: the first such row is the step that made it.
        bad = ~torch.stack(rows).isfinite()  # (steps, terms)
        count = torch.as_tensor(self.fabric.all_reduce(bad.float(), reduce_op="sum")).tolist()
        for step, row in zip(steps, count, strict=True):
            if any(row):
                return NotFinite(step, [name for name, found in zip(names, row, strict=True) if found])
        return None
