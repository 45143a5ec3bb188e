"""What a trained model says about a picture: for each tag what speaks for it, for each session where it attends."""

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
from ..models.tagger import Tagger
from .trained_run import TrainedRun, prepare_images

THRESHOLD, MOST = 0.8, 4  # tags shown: KRT's threshold, and one row of panels


class Tag(NamedTuple):
    """A tag that the model gives to a picture.

    Attributes:
        session: in which it was learned, from 1.
        map: float32 (h, w), at least 0: how much each place of the feature map speaks for the tag.
    """

    name: str
    score: float
    session: int
    map: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a model says about a picture, and where in it.

    Attributes:
        pixels: uint8 (H, W, 3), the picture.
        tags: the best first.
        attention: float32 (t, h, w), share of each session's attention at each place, averaged over heads;
            (0, h, w) for a model without cross-attention.
        by_head: float32 (t, heads), share of the attention that falls on the picture and not on tokens.
    """

    pixels: NDArray[np.uint8]
    tags: tuple[Tag, ...]
    attention: NDArray[np.float32]
    by_head: NDArray[np.float32]

    @property
    def masses(self) -> NDArray[np.float32]:
        """(t,), share of each session's attention that falls on the picture."""
        shares: NDArray[np.float32] = self.attention.sum(axis=(1, 2))
        return shares


def class_activation(tagger: Tagger, features: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, K, h, w); for linear heads its mean over places plus the bias is the logit."""
    weight = torch.cat([head.get_parameter("weight") for head in tagger.heads])  # (K, C)
    return torch.einsum("bchw,kc->bkhw", features, weight)


def relevance(tagger: Tagger, features: Tensor, columns: Sequence[int]) -> Tensor:
    """What speaks for some classes in an image: the weights of attention times the gradient of the class's logit.

    The positive part of the product, summed over heads (the idea of Chefer et al., ICCV 2021). The gradient
    takes the weights as given, so it asks what the value of a patch says, not what attracts the attention.

    Arguments:
        features: (1, C, h, w).
        columns: n classes.

    Returns:
        (n, h, w), at least 0.
    """
    attention = _attention(tagger)
    weights = attention.weights(features).detach().requires_grad_()  # (t, 1, heads, h * w + 1 or 2)
    with torch.enable_grad():
        embeddings = attention.embed(features, weights)
        logits = torch.cat([head(one) for head, one in zip(tagger.heads, embeddings, strict=True)], dim=1)[0]
        gradients = [torch.autograd.grad(logits[column], weights, retain_graph=True)[0] for column in columns]
    height, width = features.shape[-2:]
    # A logit depends on its own session's weights alone: the sum over sessions has one term.
    speaking = torch.stack([(one * weights.detach()).clamp(min=0).sum(dim=(0, 1, 2)) for one in gradients])
    return speaking[:, : height * width].reshape(-1, height, width)


def explain(
    run: TrainedRun, pixels: NDArray[np.uint8], threshold: float | None = None, most: int = MOST
) -> Explanation:
    """Tag a picture and find what in it speaks for each tag.

    With cross-attention a tag's map is its `relevance`, with linear heads the positive part of its
    `class_activation`, with solved heads that of its score window by window.

    Arguments:
        pixels: uint8 (H, W, 3), of any size.
        threshold: tags with at least this score are shown, or the best one if none has it; None for the thresholds
            stored with the model, or 0.8 where it has none.
        most: at most so many tags.

    Raises:
        UserError: the model has no such maps, or a number is out of range.
    """
    check_has_maps(run)
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"threshold: got {threshold}, expected 0 to 1")
    if most < 1:
        raise UserError(f"number of tags to show: got {most}, expected at least 1")
    tagger, images = run.method.tagger, prepare_images(run, pixels[None])
    with torch.no_grad():
        scores = run.method.predict(images)[0].numpy()  # (K,)
        features = tagger.backbone(images)  # (1, C, h, w)
    is_tag, best_first = _are_tags(run, scores, threshold), np.argsort(-scores, kind="stable")
    shown = [int(column) for column in best_first if is_tag[column]][:most] or [int(best_first[0])]
    maps = _maps(tagger, features, shown).numpy()
    tags = [
        Tag(run.classes[column], float(scores[column]), run.session_of(column), one)
        for column, one in zip(shown, maps, strict=True)
    ]
    return Explanation(pixels, tuple(tags), *_session_attention(tagger, features))


def _are_tags(run: TrainedRun, scores: NDArray[np.float32], threshold: float | None) -> NDArray[np.bool_]:
    """(K,) by the threshold given, else by those stored with the model, else by the usual one."""
    if threshold is None and run.thresholds is not None:
        return np.asarray(scores > run.thresholds)
    return np.asarray(scores >= (THRESHOLD if threshold is None else threshold))


def check_has_maps(run: TrainedRun) -> None:
    """Refuse a run whose scores come neither from cross-attention nor from linear or solved heads.

    Raises:
        UserError: naming the method.
    """
    tagger, method = run.method.tagger, run.config.settings.method
    if type(tagger).forward is not Tagger.forward and not isinstance(tagger, AnalyticTagger):
        raise UserError(
            f"run {run.path}: method {method} has no maps, as its heads do not read the picture's feature map; "
            "expected cross-attention (krt) or linear heads on the pooled feature (ft and most others)"
        )
    if getattr(run.method, "means", None) is not None:
        raise UserError(f"run {run.path}: method {method} scored by class means and not by its heads, so has no maps")


def _maps(tagger: Tagger, features: Tensor, columns: Sequence[int]) -> Tensor:
    if isinstance(tagger, AnalyticTagger):
        return tagger.evidence(features)[0, list(columns)].clamp(min=0)
    if tagger.attention is not None:
        return relevance(tagger, features, columns)
    return class_activation(tagger, features)[0, list(columns)].clamp(min=0)


@torch.no_grad()
def _session_attention(tagger: Tagger, features: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(t, h, w) and (t, heads) of one image; see `Explanation`."""
    height, width = features.shape[-2:]
    if tagger.attention is None or isinstance(tagger, AnalyticTagger):
        return np.zeros((0, height, width), np.float32), np.zeros((0, 0), np.float32)
    weights = tagger.attention.weights(features)[:, 0, :, : height * width]  # (t, heads, h * w)
    return weights.mean(1).reshape(-1, height, width).numpy(), weights.sum(2).numpy()


def _attention(tagger: Tagger) -> Any:
    if tagger.attention is None:
        raise ValueError("Got a tagger with linear heads, expected one with cross-attention")
    return tagger.attention
