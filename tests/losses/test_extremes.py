"""Losses and their gradients are finite for whatever finite numbers a network gives, in every precision."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.losses.cosine import cosine_distance, token_loss
from mlcil.losses.distillation import logit_distance, sigmoid_distillation
from mlcil.losses.ewc import ewc_penalty
from mlcil.losses.pod import pod_spatial
from mlcil.losses.reweighting import reweighted_loss
from mlcil.losses.topology import topology_loss

ROWS, COLUMNS = 3, 4
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LABELS = torch.tensor([[1, 0, -1, 1], [0, 0, 1, -1], [1, 1, 0, 0]], dtype=torch.int8)


def as_maps(rows: Tensor) -> Tensor:
    """(B, C) as maps (B, C, 2, 1)."""
    return torch.stack([rows, rows.flip(1)], dim=2)[..., None]


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "asymmetric": lambda now, _: asymmetric_loss(now, LABELS),
    "reweighted": lambda now, _: reweighted_loss(now, LABELS, [2, 1, 1]),
    "cosine": cosine_distance,
    "token": lambda now, before: token_loss(now.view(ROWS, 2, 2), before.view(ROWS, 2, 2)),
    "sigmoid distillation": sigmoid_distillation,
    "logit distance": lambda now, before: logit_distance(now, before, LABELS >= 0),
    "pod": lambda now, before: pod_spatial([as_maps(now)], [as_maps(before)], 1),
    "topology": topology_loss,
    # Weights are no outputs: they cannot be far apart without a step of the optimiser that is stopped before.
    "ewc": lambda now, before: ewc_penalty(
        {"w": now.clamp(-1e15, 1e15)}, {"w": before.clamp(-1e15, 1e15)}, {"w": torch.ones_like(now)}
    ),
}


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two times (3, 4) finite numbers that some precision can hold, as float32; rows may be equal or all zero."""
    kind = torch.finfo(draw(st.sampled_from(DTYPES)))
    extreme = (0.0, -0.0, 1.0, -1.0, kind.max, kind.min, kind.smallest_normal, -kind.smallest_normal / 2, kind.max**0.5)
    values = st.sampled_from(extreme) | st.floats(kind.min, kind.max)
    rows = st.lists(values, min_size=COLUMNS, max_size=COLUMNS) | values.map(lambda one: [one] * COLUMNS)
    both = st.lists(rows, min_size=ROWS, max_size=ROWS) | rows.map(lambda row: [row] * ROWS)
    kept = torch.float16 if kind.max < 1e5 else torch.bfloat16 if kind.eps > 1e-3 else torch.float32
    now, before = (torch.tensor(draw(both), dtype=torch.float64).to(kept).float() for _ in range(2))
    return now, now.clone() if draw(st.booleans()) else before


@pytest.mark.parametrize("name", LOSSES)
@given(given=outputs())
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_finite(name: str, given: tuple[Tensor, Tensor]) -> None:
    now, before = given[0].requires_grad_(), given[1]
    value = LOSSES[name](now, before)
    assert value.isfinite().all()
    value.mean().backward()
    assert now.grad is None or now.grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LOSSES)
def test_the_largest_numbers_of_each_precision(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    now = torch.full((ROWS, COLUMNS), largest, dtype=dtype)
    for other in (now, -now, now * 0, now.flip(0)):
        given = now.clone().float().requires_grad_()
        value = LOSSES[name](given, other.float())
        value.sum().backward()
        assert value.isfinite().all()
        assert given.grad is None or given.grad.isfinite().all()
        if name != "ewc":
            assert LOSSES[name](now, other).isfinite().all()


def test_a_large_row_has_the_direction_of_a_small_one() -> None:
    rows, before = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cosine_distance(rows * 1e30, before * 1e25), cosine_distance(rows, before))
