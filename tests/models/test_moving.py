"""Sums that move with the features: exact where the features change linearly, honest where they do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.models.ledger import Ledger
from mlcil.models.moving import Move, fit_move, moved
from mlcil.models.sums import DescribedImages, Sums, packed, unpacked

RANDOM, MOVED, STILL = 5, 3, 4  # features of each kind


def features(count, seed=0):
    """(n, d): random features, those that move, those that stay, and 1."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, RANDOM + MOVED + STILL, generator=generator, dtype=torch.float64)
    return torch.cat([values, torch.ones(count, 1, dtype=torch.float64)], dim=1)


def summed(z, labels):
    return Sums.of(z, labels, lambda part: part, z.shape[1])


def changed(z, change):
    new = z.clone()
    new[:, RANDOM : RANDOM + MOVED] += z[:, RANDOM:] @ change
    return new


@settings(deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 30))
def test_sums_move_as_their_images_do(seed, count):
    z, labels = features(count, seed), np.random.default_rng(seed).integers(0, 2, (count, 2))
    change = torch.randn(MOVED + STILL + 1, MOVED, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    move = Move(change, torch.zeros(MOVED, MOVED, dtype=torch.float64), 1.0)
    before, after = summed(z, labels), summed(changed(z, change), labels)
    torch.testing.assert_close(move.gram(before.gram, before.width), after.gram)
    torch.testing.assert_close(move.cross(before.cross), after.cross)


def test_what_the_map_does_not_explain_counts_as_spread():
    z, noise = features(2000), 0.7
    sure = summed(z, np.zeros((2000, 1), np.int8))
    generator = torch.Generator().manual_seed(1)
    shaken = z.clone()
    shaken[:, RANDOM : RANDOM + MOVED] += noise * torch.randn(2000, MOVED, generator=generator, dtype=torch.float64)
    move = fit_move(z[:, RANDOM:-1], shaken[:, RANDOM : RANDOM + MOVED])
    found = unpacked(move.gram(sure.gram, sure.width), sure.width) / 2000
    expected = unpacked(summed(shaken, np.zeros((2000, 1), np.int8)).gram, sure.width) / 2000
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    assert move.noise.diagonal().numpy() == pytest.approx(noise**2, rel=0.1)
    assert move.explained == pytest.approx(1 / (1 + noise**2), abs=0.03)


@pytest.mark.parametrize("count", [1, 2, 5, 12, 50])
def test_few_images_do_not_look_certain(count):
    found = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        before = torch.randn(count, 40, generator=generator)
        after = before[:, :20] + 0.5 * torch.randn(count, 20, generator=generator)
        found.append(float(fit_move(before, after).noise.diagonal().mean()))
    assert 0.2 < np.mean(found) < 0.6  # 0.25 in truth


def test_a_linear_change_is_found():
    z = features(4000)
    change = 0.3 * torch.randn(
        MOVED + STILL + 1, MOVED, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    move = fit_move(z[:, RANDOM:-1], changed(z, change)[:, RANDOM : RANDOM + MOVED])
    torch.testing.assert_close(move.change, change, rtol=0, atol=0.03)
    assert move.explained > 0.99


@pytest.mark.parametrize("count", [2, 5, 300])
def test_features_that_did_not_change_stay_to_the_bit(count):
    z = features(count)
    before = summed(z, np.ones((count, 1), np.int8))
    move = fit_move(z[:, RANDOM:-1], z[:, RANDOM : RANDOM + MOVED])
    assert torch.equal(move.gram(before.gram, before.width), before.gram)
    assert torch.equal(move.cross(before.cross), before.cross)
    assert move.explained == 1


def test_a_ledger_moves_as_a_whole():
    z, labels = features(12), np.random.default_rng(0).integers(0, 2, (12, 2)).astype(np.int8)
    change = torch.randn(MOVED + STILL + 1, MOVED, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    move = Move(change, torch.zeros(MOVED, MOVED, dtype=torch.float64), 1.0)
    prints = np.arange(12, dtype=np.int64)

    def learned(values, then=lambda ledger: ledger):
        ledger = Ledger(values.shape[1], "old", ("a", "b"))
        for number, part in ((1, slice(0, 8)), (2, slice(4, 12))):  # some come back
            images = DescribedImages(lambda places, part=part: values[part][places], lambda one: one, values.shape[1])
            ledger = ledger.with_step(number, prints[part], labels[part], images)
        return then(ledger)

    found = learned(z, lambda ledger: moved(ledger, move, "new"))
    expected = learned(changed(z, change)).sums()
    assert found.features == "new"
    assert len(found.grams) == 1
    torch.testing.assert_close(found.sums().gram, expected.gram)
    torch.testing.assert_close(found.sums().cross, expected.cross)
    assert np.array_equal(found.labels_now(), learned(z).labels_now())


def test_packing_is_undone():
    matrix = torch.randn(6, 6, dtype=torch.float64)
    assert torch.equal(unpacked(packed(matrix), 6), matrix.tril())
