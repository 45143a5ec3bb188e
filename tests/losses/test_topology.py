"""The topology-preserving loss: reference number, invariances, and pairs that cannot be correlated."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from mlcil.losses.topology import topology_loss

BEFORE = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
NOW = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def symmetric(seed, size, chance=0.5):
    upper = (torch.rand(size, size, generator=torch.Generator().manual_seed(seed)) < chance).triu(1)
    return upper | upper.T


def rotation(seed, size):
    return torch.linalg.qr(gaussian(seed, size, size))[0]


def literal(now, before, pairs):
    """1 - Pearson's correlation over a list of pairs, in float64."""
    unit = [x.double().numpy() / np.linalg.norm(x.double().numpy(), axis=1, keepdims=True) for x in (now, before)]
    first, second = ([float(x[i] @ x[j]) for i, j in pairs] for x in unit)
    return 1 - np.corrcoef(first, second)[0, 1]


def test_reference_value():
    assert topology_loss(NOW, BEFORE).item() == pytest.approx(1 - 0.884615, abs=1e-6)


@given(seed=st.integers(0, 2**31), size=st.integers(3, 20), width=st.integers(2, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_equal_to_the_correlation_of_the_distinct_pairs(seed, size, width):
    now, before = gaussian(seed, size, width), gaussian(seed + 1, size, width)
    everything = list(itertools.combinations(range(size), 2))
    assert topology_loss(now, before).item() == pytest.approx(literal(now, before, everything), abs=2e-5)
    assert topology_loss(now, before, torch.ones(size, size, dtype=torch.bool)) == topology_loss(now, before)


def test_only_the_wanted_pairs_are_correlated():
    now, before, pairs = gaussian(0, 12, 9), gaussian(1, 12, 9), symmetric(2, 12)
    wanted = pairs.triu(1).nonzero().tolist()
    expected = literal(now, before, wanted)
    assert topology_loss(now, before, pairs).item() == pytest.approx(expected, abs=1e-5)
    with_diagonal = pairs | torch.eye(12, dtype=torch.bool)
    assert topology_loss(now, before, with_diagonal).item() == pytest.approx(expected, abs=1e-5)
    assert abs(expected - topology_loss(now, before).item()) > 0.01


@given(seed=st.integers(0, 2**31), size=st.integers(3, 64), width=st.integers(2, 300), exponent=st.floats(-3, 4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_zero_at_the_first_step(seed, size, width, exponent):
    before = gaussian(seed, size, width) * 10**exponent
    now = before.clone().requires_grad_()
    loss = topology_loss(now, before)
    loss.backward()
    assert abs(loss.item()) <= 1e-6
    assert (now.grad * 10**exponent).abs().max() < 1e-4


@given(seed=st.integers(0, 2**31), exponent=st.floats(-3, 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rotation_and_scale_do_not_matter(seed, exponent):
    now, before = gaussian(seed, 10, 16), gaussian(seed + 1, 10, 16)
    turned = (before @ rotation(seed + 2, 16)) * 10**exponent
    assert topology_loss(turned, before).item() == pytest.approx(0, abs=2e-5)
    assert topology_loss(now, turned).item() == pytest.approx(topology_loss(now, before).item(), abs=2e-5)


def nothing_connected(size):
    return torch.zeros(size, size, dtype=torch.bool)


def one_pair(size):
    pairs = nothing_connected(size)
    pairs[0, 1] = pairs[1, 0] = True
    return pairs


@pytest.mark.parametrize(
    ("now", "before", "pairs"),
    [
        (gaussian(5, 1, 4), gaussian(6, 1, 4), None),
        (gaussian(5, 2, 4), gaussian(6, 2, 4), None),
        (gaussian(5, 0, 4), gaussian(6, 0, 4), None),
        (gaussian(5, 6, 4), gaussian(6, 6, 4), nothing_connected(6)),
        (gaussian(5, 6, 4), gaussian(6, 6, 4), one_pair(6)),
        (gaussian(5, 6, 4), gaussian(6, 6, 4), torch.eye(6, dtype=torch.bool)),
        (gaussian(5, 6, 4), gaussian(6, 1, 4).expand(6, 4), None),
        (gaussian(5, 1, 700).repeat(6, 1), gaussian(6, 6, 4), None),
        (torch.zeros(6, 4), gaussian(6, 6, 4), None),
    ],
    ids=[
        "one image",
        "one pair",
        "no image",
        "no pair wanted",
        "one pair wanted",
        "diagonal only",
        "constant before",
        "constant now",
        "zeros now",
    ],
)
def test_an_undefined_correlation_is_a_zero_with_zero_gradient(now, before, pairs):
    now = now.clone().requires_grad_()
    loss = topology_loss(now, before, pairs)
    loss.backward()
    assert loss.item() == 0
    assert (now.grad == 0).all()


def test_a_zero_feature_keeps_the_gradient_finite():
    now = gaussian(7, 6, 4)
    now[2] = 0
    now.requires_grad_()
    loss = topology_loss(now, gaussian(8, 6, 4))
    loss.backward()
    assert loss.isfinite()
    assert now.grad.isfinite().all()


def test_only_the_current_features_get_a_gradient_and_it_is_the_slope():
    now, before = gaussian(9, 6, 5).double().requires_grad_(), gaussian(10, 6, 5).requires_grad_()
    pairs = symmetric(11, 6, chance=0.7)
    assert gradcheck(lambda x: topology_loss(x, before, pairs), (now,), eps=1e-3, atol=2e-3)
    topology_loss(now, before).backward()
    assert (now.grad != 0).all()
    assert before.grad is None


def test_autocast_does_not_coarsen_the_similarities():
    now, before = gaussian(12, 32, 64), gaussian(13, 32, 64)
    with torch.autocast("cpu", torch.bfloat16):
        loss = topology_loss(now, before)
    assert torch.equal(loss, topology_loss(now, before))
