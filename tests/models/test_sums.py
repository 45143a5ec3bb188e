"""The sums of a closed-form learner: over any portions of images, added and taken away."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.models import sums as module
from mlcil.models.sums import DescribedImages, Sums

WIDTH = 4


def expand(described):
    """Features that are no linear map of what is known of an image."""
    return torch.cat([described, described[:, :1] * described[:, 1:2], torch.ones(len(described), 1)], 1)


def made(seed, images=9, classes=2):
    rng = np.random.default_rng(seed)
    described = torch.from_numpy(rng.normal(size=(images, 2)).astype(np.float32))
    return described, rng.random((images, classes)) < 0.5


def assert_same(one, other):
    torch.testing.assert_close(one.gram, other.gram, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.cross, other.cross, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10**6), chunk=st.integers(1, 12))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_they_are_those_of_the_images_whatever_fits_into_memory(seed, chunk):
    described, present = made(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        found = Sums.of(described, present, expand, WIDTH)
    z, y = expand(described).double().numpy(), present.astype(float)
    np.testing.assert_allclose(found.matrix().numpy(), np.tril(z.T @ z), atol=1e-12)
    np.testing.assert_allclose(found.cross.numpy(), z.T @ y, atol=1e-12)
    np.testing.assert_allclose(found.total.numpy(), z.sum(0), atol=1e-12)
    assert found.positives.tolist() == y.sum(0).tolist()
    assert (found.images, found.width) == (9, WIDTH)
    assert found.gram.dtype == found.cross.dtype == torch.float64


@given(seed=st.integers(0, 10**6), split=st.integers(0, 9))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_parts_add_up_and_can_be_taken_away(seed, split):
    described, present = made(seed)
    whole = Sums.of(described, present, expand, WIDTH)
    first = Sums.of(described[:split], present[:split], expand, WIDTH)
    last = Sums.of(described[split:], present[split:], expand, WIDTH)
    assert_same(first + last, whole)
    assert_same(whole - last, first)
    assert_same(Sums.empty(WIDTH, 2) + whole, whole)


def test_columns_in_another_order_and_of_nothing():
    described, present = made(0, classes=3)
    found = Sums.of(described, present, expand, WIDTH).with_columns([2, None, 0])
    expected = np.stack([present[:, 2], np.zeros(9, bool), present[:, 0]], 1)
    assert_same(found, Sums.of(described, expected, expand, WIDTH))
    assert found.with_columns([]).cross.shape == (WIDTH, 0)


def test_shards_are_summed_one_after_another_here_or_elsewhere(monkeypatch):
    monkeypatch.setattr(module, "SHARD", 5)
    described, present = made(0, images=17)
    chosen, seen = np.random.default_rng(0).permutation(17), []

    def describe(places):
        seen.append(len(places))
        return described[places]

    here = DescribedImages(describe, expand, 4)
    found = here.sums(chosen, present[chosen])
    assert seen == [5, 5, 5, 2]  # never more in memory
    assert_same(found, Sums.of(described, present, expand, 4))
    expected = Sums.empty(4, 2)
    for start in range(0, 17, 5):
        part = chosen[start : start + 5]
        expected = expected + Sums.of(described[part], present[part], expand, 4)

    def elsewhere(shards, values):
        return (Sums.of(described[shard], one, expand, 4) for shard, one in zip(shards, values, strict=True))

    for images in (here, replace(here, spread=elsewhere)):
        again = images.sums(chosen, present[chosen])
        assert torch.equal(again.gram, expected.gram)
        assert torch.equal(again.cross, expected.cross)
