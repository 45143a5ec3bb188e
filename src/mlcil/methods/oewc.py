"""Online elastic weight consolidation: parameters that mattered to old sessions are held in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..core.config import option
from ..core.randomness import generator_from_torch
from ..data.loading import Batch
from ..data.protocol import Session
from ..losses.ewc import ewc_penalty
from ..memory.buffer import Budget
from ..models.backbone import Backbone
from .base import Inference, Method, MethodConfig, Task, TrainingSet


@dataclass(frozen=True)
class OEWCConfig(MethodConfig):
    """The right weight depends on the net and the Fisher's scale: look for a penalty of 0.01 to 1 of the loss."""

    weight: float = option(
        100.0, "lambda, weight of the penalty, without a factor 1/2", low=0, paper="Progress & Compress, eq. 9"
    )
    gamma: float = option(
        1.0, "share of the old Fisher information that is kept", low=0, high=1, paper="Progress & Compress, eq. 9"
    )
    fisher: str = option(
        "empirical",
        "use gradients for the given labels, or for labels drawn from the model",
        choices=("empirical", "true"),
    )
    fisher_images: int = option(2000, "maximum number of a session's images to estimate the Fisher on", low=1)


class OEWC(Method):
    """A quadratic penalty on leaving the last session's parameters, weighted by their Fisher information."""

    name = "oewc"
    summary = "holds parameters that mattered before, by a running Fisher information"
    family = "regularisation"
    reference = "Schwarz et al., Progress & Compress, ICML 2018"
    saved = ("fisher", "anchors")
    only_for_learning = ("fisher", "anchors")
    Config = OEWCConfig
    config: OEWCConfig
    base_is_finetuning = True
    finetuning_options = {"weight": 0.0}

    def __init__(self, config: OEWCConfig, backbone: Backbone, task: Task, budget: Budget) -> None:
        super().__init__(config, backbone, task, budget)
        self.fisher: dict[str, Tensor] = {}  # by parameter, running over the sessions
        self.anchors: dict[str, Tensor] = {}  # the parameters when the last session ended

    def freeze(self) -> None:
        """Bring what was saved to the model's device, which may be another one than before."""
        device = next(self.tagger.parameters()).device
        self.fisher = {name: value.to(device) for name, value in self.fisher.items()}
        self.anchors = {name: value.to(device) for name, value in self.anchors.items()}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Classification, and the penalty from the second session on."""
        terms = super().losses(batch)
        if self.fisher and self.config.weight:
            terms["penalty"] = self.config.weight * ewc_penalty(self._parameters(), self.anchors, self.fisher)
        return terms

    def after_session(self, session: Session, infer: Inference) -> None:
        """Add the session's Fisher information to the part of the old that is kept."""
        super().after_session(session, infer)
        count = min(self.config.fisher_images, len(session.indices))
        rows = np.sort(generator_from_torch().choice(len(session.indices), count, replace=False))
        squares = infer.total(
            lambda batch: self._squared_gradients(batch, session.first),
            TrainingSet(session.indices[rows], session.labels[rows]),
        )
        parameters = self._parameters()
        sizes = [one.numel() for one in parameters.values()]
        for (name, parameter), part in zip(
            parameters.items(), torch.split_with_sizes(squares / count, sizes), strict=True
        ):
            old = self.fisher.get(name)
            now = part.view_as(parameter)
            self.fisher[name] = now.clone() if old is None else self.config.gamma * old + now
            self.anchors[name] = parameter.detach().clone()

    def _parameters(self) -> dict[str, Tensor]:
        return {name: one for name, one in self.tagger.named_parameters() if one.requires_grad}

    def _squared_gradients(self, batch: Batch, first: int) -> Tensor:
        """The squared gradients of each image's log-likelihood of the new classes, summed over images, (P,)."""
        parameters = list(self._parameters().values())
        total = torch.zeros(sum(one.numel() for one in parameters), device=batch.images.device)
        for image, labels in zip(batch.images, batch.labels, strict=True):
            logits = self.tagger(image[None]).logits[0, first:].float()
            target = labels[first:].clamp(min=0).float()
            if self.config.fisher == "true":
                target = torch.bernoulli(torch.sigmoid(logits.detach()))
            # Plain cross-entropy, because the asymmetric loss is not a likelihood.
            terms = binary_cross_entropy_with_logits(logits, target, reduction="none")
            likelihood = terms[labels[first:] >= 0].sum()
            gradients = torch.autograd.grad(likelihood, parameters)
            total += torch.cat([one.flatten() for one in gradients]).square()
        return total
