"""Prompts chosen from a pool by the image itself, in front of a frozen vision transformer (Learning to Prompt, L2P)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.errors import UserError
from .backbone import Backbone
from .tagger import Output, TaggerNet

PROMPT_BOUND = 1.0  # keys and prompts start uniform in [-1, 1], as in PyTorch ports; the official code: [0, 0.01)


def choose(queries: Tensor, keys: Tensor, count: int, batchwise: bool) -> tuple[Tensor, Tensor]:
    """The prompts whose keys are most similar to the query; of equal ones, those of lower id (L2P, section 4.2).

    Arguments:
        queries: (B, C).
        keys: (M, C).
        count: N, prompts per image.
        batchwise: whether every image gets the prompts that most images of the batch ask for.

    Returns:
        (B, N) places in the pool, and (B,) float32, the sum over an image's prompts of cos(query, key). Its mean over
        the batch is the pull term of the loss.
    """
    directions = F.normalize(queries.float(), dim=1), F.normalize(keys.float(), dim=1)
    # Products and a sum in place of a matrix product, which autocast would take out of float32.
    cosine = (directions[0][:, None] * directions[1]).sum(dim=2)  # (B, M)
    ids = _largest(cosine, count)
    if batchwise:
        chosen = ids.flatten()
        votes = torch.zeros_like(keys[:, 0], dtype=torch.int64).scatter_add_(0, chosen, torch.ones_like(chosen))  # (M,)
        ids = _largest(votes, count).expand(len(queries), -1)
    return ids, cosine.gather(1, ids).sum(dim=1)


class PromptedTagger(TaggerNet):
    """A frozen vision transformer steered by prompts that each image chooses from a pool by its own feature.

    An image's query is its feature in the net without prompts: the class token after the final norm, or the
    mean of the patch tokens where the net has no class token. It carries no gradient, so the keys learn from
    `Output.match` alone, and the prompts and heads from the logits alone.

    The prompts stand between the net's prefix tokens and its patches. They are learned whole and get no
    position embedding, so their order is of no consequence. The classifier reads the mean of the output
    tokens at their places.

    Arguments:
        backbone: a timm VisionTransformer; none of its parameters is trained.
        pool: M, prompts in the pool.
        length: L_p, tokens per prompt.
        chosen: N, prompts per image.
        batchwise: in training, the whole batch uses the prompts that most of its images ask for.
        unfreeze: train the backbone too. The query then comes from the net as it is by now.

    Attributes:
        keys: (M, C).
        prompts: (M, L_p, C).
    """

    enters_backbone = True

    def __init__(
        self, backbone: Backbone, pool: int, length: int, chosen: int, batchwise: bool, unfreeze: bool
    ) -> None:
        _require_transformer(backbone)
        if chosen > pool:
            raise UserError(f"prompts chosen per image: got {chosen}, expected 1 to {pool}, the pool's size")
        super().__init__(backbone)
        self.chosen, self.batchwise = chosen, batchwise
        self.keys = nn.Parameter(torch.empty(pool, backbone.channels))
        self.prompts = nn.Parameter(torch.empty(pool, length, backbone.channels))
        for parameter in (self.keys, self.prompts):
            nn.init.uniform_(parameter, -PROMPT_BOUND, PROMPT_BOUND)
        if not unfreeze:
            backbone.stop_training()

    def forward(self, images: Tensor) -> Output:
        """(B, 3, H, W) normalised images -> `Output`, whose `pooled` is the mean of the prompts' output tokens."""
        net: Any = self.backbone.net
        tokens = net.patch_drop(net._pos_embed(net.patch_embed(images)))  # (B, prefix + patches, C)
        with torch.no_grad():
            query = self._query(tokens)
        ids, match = choose(query, self.keys, self.chosen, self.training and self.batchwise)
        pooled = self._prompted(tokens, self.prompts[ids].flatten(1, 2))
        logits = torch.cat([head(pooled) for head in self.heads], dim=1)
        return Output(logits, pooled, pooled.new_zeros(len(pooled), 0, 0), match=match)

    def _query(self, tokens: Tensor) -> Tensor:
        net: Any = self.backbone.net
        features = _blocks(net, tokens)
        has_class_token = net.cls_token is not None  # registers may be the only prefix tokens
        feature = features[:, 0] if has_class_token else features[:, net.num_prefix_tokens :].mean(dim=1)
        query: Tensor = net.fc_norm(feature)
        return query  # (B, C)

    def _prompted(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        """The mean output token (B, C) of `prompts` (B, N * L_p, C) put into `tokens` (B, prefix + patches, C)."""
        net: Any = self.backbone.net
        start = net.num_prefix_tokens
        features = _blocks(net, torch.cat([tokens[:, :start], prompts, tokens[:, start:]], dim=1))
        pooled: Tensor = net.fc_norm(features[:, start : start + prompts.shape[1]].mean(dim=1))
        return pooled


def _blocks(net: Any, tokens: Tensor) -> Tensor:
    # Nets made for average pooling have no `norm`: theirs comes after pooling and is called `fc_norm`.
    features: Tensor = net.norm(net.blocks(net.norm_pre(tokens)))
    return features


def _largest(values: Tensor, count: int) -> Tensor:
    # topk leaves open which of several equal values it gives
    return values.argsort(dim=-1, descending=True, stable=True)[..., :count]


def _require_transformer(backbone: Backbone) -> None:
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(backbone.net, VisionTransformer):
        raise UserError(
            f"backbone {backbone.name!r} cannot take prompts: its net is a {type(backbone.net).__name__}. "
            "Allowed: timm's plain vision transformers, such as vit_base_patch16_224"
        )
