"""Herding against reference picks and the published algorithm written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.memory.herding import MAX_ITERATIONS, herd

POINTS = np.array([[1, 0], [0, 1], [0.8, 0.6], [0.6, 0.8], [0.9, 0.1]], np.float32)


def literal(features, count):
    """The algorithm with its vector w, one step at a time."""
    points = features.astype(np.float64)
    points = points / (np.linalg.norm(points, axis=1, keepdims=True) + 1e-8)
    mean = points.mean(axis=0)
    w, picks = mean.copy(), []
    for _ in range(MAX_ITERATIONS):
        if len(picks) == min(count, len(points)):
            break
        pick = int(np.argmax(points @ w))
        if pick not in picks:
            picks.append(pick)
        w = w + mean - points[pick]
    return picks


def test_reference_order():
    assert herd(POINTS, 3).tolist() == [2, 4, 1]


def test_lengths_do_not_matter():
    stretched = POINTS * np.array([[1], [7], [0.2], [30], [4]], np.float32)
    assert herd(stretched, 3).tolist() == [2, 4, 1]


@given(
    seed=st.integers(0, 2**31),
    images=st.integers(1, 60),
    channels=st.integers(3, 40),
    count=st.integers(0, 30),
    positive=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_equal_to_the_literal_algorithm(seed, images, channels, count, positive):
    features = np.random.default_rng(seed).normal(size=(images, channels)).astype(np.float32)
    features = np.abs(features) if positive else features
    assert herd(features, count).tolist() == literal(features, count)


@pytest.mark.parametrize("count", [1, 5, 6, 5000])
def test_no_image_twice_and_never_more_than_there_are(count):
    picks = herd(POINTS, count).tolist()
    assert len(picks) == len(set(picks)) <= min(count, len(POINTS))
    assert set(picks) <= set(range(len(POINTS)))


def test_a_longer_list_starts_with_the_shorter_one():
    features = np.random.default_rng(1).normal(size=(80, 16)).astype(np.float32)
    assert herd(features, 40)[:7].tolist() == herd(features, 7).tolist()


def test_all_zero_features_are_no_error():
    assert herd(np.zeros((3, 4), np.float32), 2).tolist() == [0]


def test_nothing_can_be_picked_from_nothing():
    assert herd(np.empty((0, 4), np.float32), 3).tolist() == []
