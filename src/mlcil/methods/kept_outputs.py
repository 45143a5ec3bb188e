"""What the old model gives for each image and view of a session: asked once, and kept in memory for all epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.features import TOGETHER, FeatureFeed
from ..data.loading import Batch
from ..models.tagger import Output, TaggerNet

MOST_BYTES = 1_000_000_000  # that the kept outputs of a session may take


@dataclass(frozen=True)
class KeptOutputs:
    """Outputs by image and view.

    Attributes:
        rows: (N,) of the training set, ascending.
        tables: logits, pooled features and embeddings, each (N, views, ...), on the host.
    """

    rows: NDArray[np.int64]
    tables: tuple[Tensor, Tensor, Tensor]

    def of(self, batch: Batch) -> Output:
        """The output for a batch of a `FeatureFeed`, on the batch's device."""
        places = torch.from_numpy(np.searchsorted(self.rows, batch.indices.numpy()))
        logits, pooled, embeddings = (
            table[places, batch.views].to(batch.images.device, non_blocking=True) for table in self.tables
        )
        return Output(logits, pooled, embeddings)


@torch.no_grad()  # not in inference mode: losses compute gradients beside these values
def keep_outputs(
    teacher: TaggerNet, feed: FeatureFeed, rows: NDArray[np.int64], show: Callable[[int, int], None]
) -> KeptOutputs | None:
    """Ask a frozen model about every view of some images; None if the answers are too large to keep.

    Always as many images are computed at once, so that an answer depends on its image alone: a run that goes on in the
    middle of a session asks again, and gets the same bits.

    Arguments:
        teacher: frozen and in evaluation mode.
        rows: (n,) of the feed; a row may occur twice.
        show: called with how many views are done, and how many there are.
    """
    rows = np.unique(rows)
    sample = teacher(feed.pick(rows[:1], np.zeros(1, np.int64)))
    size = sum(one.numel() * one.element_size() for one in sample[:3]) * len(rows) * feed.views
    if sample.stages or size > MOST_BYTES:  # the maps of stages are larger than the features themselves
        return None
    logits, pooled, embeddings = (
        torch.empty(len(rows), feed.views, *one.shape[1:], dtype=one.dtype) for one in sample[:3]
    )
    kept = KeptOutputs(rows, (logits, pooled, embeddings))
    for view in range(feed.views):
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            whole = np.resize(part, TOGETHER)  # the last ones are repeated until there are as many
            made = teacher(feed.pick(whole, np.full(TOGETHER, view)))
            for table, values in zip(kept.tables, made[:3], strict=True):
                table[start : start + len(part), view] = values[: len(part)].cpu()
            show(view * len(rows) + start + len(part), feed.views * len(rows))
    return kept
