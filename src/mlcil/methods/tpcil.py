"""TPCIL: the neighbourhoods among exemplars stay as they were, wherever the features move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.config import option, with_default
from ..core.errors import UserError
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.topology import topology_loss
from ..memory.buffer import Budget, ExemplarBuffer, Memory
from ..memory.topology import grow_graph
from ..models.backbone import Backbone
from .base import Inference, Task
from .rehearsal import Rehearsal, RehearsalConfig


@dataclass(frozen=True)
class TPCILConfig(RehearsalConfig):
    """The exemplars are the vertices of the graph."""

    selection: str = with_default(RehearsalConfig, "selection", "graph", choices=("graph", "herding", "random"))
    replay: str = with_default(RehearsalConfig, "replay", "paired", choices=("paired",))
    weight: float = option(5.0, "weight of the topology-preserving loss", low=0, paper="TPCIL, section 3.3")
    pairs: str = option(
        "all",
        "which pairs of a draw to correlate: all, or those joined by the Hebbian rule, which are few in a small draw",
        choices=("all", "hebbian"),
        paper="TPCIL, section 3.2",
    )


class TPCIL(Rehearsal):
    """Replay, and the correlation of exemplar similarities with those before the session."""

    name = "tpcil"
    summary = "keeps the similarity graph among exemplars as it was"
    family = "rehearsal"
    reference = "Tao et al., Topology-Preserving Class-Incremental Learning, ECCV 2020"
    buffer_use = "required"
    saved = ("edges", "anchors")
    Config = TPCILConfig
    config: TPCILConfig
    base_is_finetuning = True
    finetuning_options = {"weight": 0.0}

    def __init__(self, config: TPCILConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        if config.pairs == "hebbian" and config.selection != "graph":
            raise UserError(f"tpcil: pairs hebbian needs selection graph, got {config.selection}")
        self.edges: list[NDArray[np.int64]] = []  # per class, (E, 2) places in the class's exemplars
        super().__init__(config, backbone, task, budget)
        self._joined: NDArray[np.bool_] | None = None  # (n, n) for the session, once it is asked for
        # (n, C) features of the exemplars when the last session ended
        self.anchors: NDArray[np.float32] = np.empty((0, 0), np.float32)

    def make_buffer(self, budget: Budget) -> Memory:
        """Exemplars that are the vertices of a graph, unless `selection` says otherwise."""
        if self.config.selection != "graph":
            return super().make_buffer(budget)
        return ExemplarBuffer(budget, self.config.exemplar_labels == "stored_onwards", self._vertices)

    def _vertices(self, points: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        graph = grow_graph(points, count, rng)
        self.edges.append(graph.edges)
        return graph.members

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification of batch and draw together, and the topology of the draw."""
        whole = batch.joined()
        now = self.student(whole.images)
        terms = {"classification": self.classification(now.logits, whole.labels)}
        if batch.replay and self.config.weight:
            (drawn,) = batch.replay
            rows = self._rows(drawn.indices)
            anchors = torch.from_numpy(self.anchors[rows]).to(whole.images.device, non_blocking=True)
            change = topology_loss(now.pooled[len(batch.images) :], anchors, self._pairs(rows, anchors.device))
            terms["topology"] = self.config.weight * change
        return terms

    def _rows(self, indices: Tensor) -> NDArray[np.int64]:
        order = np.argsort(self.buffer.indices)
        return order[np.searchsorted(self.buffer.indices, indices.numpy(), sorter=order)]

    def _pairs(self, rows: NDArray[np.int64], device: torch.device) -> Tensor | None:
        if self.config.pairs == "all" or not isinstance(self.buffer, ExemplarBuffer):
            return None
        if self._joined is None:
            self._joined = self._adjacency(self.buffer)
        return torch.from_numpy(self._joined[np.ix_(rows, rows)]).to(device, non_blocking=True)

    def _adjacency(self, buffer: ExemplarBuffer) -> NDArray[np.bool_]:
        """(n, n) which exemplars an edge joins."""
        joined = np.zeros((len(buffer), len(buffer)), bool)
        for exemplars, edges in zip(buffer.chosen, self.edges, strict=True):
            kept = edges[(edges < len(exemplars)).all(axis=1)]  # a smaller share drops the last exemplars
            ends = self._rows(torch.from_numpy(exemplars[kept]).flatten()).reshape(-1, 2)
            joined[ends[:, 0], ends[:, 1]] = joined[ends[:, 1], ends[:, 0]] = True
        return joined

    def before_session(self, session: Session, infer: Inference) -> None:
        """Forget the joined pairs, because exemplars may have changed."""
        super().before_session(session, infer)
        self._joined = None

    def after_session(self, session: Session, infer: Inference) -> None:
        """Add the new classes' vertices, and compute all exemplars' features with the current model."""
        super().after_session(session, infer)
        if len(self.buffer):
            self.anchors = infer(self.pooled, self.buffer.indices)
