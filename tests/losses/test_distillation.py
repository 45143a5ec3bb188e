"""Distillation of outputs: reference numbers, the teacher's entropy as floor, and unknown logits left alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.losses.distillation import logit_distance, sigmoid_distillation

BEFORE = torch.tensor([[1.0, -2.0]])
NOW = torch.tensor([[0.5, -1.0]])


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def literal(now, before, temperature):
    """Cross-entropy of one class, from probabilities."""
    p, q = 1 / (1 + math.exp(-now / temperature)), 1 / (1 + math.exp(-before / temperature))
    return -q * math.log(p) - (1 - q) * math.log(1 - p)


def prefix(widths, columns):
    """(B, K) bool: the first w columns of each image."""
    return torch.arange(columns) < torch.tensor(widths)[:, None]


def test_sigmoid_distillation_reference():
    assert sigmoid_distillation(NOW, BEFORE).tolist() == pytest.approx([0.670325 + 0.608548], abs=2e-6)
    assert sigmoid_distillation(NOW[:, :1], BEFORE[:, :1]).tolist() == pytest.approx([0.670325], abs=1e-6)
    assert sigmoid_distillation(BEFORE, BEFORE).tolist() == pytest.approx([0.662847 + 0.582203], abs=2e-6)


def test_sigmoid_distillation_reference_gradient():
    now = NOW.clone().requires_grad_()
    sigmoid_distillation(now, BEFORE).sum().backward()
    assert now.grad[0].tolist() == pytest.approx([-0.030141, 0.054300], abs=1e-6)


@given(
    rows=st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=8),
    temperature=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_old_classes_are_summed(rows, temperature):
    now, before = torch.tensor(rows, dtype=torch.float64).T[:, None]
    expected = sum(literal(ours, theirs, temperature) for ours, theirs in rows)
    assert sigmoid_distillation(now, before, temperature).tolist() == pytest.approx([expected], rel=1e-5, abs=1e-6)


@given(seed=st.integers(0, 2**31), columns=st.integers(1, 60), exponent=st.floats(-2, 1))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_at_the_first_step_it_is_the_teachers_entropy_with_no_gradient(seed, columns, exponent):
    before = gaussian(seed, 3, columns) * 10**exponent
    now = before.clone().requires_grad_()
    loss = sigmoid_distillation(now, before)
    loss.sum().backward()
    entropy = torch.distributions.Bernoulli(logits=before.double() / 2).entropy().sum(dim=1)
    torch.testing.assert_close(loss.double(), entropy, rtol=1e-5, atol=1e-5)
    assert now.grad.abs().max() < 1e-7
    assert (sigmoid_distillation(before + gaussian(seed + 1, 3, columns), before) > loss - 1e-5).all()


def test_new_classes_are_not_distilled_and_the_teacher_gets_no_gradient():
    before = gaussian(2, 4, 3).requires_grad_()
    now = gaussian(3, 4, 8).requires_grad_()
    loss = sigmoid_distillation(now, before)
    assert torch.equal(loss, sigmoid_distillation(now[:, :3], before))
    loss.sum().backward()
    assert (now.grad[:, 3:] == 0).all()
    assert (now.grad[:, :3] != 0).all()
    assert before.grad is None


def test_more_old_classes_than_there_are_columns_is_an_error():
    with pytest.raises(ValueError):
        sigmoid_distillation(torch.zeros(2, 1), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_logits_stay_finite(dtype):
    now = torch.tensor([[6e4, -6e4, 6e4, -6e4]], dtype=dtype, requires_grad=True)
    loss = sigmoid_distillation(now, torch.tensor([[-6e4, 6e4, 6e4, -6e4]], dtype=dtype))
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(6e4, rel=1e-2)
    assert now.grad[0].tolist() == [0.5, -0.5, 0, 0]


def test_logit_distance_reference():
    now = torch.tensor([[0.0, -1.0, 1.5, 7.0, -7.0]])
    stored = torch.tensor([[1.0, -1.0, 0.5, math.nan, math.nan]])
    assert logit_distance(now, stored, prefix([3], 5)).item() == pytest.approx(2 / 3, abs=1e-6)


@given(seed=st.integers(0, 2**31), widths=st.lists(st.integers(0, 6), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_mean_is_over_known_elements_and_unknown_ones_poison_nothing(seed, widths):
    known = prefix(widths, 6)
    stored = torch.where(known, gaussian(seed, len(widths), 6), math.nan)
    now = gaussian(seed + 1, len(widths), 6).requires_grad_()
    distance = logit_distance(now, stored, known)
    distance.backward()
    differences = [float(now[i, j].detach() - stored[i, j]) for i, width in enumerate(widths) for j in range(width)]
    count = max(len(differences), 1)
    assert distance.item() == pytest.approx(sum(d * d for d in differences) / count, rel=1e-5)
    torch.testing.assert_close(now.grad[known], torch.tensor(differences) * 2 / count)
    assert (now.grad[~known] == 0).all()


def test_nothing_known_is_a_zero_with_zero_gradient():
    now = gaussian(4, 3, 5).requires_grad_()
    distance = logit_distance(now, torch.full((3, 5), math.nan), torch.zeros(3, 5, dtype=torch.bool))
    distance.backward()
    assert distance.item() == 0
    assert (now.grad == 0).all()


def test_stored_logits_get_no_gradient_and_half_precision_does_not_overflow():
    stored = torch.tensor([[-300.0, 0.0]], dtype=torch.float16, requires_grad=True)
    now = torch.tensor([[300.0, 0.0]], dtype=torch.float16, requires_grad=True)
    distance = logit_distance(now, stored, prefix([2], 2))
    distance.backward()
    assert distance.item() == 180_000
    assert now.grad.tolist() == [[600, 0]]
    assert stored.grad is None
