"""The asymmetric loss against reference numbers and against a second, literal implementation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.losses.asymmetric import asymmetric_loss, asymmetric_terms

LOGITS = [[2.0, -1.0, 0.0, -4.0, 3.0]]
LABELS = torch.tensor([[1, 0, 0, 0, 0]], dtype=torch.int8)
TERMS = [0.126928, 0.000568, 0.024515, 0.0, 1.545391]
GRADIENT = [-0.119203, 0.000578, 0.018639, 0.0, 0.307731]


def literal(logit, label):
    """One term of the published formula and its derivative, the focusing weight held constant."""
    p = 1 / (1 + math.exp(-logit))
    if label == 1:
        return -math.log(p), p - 1
    if label == 0:
        shifted = max(p - 0.05, 0.0)
        weight = shifted**4
        slope = p * (1 - p) / (1 - shifted) if shifted > 0 else 0.0
        return -weight * math.log(1 - shifted), weight * slope
    return 0.0, 0.0


def value_and_gradient(logits, labels):
    logits = torch.as_tensor(logits).requires_grad_()
    terms = asymmetric_terms(logits, labels)
    terms.sum().backward()
    return terms.detach(), logits.grad


def test_reference_values():
    terms, _ = value_and_gradient(torch.tensor(LOGITS, dtype=torch.float64), LABELS)
    assert terms[0].tolist() == pytest.approx(TERMS, abs=1e-6)
    assert asymmetric_loss(torch.tensor(LOGITS), LABELS).tolist() == pytest.approx([1.697401], abs=2e-6)


def test_reference_gradient():
    _, gradient = value_and_gradient(torch.tensor(LOGITS, dtype=torch.float64), LABELS)
    assert gradient[0].tolist() == pytest.approx(GRADIENT, abs=1e-6)


def test_the_loss_is_one_number_per_image():
    logits = torch.tensor(LOGITS * 3) * torch.tensor([[1.0], [0.5], [2.0]])
    loss = asymmetric_loss(logits, LABELS.expand(3, -1))
    assert loss.shape == (3,)
    assert torch.equal(loss, asymmetric_terms(logits, LABELS.expand(3, -1)).sum(1))


@given(
    rows=st.lists(
        st.tuples(st.floats(-7, 7), st.sampled_from([-1, 0, 1])).filter(lambda row: abs(row[0] + 2.944) > 1e-3),
        min_size=1,
        max_size=12,
    ),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_equal_to_the_literal_formula(rows):
    logits = torch.tensor([[logit for logit, _ in rows]], dtype=torch.float32)
    labels = torch.tensor([[label for _, label in rows]], dtype=torch.int8)
    terms, gradient = value_and_gradient(logits, labels)
    expected = [literal(z, y) for z, y in zip(logits[0].tolist(), labels[0].tolist(), strict=True)]
    np.testing.assert_allclose(terms[0], [value for value, _ in expected], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient[0], [slope for _, slope in expected], rtol=1e-4, atol=1e-6)


def test_unknown_labels_contribute_nothing():
    logits = torch.tensor([[-100.0, -3.0, 0.0, 3.0, 100.0]])
    terms, gradient = value_and_gradient(logits, torch.full((1, 5), -1, dtype=torch.int8))
    assert (terms == 0).all()
    assert (gradient == 0).all()


def test_a_negative_below_the_clip_costs_nothing():
    chance = torch.tensor([[0.0499, 0.01, 1e-6, 0.0501]])
    terms, gradient = value_and_gradient(torch.logit(chance), torch.zeros(1, 4, dtype=torch.int8))
    assert (terms[0, :3] == 0).all()
    assert (gradient[0, :3] == 0).all()
    assert terms[0, 3] > 0
    assert gradient[0, 3] > 0


@pytest.mark.parametrize("label", [-1, 0, 1])
def test_finite_at_extreme_logits(label):
    logits = torch.tensor([[-1e4, -200.0, -88.0, 88.0, 200.0, 1e4]])
    terms, gradient = value_and_gradient(logits, torch.full((1, 6), label, dtype=torch.int8))
    assert terms.isfinite().all()
    assert gradient.isfinite().all()
    if label >= 0:
        assert terms.max() > 2  # a confident mistake still costs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reduced_precision_is_computed_in_float32(dtype):
    logits = torch.tensor([[20.0, -20.0, 1.0]], dtype=dtype)
    labels = torch.tensor([[0, 1, 0]], dtype=torch.int8)
    terms = asymmetric_terms(logits, labels)
    assert terms.dtype == torch.float32
    assert torch.equal(terms, asymmetric_terms(logits.float(), labels))
