"""Pooled output distillation: reference number, a literal version, invariances and safe arithmetic."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from mlcil.losses.pod import pod_spatial

A = torch.arange(1.0, 9.0).reshape(1, 2, 2, 2)
SHAPES = [(3, 4, 8, 6), (3, 6, 4, 3), (3, 9, 1, 2)]


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stage_maps(seed):
    return [gaussian(seed + place, *shape) for place, shape in enumerate(SHAPES)]


def distance(now, before):
    return pod_spatial(now, before, len(now))


def literal(now, before):
    """The published formula on one image of one stage, (C, H, W) lists, in plain arithmetic."""
    vectors = []
    for maps in (now, before):
        rows = [sum(x * x for x in row) for channel in maps for row in channel]
        columns = [sum(x * x for x in column) for channel in maps for column in zip(*channel, strict=True)]
        length = math.sqrt(sum(x * x for x in rows + columns))
        vectors.append([x / length for x in rows + columns])
    return math.dist(*vectors)


def test_reference_value():
    b = A.clone()
    b[0, 0, 0, 0] = 3
    assert distance([A], [b]).tolist() == pytest.approx([0.061752], abs=1e-6)
    assert distance([A], [2 * A]).tolist() == [0]


def test_equal_to_the_literal_formula():
    now, before = stage_maps(0), stage_maps(10)
    loss = distance(now, before)
    expected = [
        sum(literal(a[image].tolist(), b[image].tolist()) for a, b in zip(now, before, strict=True)) / 3
        for image in range(3)
    ]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6)


def test_stages_left_out_count_as_zero():
    now, before = stage_maps(1), stage_maps(11)
    frozen = [before[0], now[1], now[2]]
    torch.testing.assert_close(pod_spatial(now[1:], before[1:], stages=3), distance(frozen, before))
    torch.testing.assert_close(pod_spatial(now[1:], before[1:], stages=4), distance(now[1:], before[1:]) / 2)


@given(
    seed=st.integers(0, 2**31),
    channels=st.integers(1, 9),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    exponent=st.floats(-8, 8),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_identical_maps_are_exactly_zero_with_zero_gradient(seed, channels, height, width, exponent):
    before = gaussian(seed, 2, channels, height, width) * 10**exponent
    now = before.clone().requires_grad_()
    loss = distance([now], [before])
    loss.sum().backward()
    assert loss.tolist() == [0, 0]
    assert (now.grad == 0).all()


@given(seed=st.integers(0, 2**31), ours=st.floats(-8, 15), theirs=st.floats(-8, 15))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_scale_of_either_model_does_not_matter(seed, ours, theirs):
    now, before = stage_maps(seed), stage_maps(seed + 10)
    scaled = distance([a * 10**ours for a in now], [b * 10**theirs for b in before])
    torch.testing.assert_close(scaled, distance(now, before), rtol=0, atol=2e-6)


def test_only_the_first_model_gets_a_gradient_and_it_is_the_slope():
    now = [maps.double().requires_grad_() for maps in stage_maps(4)[1:]]
    before = [maps.requires_grad_() for maps in stage_maps(14)[1:]]
    assert gradcheck(lambda *maps: distance(maps, before), now, eps=1e-3, atol=2e-3)
    distance(now, before).sum().backward()
    assert all((maps.grad != 0).any() for maps in now)
    assert all(maps.grad is None for maps in before)


@pytest.mark.parametrize(("ours", "theirs", "expected"), [(0.0, 0.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
def test_all_zero_maps_keep_value_and_gradient_finite(ours, theirs, expected):
    now = (gaussian(5, 2, 3, 4, 4) * ours).requires_grad_()
    loss = distance([now], [gaussian(6, 2, 3, 4, 4) * theirs])
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert now.grad.isfinite().all()


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1e4), (torch.bfloat16, 1e30), (torch.float16, 1e-4)])
def test_half_precision_neither_overflows_nor_underflows(dtype, scale):
    now, before = gaussian(7, 2, 16, 7, 7).clamp(-4, 4), gaussian(8, 2, 16, 7, 7).clamp(-4, 4)
    halves = (now * scale).to(dtype).requires_grad_()
    loss = distance([halves], [(before * scale).to(dtype)])
    loss.sum().backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, distance([now], [before]), rtol=0.01, atol=0.01)
    assert halves.grad.isfinite().all()
