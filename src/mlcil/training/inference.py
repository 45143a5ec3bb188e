"""What all processes of a run do together: inference on many images, and leaving a task to the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.errors import UserError
from ..core.pools import Pool
from ..core.progress import Show
from ..data.features import FeatureFeed, Feed, Outcome, Payload, ShardWork, over_shards
from ..data.loading import Batch, shard
from ..methods.base import TrainingSet

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


def on_first(fabric: Fabric, function: Callable[[], None]) -> None:
    """Let the first process do something; if it fails by a user's mistake, all of them do.

    A process that ended alone would leave the others waiting for ever.
    """
    problem = None
    if fabric.global_rank == 0:
        try:
            function()
        except UserError as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem:
        raise UserError(problem)


def in_all(fabric: Fabric, function: Callable[[], T]) -> T:
    """Let every process do something; if it fails in one of them by a user's mistake, all of them raise the same."""
    problem, result = None, None
    try:
        result = function()
    except UserError as error:
        problem = str(error)
    for rank in range(fabric.world_size):
        if text := fabric.broadcast(problem, src=rank):
            raise UserError(text)
    return result  # type: ignore[return-value]


def infer(
    function: Callable[[Tensor], Tensor],
    rows: NDArray[np.int64],
    model: nn.Module,
    fabric: Fabric,
    loader: Feed,
    batch_size: int,
    show: Show = lambda done, total: None,
) -> NDArray[np.float32]:
    """Compute `function` on images, each exactly once.

    Arguments:
        function: (B, 3, H, W) -> (B, ...).
        rows: int64 (n,), rows of the loader's store.
        model: put into evaluation mode meanwhile.
        show: called after each batch.

    Returns:
        float32 (n, ...), in the order of `rows`, the same in every process.
    """
    was_training = model.training
    model.eval()
    mine = shard(rows, fabric.global_rank, fabric.world_size)
    places = np.arange(len(mine), dtype=np.int64)
    parts = [places[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    no_labels = np.empty((len(mine), 0), np.int8)
    values: list[Tensor] = []
    with torch.inference_mode(), fabric.autocast():
        for batch in loader.batches(parts, mine, no_labels, None):
            values.append(function(batch.images.to(fabric.device)).float())
            if len(values) > 1:  # one behind, so that the device is never without work
                values[-2] = values[-2].cpu()
            show(min(len(values) * batch_size * fabric.world_size, len(rows)), len(rows))
    model.train(was_training)
    return _gather([one.cpu() for one in values], len(rows), fabric)


class TrainingInference:
    """Computing on training images for a method; see `methods.base.Inference`.

    Arguments:
        show: from what is done in words to what shows how far it is.
        pool: further processes for what can be done in shards, if there are any.
    """

    def __init__(
        self,
        model: nn.Module,
        fabric: Fabric,
        loader: Feed,
        batch_size: int,
        show: Callable[[str], Show] = lambda what: lambda done, total: None,
        pool: Callable[[], Pool | None] = lambda: None,
    ) -> None:
        self.model, self.fabric, self.loader, self.batch_size = model, fabric, loader, batch_size
        self._show, self._pool = show, pool

    def __call__(self, function: Callable[[Tensor], Tensor], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The values of a function of images (B, 3, H, W) -> (B, ...) on rows (n,), (n, ...)."""
        show = self._show("going over training images")
        return infer(function, rows, self.model, self.fabric, self.loader, self.batch_size, show)

    def total(self, function: Callable[[Batch], Tensor], chosen: TrainingSet) -> Tensor:
        """The sum over batches, of all processes, of a function of a batch that may use gradients."""
        was_training = self.model.training
        self.model.eval()
        places = shard(np.arange(len(chosen.indices)), self.fabric.global_rank, self.fabric.world_size)
        parts = [places[start : start + self.batch_size] for start in range(0, len(places), self.batch_size)]
        # A process without images takes one and does not count it: it has to know the shape.
        weight, parts = (1.0, parts) if parts else (0.0, [np.zeros(1, np.int64)])
        total: Any = 0.0
        show = self._show("going over training images")
        for number, batch in enumerate(self.loader.batches(parts, chosen.indices, chosen.labels, None), start=1):
            total = total + weight * function(batch.to(self.fabric.device)).detach()
            show(min(number * self.batch_size, len(places)), len(places))
        self.model.train(was_training)
        return self.fabric.all_reduce(total, reduce_op="sum")  # type: ignore[return-value]

    def spread(
        self, work: ShardWork[Payload, Outcome], shards: Sequence[NDArray[np.int64]], payloads: Sequence[Payload]
    ) -> Iterator[Outcome] | None:
        """Let other processes work on the kept features of shards; see `methods.base.Inference`."""
        if not isinstance(self.loader, FeatureFeed) or self.fabric.world_size > 1 or (pool := self._pool()) is None:
            return None
        return over_shards(self.loader.features, pool, work, shards, payloads)


def gather_rows(rows: Tensor, fabric: Fabric) -> Tensor:
    """(n, ...) of each process, n may differ -> those of all processes one after another, in every process."""
    if fabric.world_size == 1:
        return rows
    counts = fabric.all_gather(torch.tensor(len(rows), device=rows.device)).tolist()  # type: ignore[union-attr]
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered: Any = fabric.all_gather(padded)  # (world, most, ...)
    return torch.cat([one[:count] for one, count in zip(gathered, counts, strict=True)])


def _gather(values: list[Tensor], count: int, fabric: Fabric) -> NDArray[np.float32]:
    if fabric.world_size == 1:
        return torch.cat(values).numpy()
    mine = torch.cat(values) if values else None
    # The first process has the most images, so it knows the shape.
    shape: tuple[int, ...] = fabric.broadcast(() if mine is None else tuple(mine.shape[1:]))
    most = -(-count // fabric.world_size)
    padded = torch.zeros(most, *shape)
    if mine is not None:
        padded[: len(mine)] = mine
    gathered: Any = fabric.all_gather(padded.to(fabric.device))  # (world, most, ...)
    # Row i went to process i mod world, so columns first gives the order back.
    return gathered.cpu().transpose(0, 1).flatten(0, 1)[:count].numpy()  # type: ignore[no-any-return]
