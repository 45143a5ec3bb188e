"""What a trained model sees in an image: its tags, and where in the image the evidence for each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..core.errors import UserError
from ..data.decoding import resized
from ..models.analytic import AnalyticTagger
from ..models.tagger import TaggerNet
from .tagger import Tagger

MOST = 10  # tags of one image
EVIDENCE_WINDOW = 0.4  # side of the windows that show where a closed-form head finds a class, as a part of the map's


class ExplainedTag(NamedTuple):
    """A tag that the model gives to an image, or would give next.

    Attributes:
        name: the class.
        score: its probability.
        threshold: the score from which on the class counts as present.
        is_present: whether the score reaches it.
        session: the session in which the class was learned, counted from 1.
        map: float32 (h, w), how far the evidence at each place exceeds the median over all places, at least 0.
    """

    name: str
    score: float
    threshold: float
    is_present: bool
    session: int
    map: NDArray[np.float32]


class Explanation(NamedTuple):
    """The tags of an image, and the evidence for them.

    Attributes:
        pixels: uint8 (H, W, 3), the image.
        tags: in the order of their scores, the highest first; if none is present, the one nearest to its threshold.
    """

    pixels: NDArray[np.uint8]
    tags: tuple[ExplainedTag, ...]


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


def window_evidence(tagger: AnalyticTagger, features: Tensor, weights: Tensor) -> Tensor:
    """The scores of the windows around all places of a feature map; at its edge a window is cut.

    Arguments:
        features: (1, C, h, w), of the image at any resolution.
        weights: (d, n) of n classes.

    Returns:
        (1, n, h, w).
    """
    sides = [2 * round((EVIDENCE_WINDOW * side - 1) / 2) + 1 for side in features.shape[-2:]]  # odd
    halves = [side // 2 for side in sides]
    pooled = F.avg_pool2d(features, sides, stride=1, padding=halves, count_include_pad=False).movedim(1, -1)
    described = pooled.sign() * pooled.abs() ** tagger.power  # (1, h, w, C)
    return (tagger.expand(described) @ weights).movedim(-1, 1)


def explain(
    run: Tagger,
    pixels: NDArray[np.uint8],
    threshold: float | None = None,
    most: int = MOST,
    photo: NDArray[np.uint8] | None = None,
) -> Explanation:
    """Tag an image and find the evidence for each tag.

    The map of a tag comes from its `relevance` for a model with cross-attention, from its `class_activation` for linear
    heads, and from its `window_evidence` for heads solved in closed form.

    Arguments:
        pixels: uint8 (H, W, 3), of any size; what is scored.
        threshold: the lowest score of a tag; None for the thresholds stored with the model, or 0.8 if it has none.
        most: maximum number of tags.
        photo: uint8 (H, W, 3), the same image in its own proportions and with more detail; None if there is no other.

    Raises:
        UserError: the model has no maps.
    """
    check_has_maps(run)
    photo = pixels if photo is None else photo
    images = run.prepare(pixels[None])
    with torch.no_grad():
        scores = run.method.predict(images)[0].numpy()  # (K,)
        features = run.method.tagger.features(images)  # (1, C, h, w)
    lowest, is_tag = _decide(run, scores, threshold)
    best_first = np.argsort(-scores, kind="stable")
    nearest = int(np.argmax(scores - lowest))
    shown = [int(column) for column in best_first if is_tag[column]][:most] or [nearest]
    maps = _above_median(_maps(run, features, photo, shown))
    tags = [
        ExplainedTag(run.classes[k], float(scores[k]), float(lowest[k]), bool(is_tag[k]), run.session_of(k), one)
        for k, one in zip(shown, maps, strict=True)
    ]
    return Explanation(photo, tuple(tags))


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


def _decide(
    run: Tagger, scores: NDArray[np.float32], threshold: float | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The threshold of each class, and whether it is present, both (K,)."""
    if threshold is None:
        return run.thresholds, scores > run.thresholds
    return run.thresholds_for(threshold), scores >= threshold


def _maps(run: Tagger, features: Tensor, photo: NDArray[np.uint8], columns: Sequence[int]) -> Tensor:
    """The evidence for n classes, (n, h, w)."""
    tagger = run.method.tagger
    if isinstance(tagger, AnalyticTagger):
        return _closed_form_maps(run, tagger, features, photo, tagger.weights[:, tagger.columns[list(columns)]])
    if tagger.attention is not None:
        return relevance(tagger, features, columns)
    return class_activation(tagger, features)[0, list(columns)]


@torch.no_grad()
def evidence_for(run: Tagger, photo: NDArray[np.uint8], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """The map of a label that a closed form has other weights for, or does not know; see `ExplainedTag.map`.

    Arguments:
        photo: uint8 (H, W, 3), in its own proportions.
        weights: (d,).
    """
    tagger = run.method.tagger
    assert isinstance(tagger, AnalyticTagger)
    features = tagger.features(run.prepare(resized(Image.fromarray(photo), run.size)[None]))
    column = torch.from_numpy(weights).to(tagger.mean)[:, None]
    found: NDArray[np.float32] = _above_median(_closed_form_maps(run, tagger, features, photo, column))[0]
    return found


@torch.no_grad()
def _closed_form_maps(
    run: Tagger, tagger: AnalyticTagger, features: Tensor, photo: NDArray[np.uint8], weights: Tensor
) -> Tensor:
    """(n, h, w) of weights (d, n): from the image as it is scored, and from one of twice its size."""
    fine = _fine_features(run, photo)
    near, coarse = window_evidence(tagger, fine, weights), window_evidence(tagger, features, weights)
    size = (fine.shape[2], fine.shape[3])
    return (near + F.interpolate(coarse, size, mode="bicubic", align_corners=False))[0]


def _fine_features(run: Tagger, photo: NDArray[np.uint8]) -> Tensor:
    """The feature map of an image at twice the resolution, (1, C, 2h, 2w), quarter by quarter.

    The quarters are images of the size that the backbone was made for, which a transformer needs.
    """
    size = run.config.settings.image_size
    large = resized(Image.fromarray(photo), 2 * size)
    quarters = large.reshape(2, size, 2, size, 3).swapaxes(1, 2).reshape(4, size, size, 3)
    features = run.method.tagger.features(run.prepare(quarters))  # (4, C, h, w)
    upper, lower = (torch.cat([left, right], dim=-1) for left, right in features.reshape(2, 2, *features.shape[1:]))
    return torch.cat([upper, lower], dim=-2)[None]


def _above_median(maps: Tensor) -> NDArray[np.float32]:
    """What (n, h, w) maps exceed their medians by: what is everywhere says nothing about where."""
    middle = maps.flatten(1).median(dim=1).values[:, None, None]
    return (maps - middle).clamp(min=0).numpy()
