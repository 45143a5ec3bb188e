"""Cosine losses: reference numbers, and exact zero where nothing changed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.losses.cosine import cosine_distance, token_loss


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_token_loss_is_one_cosine_over_all_tokens():
    before = torch.tensor([[[3.0, 0.0], [0.0, 1.0]]])
    now = torch.tensor([[[3.0, 0.0], [1.0, 0.0]]])
    assert token_loss(now, before).tolist() == pytest.approx([0.1], abs=1e-6)


def test_reference_of_a_feature():
    loss = cosine_distance(torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([[2.0, 1.0, 2.0]]))
    assert loss.tolist() == pytest.approx([1 / 9], abs=1e-6)


@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 9),
    tokens=st.integers(1, 6),
    width=st.integers(2, 700),
    exponent=st.floats(-4, 6),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_exactly_zero_for_identical_inputs(seed, batch, tokens, width, exponent):
    before = gaussian(seed, batch, tokens, width) * 10**exponent
    assert (token_loss(before.clone(), before) == 0).all()
    assert (cosine_distance(before[:, 0].clone(), before[:, 0]) == 0).all()


def test_only_old_tokens_are_compared():
    before = gaussian(0, 4, 2, 8)
    now = torch.cat([before, gaussian(1, 4, 3, 8)], dim=1).requires_grad_()
    assert (token_loss(now, before) == 0).all()
    changed = now.detach().clone()
    changed[:, :2] += gaussian(2, 4, 2, 8)
    changed.requires_grad_()
    token_loss(changed, before).sum().backward()
    assert (changed.grad[:, 2:] == 0).all()
    assert (changed.grad[:, :2] != 0).any()


def test_the_gradient_vanishes_at_equality():
    before = gaussian(3, 6, 50)
    now = before.clone().requires_grad_()
    cosine_distance(now, before).sum().backward()
    assert now.grad.isfinite().all()
    assert now.grad.abs().max() < 1e-6


@pytest.mark.parametrize("before_scale", [0.0, 1.0])
def test_an_all_zero_row_keeps_the_gradient_finite(before_scale):
    now = torch.zeros(2, 8, requires_grad=True)
    distance = cosine_distance(now, gaussian(4, 2, 8) * before_scale)
    distance.sum().backward()
    assert distance.tolist() == [1.0, 1.0]
    assert now.grad.isfinite().all()


def test_half_precision_is_compared_in_float32():
    before = (gaussian(5, 3, 64) * 300).half()  # squares overflow in half precision
    assert cosine_distance(before, before).tolist() == [0, 0, 0]
