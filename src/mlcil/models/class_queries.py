"""Class queries: one trained token per class reads the feature map for it (HCP, feature purification)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .attention import TOKEN_STD, AttentionBlock, PatchAttention

TINY = 1e-30  # keeps a quotient of two shares of nothing finite


class QueryBlock(AttentionBlock):
    """Each query attends to [itself, patches], or to the patches alone, and passes an MLP.

    No query sees another, so what comes of a class does not depend on which other classes there are.

    Arguments:
        attend_to_query: whether a query is among its own keys and values.
    """

    def __init__(self, width: int, heads: int, attend_to_query: bool) -> None:
        super().__init__(width, heads)
        self.attend_to_query = attend_to_query

    def read(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the patches: (B, P, d) -> twice (B, heads, P, d/heads)."""
        normed = self.norm(patches)
        return self._split(self.key(normed)), self._split(self.value(normed))

    def weights(self, queries: Tensor, key: Tensor) -> Tensor:
        """The softmax of every query, (B, heads, n, P + 1 or 0): the patches, then the query itself if it takes part.

        The queries are (B, n, d), or (1, n, d) where they are the same for all images; the key is that of `read`.
        """
        normed = self.norm(queries)
        query = self._split(self.query(normed)) * self.scale  # (B or 1, heads, n, d/heads)
        logits = query @ key.transpose(2, 3)  # (B, heads, n, P)
        if self.attend_to_query:
            own = (query * self._split(self.key(normed))).sum(-1, keepdim=True)  # (B or 1, heads, n, 1)
            logits = torch.cat([logits, own.expand(len(key), -1, -1, -1)], dim=-1)
        result: Tensor = logits.softmax(dim=-1)
        return result

    def mix(self, weights: Tensor, queries: Tensor, value: Tensor) -> Tensor:
        """What the queries become at given softmax weights, (B, n, d); arguments as in `weights` and `read`."""
        mixed = weights[..., : value.shape[2]] @ value  # (B, heads, n, d/heads)
        if self.attend_to_query:
            mixed = mixed + weights[..., -1:] * self._split(self.value(self.norm(queries)))
        return self.with_mlp(queries + self.project(mixed.transpose(1, 2).flatten(2)))  # residual onto the raw query

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.reshape(*tokens.shape[:2], self.heads, -1).transpose(1, 2)  # (B, heads, tokens, d/heads)


class ClassRows(nn.Module):
    """A head in which each class reads its own embedding: w_j . norm(o_j) + b_j."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rows = nn.Linear(width, classes)

    def forward(self, embeddings: Tensor) -> Tensor:
        """(B, n, d) -> (B, n)."""
        logits: Tensor = (self.norm(embeddings) * self.rows.weight).sum(-1) + self.rows.bias
        return logits


class ClassQueryAttention(PatchAttention):
    """From a feature map to one embedding per class.

    The queries of a session are one parameter and are computed by themselves, in products of a shape that
    never changes: more sessions leave the embeddings of the earlier ones as they are, to the bit.

    Arguments:
        layers: how many times the queries attend, always to the same patches.
        attend_to_query: see `QueryBlock`.
    """

    def __init__(
        self,
        channels: int,
        grid: tuple[int, int],
        width: int,
        heads: int,
        layers: int = 1,
        attend_to_query: bool = True,
    ) -> None:
        super().__init__(channels, grid, width)
        self.queries = nn.ParameterList()  # for each session (classes, d)
        self.blocks = nn.ModuleList([QueryBlock(width, heads, attend_to_query) for _ in range(layers)])
        self._initialise()

    def open_session(self, classes: int) -> nn.Module:
        """Add a session's queries; its head maps (B, classes, d) -> (B, classes)."""
        start = self.position.new_empty(classes, self.position.shape[1])
        self.queries.append(nn.Parameter(nn.init.trunc_normal_(start, std=TOKEN_STD)))
        return ClassRows(self.position.shape[1], classes)

    def session_tokens(self) -> list[nn.Parameter]:
        """The queries of each session."""
        return list(self.queries)

    def by_image(self, embeddings: list[Tensor]) -> Tensor:
        """For each session (B, classes, d) -> (B, K, d)."""
        return torch.cat(embeddings, dim=1)

    def forward(self, features: Tensor) -> list[Tensor]:
        """(B, C, H, W) -> for each session (B, classes, d), one embedding per class."""
        embedded, weights, value = self._attend(features)
        return self._mix(embedded, weights, value)

    def weights(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (t, B, heads, H * W + 1 or 0), the last softmax, averaged over a session's classes."""
        return torch.stack([one.mean(dim=2) for one in self._attend(features)[1]])

    def embed(self, features: Tensor, weights: Tensor) -> list[Tensor]:
        """`forward` with the average softmax of each session given, (t, B, heads, H * W + 1 or 0).

        The weights of all classes of a session are multiplied by the given over the actual average. At
        `weights(features)` this is `forward`, and weights times gradient of a class's logit is what it would
        be for the class's own weights.
        """
        embedded, actual, value = self._attend(features)
        changed = [
            own * (given / own.mean(dim=2).clamp(min=TINY)).unsqueeze(2)
            for own, given in zip(actual, weights, strict=True)
        ]
        return self._mix(embedded, changed, value)

    def _attend(self, features: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """For each session the queries as they come to the last block and its weights; the patches' values there."""
        patches = self.patches(features)
        embedded = [queries[None] for queries in self.queries]  # (1, classes, d), the same for all images
        *earlier, last = cast("list[QueryBlock]", list(self.blocks))
        for block in earlier:
            key, value = block.read(patches)
            embedded = [block.mix(block.weights(one, key), one, value) for one in embedded]
        key, value = last.read(patches)
        return embedded, [last.weights(one, key) for one in embedded], value

    def _mix(self, embedded: list[Tensor], weights: list[Tensor], value: Tensor) -> list[Tensor]:
        last = cast(QueryBlock, self.blocks[-1])
        return [last.mix(*both, value) for both in zip(weights, embedded, strict=True)]
