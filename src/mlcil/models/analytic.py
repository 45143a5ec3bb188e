"""A tagger whose heads are solved for, not trained: fixed features of an image and a linear map (Zhang et al., L3A)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.errors import UserError
from .backbone import Backbone
from .ridge import SMALLEST_DEVIATION
from .score_model import ABSENT
from .tagger import Output, TaggerNet

CERTAIN = 6.0  # a logit of about 0.9975; beyond it logits grow slowly


class AnalyticTagger(TaggerNet):
    """Scores by weights that `set_solution` is given.

    Arguments:
        expansion: random features max(0, R x) beside the standardised x itself.
        power: of the pooled values, sign kept; 0.5 evens out features that fire rarely and strongly.
        window: side of the square windows that are scored besides the whole image, as a part of the map's side; 0 none.
        window_weight: of the best window's score, beside the whole image's.
        still: a copy of the backbone that never changes, if the backbone is trained. Its map joins the backbone's, and
            random features look at it alone. While training, the logits are those of ordinary heads.
    """

    mean: Tensor  # (p,) of the pooled features
    deviation: Tensor  # (p,)
    projection: Tensor  # (C, expansion), C channels of the backbone; p = C, or 2 C with `still`
    weights: Tensor  # (d, at least K), d = expansion + p + 1
    columns: Tensor  # (K,) the columns of the weights that count
    slope: Tensor  # (K,)
    offset: Tensor  # (K,)

    def __init__(
        self,
        backbone: Backbone,
        expansion: int,
        power: float,
        window: float,
        window_weight: float,
        still: Backbone | None = None,
    ) -> None:
        super().__init__(backbone)
        self.power, self.window, self.window_weight = power, window, window_weight
        self.still = still
        size = backbone.channels * (1 if still is None else 2)
        # Each random feature looks at the standardised x along a direction of about unit length.
        self.register_buffer("projection", torch.randn(backbone.channels, expansion) / backbone.channels**0.5)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.register_buffer("weights", torch.zeros(self.width, 0))
        self.register_buffer("columns", torch.arange(0))
        self.register_buffer("slope", torch.ones(0))
        self.register_buffer("offset", torch.zeros(0))

    @property
    def width(self) -> int:
        """d, the number of features after expansion, the constant included."""
        return self.projection.shape[1] + len(self.mean) + 1

    @property
    def needs_map(self) -> bool:
        """Whether it looks at windows."""
        return bool(self.window)

    def train(self, mode: bool = True) -> AnalyticTagger:
        """Switch mode; what stays still does not."""
        super().train(mode)
        if self.still is not None:
            self.still.eval()
        return self

    def grow(self, classes: int) -> None:
        """Make room for a session, absent until solved for; where the backbone is trained, with a head to train it."""
        if self.still is None:
            self.sizes.append(classes)
        else:
            super().grow(classes)
        if before := self.weights.shape[1]:
            new = torch.arange(before, before + classes).to(self.columns)
            self.columns = torch.cat([self.columns, new])
            self.weights, self.slope = F.pad(self.weights, (0, classes)), F.pad(self.slope, (0, classes), value=1.0)
            self.offset = F.pad(self.offset, (0, classes), value=ABSENT)

    def forward(self, images: Tensor) -> Output:
        """(B, 3, H, W) normalised images -> `Output`; logits of the classes solved for, or of heads in training."""
        if self.still is not None and (self.training or not self.weights.shape[1]):
            return super().forward(images)
        features = self.features(images)
        logits = tempered(self.slope * self._combined(features)[1] + self.offset)
        pooled = features[:, : self.backbone.channels].mean(dim=(2, 3))
        return Output(logits, pooled, logits.new_zeros(len(logits), 0, 0), self.backbone.take_maps())

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, p, h, w) feature map, what the backbone has learned first."""
        features: Tensor = self.backbone(images)
        return features if self.still is None else torch.cat([features, self.still(images)], dim=1)

    def describe(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, p), the pooled features before standardisation."""
        return self._powered(self.features(images).mean(dim=(2, 3)))

    def describe_learned(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C), the part of them that the backbone has learned."""
        return self._powered(self.backbone(images).mean(dim=(2, 3)))

    def expand(self, described: Tensor) -> Tensor:
        """(..., p) -> (..., d): random features, the standardised ones, and 1."""
        x = (described - self.mean) / self.deviation
        random = torch.relu(x[..., -len(self.projection) :] @ self.projection)
        return torch.cat([random, x, x.new_ones(*x.shape[:-1], 1)], dim=-1)

    def scores(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 2, K): the score of the whole image, and with its best window's."""
        return torch.stack(self._combined(self.features(images)), dim=1)

    def standardise(self, described: Tensor) -> None:
        """Take mean and deviation of what random features look at from (N, p)."""
        values = described.double()
        deviation = values.std(0, unbiased=False)
        if not (deviation > 0).any():
            raise UserError(f"the {len(values)} image(s) all look the same to the backbone; it needs different ones")
        # What hardly ever changed then must not drown everything when it does later.
        self.deviation.copy_(deviation.clamp(min=SMALLEST_DEVIATION * float(deviation[deviation > 0].median())))
        self.mean.copy_(values.mean(0))

    def set_solution(self, weights: Tensor, slope: Tensor, offset: Tensor) -> None:
        """Score by weights (d, K), with probability sigmoid(slope s + offset)."""
        # A solver may return its columns contiguous. Files hold rows, and a product rounds differently in each layout.
        self.weights, self.slope, self.offset = (value.to(self.mean).contiguous() for value in (weights, slope, offset))
        self.columns = torch.arange(self.weights.shape[1]).to(self.mean.device)

    def keep(self, columns: Sequence[int]) -> None:
        """Score only these of the K classes, in this order.

        A product of another width would round differently, so the weights of the others become zero and stay.
        """
        kept, weights = self.columns[columns], torch.zeros_like(self.weights)
        weights[:, kept] = self.weights[:, kept]
        self.weights, self.columns, self.slope, self.offset = weights, kept, self.slope[columns], self.offset[columns]

    def fingerprint(self) -> str:
        """A name for the features: equal where images become the same vectors."""
        runtime = () if self.backbone.runtime == "torch" else (self.backbone.runtime,)
        digest = hashlib.sha256(repr((self.backbone.name, self.backbone.image_size, self.power, *runtime)).encode())
        still = [] if self.still is None else self.still.state_dict().values()
        for value in (*self.backbone.state_dict().values(), *still, self.mean, self.deviation, self.projection):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        for name in ("weights", "columns", "slope", "offset"):  # of as many classes as were solved for
            if (stored := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _combined(self, features: Tensor) -> tuple[Tensor, Tensor]:
        whole = self._score(features.mean(dim=(2, 3)))  # (B, K)
        if not self.window or self._window_sides(features) == [*features.shape[-2:]]:
            return whole, whole
        return whole, whole + self.window_weight * self.window_scores(features).amax(1)

    def window_scores(self, features: Tensor) -> Tensor:
        """(B, p, h, w) -> (B, W, K), the score of every window."""
        return self._score(_windows(features, self._window_sides(features)))

    def _window_sides(self, features: Tensor) -> list[int]:
        return [max(1, round(self.window * side)) for side in features.shape[-2:]]

    def _score(self, pooled: Tensor) -> Tensor:
        with torch.autocast(pooled.device.type, enabled=False):  # the weights were solved for in full precision
            return (self.expand(self._powered(pooled.float())) @ self.weights)[..., self.columns]

    def _powered(self, pooled: Tensor) -> Tensor:
        return pooled.sign() * pooled.abs() ** self.power


def tempered(logits: Tensor) -> Tensor:
    """Logits whose probabilities stay apart in float32: beyond `CERTAIN` they grow as the logarithm, in the same order.

    That serves up to some ten thousand. A Gaussian's far tail also promises more than photographs keep.
    """
    excess = (logits.abs() - CERTAIN).clamp(min=0)
    return torch.where(excess > 0, logits.sign() * (CERTAIN + torch.log1p(excess)), logits)


def _windows(features: Tensor, sides: list[int]) -> Tensor:
    """(B, C, h, w) -> (B, W, C), the mean within every window of these sides."""
    return F.avg_pool2d(features, sides, stride=1).flatten(2).transpose(1, 2)
