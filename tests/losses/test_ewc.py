"""The penalty of elastic weight consolidation: reference number, its minimum and what it leaves free."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.losses.ewc import ewc_penalty


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(seed):
    return {"body": gaussian(seed, 4, 3, 3), "head": gaussian(seed + 1, 5, 4), "bias": gaussian(seed + 2, 5)}


def trainable(parameters):
    return {name: value.clone().requires_grad_() for name, value in parameters.items()}


def test_reference_value_has_no_half():
    anchors = {"w": torch.tensor([5.0, -3.0])}
    parameters = {"w": torch.tensor([5.1, -3.2])}
    assert ewc_penalty(parameters, anchors, {"w": torch.tensor([1.0, 4.0])}).item() == pytest.approx(0.17, abs=1e-6)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_value_and_gradient_are_those_of_the_quadratic(seed):
    parameters, anchors = trainable(network(seed)), network(seed + 3)
    fisher = {name: value.square() for name, value in network(seed + 6).items()}
    penalty = ewc_penalty(parameters, anchors, fisher)
    penalty.backward()
    moved = {name: parameters[name].detach().double() - anchors[name].double() for name in fisher}
    expected = sum(float((fisher[name].double() * moved[name] ** 2).sum()) for name in fisher)
    assert penalty.shape == ()
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, (2 * fisher[name] * moved[name]).float())


def test_zero_with_zero_gradient_at_the_anchor():
    parameters = trainable(network(0))
    penalty = ewc_penalty(parameters, network(0), {name: value.exp() for name, value in network(9).items()})
    penalty.backward()
    assert penalty.item() == 0
    assert all((parameter.grad == 0).all() for parameter in parameters.values())


def test_parameters_without_an_entry_are_free():
    parameters, anchors = trainable(network(0)), network(5)
    ewc_penalty(parameters, anchors, {"head": torch.ones(5, 4)}).backward()
    assert parameters["head"].grad is not None
    assert parameters["body"].grad is None
    assert parameters["bias"].grad is None
