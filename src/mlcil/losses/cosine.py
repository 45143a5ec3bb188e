"""Losses that hold a representation to the direction it had: KRT's token loss and less-forget KD."""

from __future__ import annotations

from torch import Tensor

TINY = 1e-12  # smallest squared length; its square is still a float32
LARGE = 2.0**20  # rows with a larger value are scaled down to it, so that the product of two squares is a float32


def cosine_distance(now: Tensor, before: Tensor) -> Tensor:
    """1 - cos of each pair of rows, twice (B, D) -> (B,) float32; of pooled features LUCIR's less-forget loss.

    Exactly 0 for identical rows: the three sums are then equal, and sqrt(x * x) = x in IEEE arithmetic. Finite, with a
    finite gradient in float32, for rows of any finite size. The gradient of a row is as large as the row is short, at
    most 1e6: in half precision it overflows for rows shorter than about 1.5e-5, and scaling of the loss skips the
    step.
    """
    now, before = _within(now.float()), _within(before.float())
    dot, norm, norm_before = (now * before).sum(1), (now * now).sum(1), (before * before).sum(1)
    # Clamped before the root: at 0 its slope is infinite, and an all-zero row would make the gradient NaN.
    return 1 - dot / (norm.clamp(min=TINY) * norm_before.clamp(min=TINY)).sqrt()


def _within(rows: Tensor) -> Tensor:
    """The rows (B, D), those with values above LARGE scaled down, which no direction notices; others to the bit."""
    largest = rows.detach().abs().amax(dim=1, keepdim=True)
    return rows / (largest / LARGE).clamp(min=1)


def token_loss(now: Tensor, before: Tensor) -> Tensor:
    """KRT's token loss: one cosine over the concatenated embeddings of the old sessions (KRT, eq. 5).

    Arguments:
        now: (B, t', D) embeddings of the model being trained, of which the first t are compared, t <= t'.
        before: (B, t, D) embeddings of the old model.
    """
    return cosine_distance(now[:, : before.shape[1]].flatten(1), before.flatten(1))
