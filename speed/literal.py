"""KRT as it is usually written, to measure against: nothing shared, nothing batched, nothing kept.

Tokens are evaluated one after another, keys and values of all patches projected anew for each; the network is
timm's own in the contiguous layout; Adam goes tensor by tensor; the threshold search asks the old model at every move;
every epoch decodes its images with Pillow. Weights come from this library's model, so that both must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mlcil.data.augmentation import normalise
from mlcil.models.attention import IncrementalCrossAttention
from mlcil.models.tagger import TaggerNet


def literal_attention(ica: IncrementalCrossAttention, features: Tensor) -> list[Tensor]:
    """(B, C, H, W) -> for each session (B, d): the published form, with the module's own weights."""
    patches = (F.conv2d(features, ica.projection.weight, ica.projection.bias) + ica.position).flatten(2)
    return [_session(ica, patches.transpose(1, 2), token) for token in ica.kr]


def _session(ica: IncrementalCrossAttention, patches: Tensor, token: Tensor) -> Tensor:
    batch, attention = len(patches), ica.attention
    tokens = attention.norm(torch.cat([ica.kt.expand(batch, 1, -1), token.expand(batch, 1, -1), patches], dim=1))
    query = F.linear(tokens[:, :1], attention.query.weight)
    keys, values = F.linear(tokens, attention.key.weight), F.linear(tokens, attention.value.weight)
    q, k, v = (
        one.reshape(batch, -1, attention.heads, one.shape[-1] // attention.heads) for one in (query, keys, values)
    )
    weights = torch.einsum("bqhd,bkhd->bhqk", q, k) * attention.scale
    mixed = torch.einsum("bhqk,bkhd->bqhd", weights.softmax(dim=-1), v).flatten(2)[:, 0]
    embedded = ica.kt + F.linear(mixed, attention.project.weight, attention.project.bias)
    hidden = F.gelu(F.linear(attention.mlp_norm(embedded), attention.mlp_in.weight, attention.mlp_in.bias))
    return embedded + F.linear(hidden, attention.mlp_out.weight, attention.mlp_out.bias)


class LiteralTagger(nn.Module):
    """The same tagger, spelled out: `forward` gives logits (B, K) and the embeddings side by side (B, t * d)."""

    def __init__(self, tagger: TaggerNet) -> None:
        super().__init__()
        self.net: Any = timm.create_model(tagger.backbone.name, num_classes=0)
        self.net.load_state_dict(tagger.backbone.net.state_dict())
        for ours, theirs in zip(self.net.parameters(), tagger.backbone.net.parameters(), strict=True):
            ours.requires_grad_(theirs.requires_grad)
        assert isinstance(tagger.attention, IncrementalCrossAttention)
        self.attention: IncrementalCrossAttention = copy.deepcopy(tagger.attention)
        self.heads = copy.deepcopy(tagger.heads)
        self.to(memory_format=torch.contiguous_format)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> logits and embeddings."""
        embeddings = literal_attention(self.attention, self.net.forward_features(images))
        logits = [head(one) for head, one in zip(self.heads, embeddings, strict=True)]
        return torch.cat(logits, dim=1), torch.cat(embeddings, dim=1)


def literal_losses(
    student: LiteralTagger,
    teacher: LiteralTagger,
    images: Tensor,
    labels: Tensor,
    threshold: float,
    token_weight: float,
) -> dict[str, Tensor]:
    """Both losses of a step, means over the batch, with pseudo labels set on its way."""
    logits, embeddings = student(images)
    with torch.no_grad():
        old_logits, old_embeddings = teacher(images)
    target = labels.clamp(min=0).float()
    old = target[:, : old_logits.shape[1]]
    old[torch.sigmoid(old_logits) > threshold] = 1.0
    ones = torch.ones(len(images))
    width = old_embeddings.shape[1]
    token = F.cosine_embedding_loss(embeddings[:, :width], old_embeddings, ones)
    return {"classification": literal_asymmetric(logits, target) / len(images), "token": token_weight * token}


def literal_asymmetric(logits: Tensor, target: Tensor) -> Tensor:
    """The asymmetric loss of a batch, summed."""
    chance = torch.sigmoid(logits)
    absence = (1 - chance + 0.05).clamp(max=1)
    likelihood = target * chance.clamp(min=1e-8).log() + (1 - target) * absence.clamp(min=1e-8).log()
    with torch.no_grad():
        right = chance * target + absence * (1 - target)
        weight = torch.pow(1 - right, 4.0 * (1 - target))
    return -(likelihood * weight).sum()


def literal_optimiser(student: nn.Module, lr: float = 1e-4, weight_decay: float = 1e-4) -> torch.optim.Adam:
    """Adam as torch makes it, decaying matrices only."""
    trained = [one for one in student.parameters() if one.requires_grad]
    decayed, plain = [one for one in trained if one.ndim > 1], [one for one in trained if one.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.Adam(groups, lr=lr)


def read_batch(paths: list[str], size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Image files decoded with Pillow, (B, 3, size, size)."""
    from PIL import Image

    images = []
    for path in paths:
        with Image.open(path) as image:
            images.append(np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)))
    return normalise(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), mean, std)


def literal_scores(
    tagger: LiteralTagger, paths: list[str], read: Callable[[list[str]], Tensor], batch: int
) -> NDArray[np.float32]:
    """Probabilities (N, K) of image files, read and computed anew."""
    tagger.eval()
    parts = [paths[start : start + batch] for start in range(0, len(paths), batch)]
    with torch.no_grad():
        return torch.cat([torch.sigmoid(tagger(read(part))[0]) for part in parts]).numpy()
