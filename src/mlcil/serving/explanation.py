"""What a trained model sees in an image: the evidence for each tag, and where each session's token attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import UserError
from ..models.analytic import AnalyticTagger
from ..models.tagger import TaggerNet
from .tagger import Tagger

MOST = 4  # tags that fit in one row of panels


class Tag(NamedTuple):
    """A tag that the model gives to an image.

    Attributes:
        name: the class.
        score: its probability.
        session: the session in which it was learned, counted from 1.
        map: float32 (h, w), at least 0: the evidence for the tag at each position of the feature map.
    """

    name: str
    score: float
    session: int
    map: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """The tags of an image, and the evidence for them.

    Attributes:
        pixels: uint8 (H, W, 3), the image.
        tags: in the order of their scores, the highest first.
        attention: float32 (t, h, w), share of each session's attention at each position, averaged over heads;
            (0, h, w) for a model without cross-attention.
        by_head: float32 (t, heads), share of the attention that falls on the image rather than on tokens.
    """

    pixels: NDArray[np.uint8]
    tags: tuple[Tag, ...]
    attention: NDArray[np.float32]
    by_head: NDArray[np.float32]

    @property
    def masses(self) -> NDArray[np.float32]:
        """(t,), share of each session's attention that falls on the image."""
        shares: NDArray[np.float32] = self.attention.sum(axis=(1, 2))
        return shares


def class_activation(tagger: TaggerNet, features: Tensor) -> Tensor:
    """Class activation maps, (B, C, h, w) -> (B, K, h, w): their mean over positions plus the bias is the logit."""
    weight = torch.cat([head.get_parameter("weight") for head in tagger.heads])  # (K, C)
    return torch.einsum("bchw,kc->bkhw", features, weight)


def relevance(tagger: TaggerNet, features: Tensor, columns: Sequence[int]) -> Tensor:
    """The evidence for some classes in an image: attention weights times the gradient of the class's logit.

    It is the positive part of the product, summed over heads (after Chefer et al., ICCV 2021). The gradient treats the
    weights as constants, so it shows what the value of a patch contributes, not what attracts the attention.

    Arguments:
        features: (1, C, h, w), the feature map of one image.
        columns: the n classes, as columns of the scores.

    Returns:
        (n, h, w), at least 0.
    """
    attention: Any = tagger.attention
    weights = attention.weights(features).detach().requires_grad_()  # (t, 1, heads, h * w + 1 or 2)
    with torch.enable_grad():
        embeddings = attention.embed(features, weights)
        logits = torch.cat([head(one) for head, one in zip(tagger.heads, embeddings, strict=True)], dim=1)[0]
        gradients = [torch.autograd.grad(logits[column], weights, retain_graph=True)[0] for column in columns]
    height, width = features.shape[-2:]
    # A logit depends only on the weights of its own session, so the sum over sessions has one non-zero term.
    evidence = torch.stack([(one * weights.detach()).clamp(min=0).sum(dim=(0, 1, 2)) for one in gradients])
    return evidence[:, : height * width].reshape(-1, height, width)  # without the tokens


def explain(run: Tagger, pixels: NDArray[np.uint8], threshold: float | None = None, most: int = MOST) -> Explanation:
    """Tag an image and find the evidence for each tag.

    The map of a tag is its `relevance` for a model with cross-attention, the positive part of its `class_activation`
    for linear heads, and the positive part of its score window by window for heads solved in closed form.

    Arguments:
        pixels: uint8 (H, W, 3), of any size.
        threshold: the lowest score of a tag; None for the thresholds stored with the model, or 0.8 if it has none. If
            no class reaches it, the best one is the only tag.
        most: maximum number of tags.

    Raises:
        UserError: the model has no maps.
    """
    check_has_maps(run)
    tagger, images = run.method.tagger, run.prepare(pixels[None])
    with torch.no_grad():
        scores = run.method.predict(images)[0].numpy()  # (K,)
        features = tagger.backbone(images)  # (1, C, h, w)
    is_tag = scores > run.thresholds if threshold is None else scores >= threshold
    best_first = np.argsort(-scores, kind="stable")
    shown = [int(column) for column in best_first if is_tag[column]][:most] or [int(best_first[0])]
    maps = _maps(tagger, features, shown).numpy()
    tags = [
        Tag(run.classes[column], float(scores[column]), run.session_of(column), one)
        for column, one in zip(shown, maps, strict=True)
    ]
    return Explanation(pixels, tuple(tags), *_session_attention(tagger, features))


def check_has_maps(run: Tagger) -> None:
    """Check that the scores of a run can be traced back to positions in the image.

    Raises:
        UserError: the method has neither cross-attention nor linear or closed-form heads.
    """
    tagger, method = run.method.tagger, run.config.settings.method
    if type(tagger).forward is not TaggerNet.forward and not isinstance(tagger, AnalyticTagger):
        raise UserError(
            f"run {run.path}: method {method} has no maps, because its heads do not read the image's feature map; "
            "expected cross-attention (krt) or linear heads on the pooled feature (ft and most others)"
        )
    if getattr(run.method, "means", None) is not None:  # iCaRL
        raise UserError(
            f"run {run.path}: method {method} scores by class means and not by its heads, so it has no maps"
        )


def _maps(tagger: TaggerNet, features: Tensor, columns: Sequence[int]) -> Tensor:
    if isinstance(tagger, AnalyticTagger):
        return tagger.evidence(features)[0, list(columns)].clamp(min=0)
    if tagger.attention is not None:
        return relevance(tagger, features, columns)
    return class_activation(tagger, features)[0, list(columns)].clamp(min=0)


@torch.no_grad()
def _session_attention(tagger: TaggerNet, features: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """`attention` (t, h, w) and `by_head` (t, heads) of an `Explanation`."""
    height, width = features.shape[-2:]
    if tagger.attention is None or isinstance(tagger, AnalyticTagger):
        return np.zeros((0, height, width), np.float32), np.zeros((0, 0), np.float32)
    weights = tagger.attention.weights(features)[:, 0, :, : height * width]  # (t, heads, h * w)
    return weights.mean(1).reshape(-1, height, width).numpy(), weights.sum(2).numpy()
