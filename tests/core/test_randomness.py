import itertools

import numpy as np
import pytest
import torch

from mlcil.core.randomness import Stream, derive_seed, generator_from_torch


def test_the_seeds_of_a_run_never_change():
    # Stored values: a change of these makes every published number irreproducible.
    assert derive_seed(Stream.WEIGHTS, 0) == 7896617691693857887
    assert derive_seed(Stream.STEP, 2**31 - 1, 10, 19, 1000, 7) == 1730904057278182997


def test_torch_and_numpy_take_it():
    for seed in range(200):
        derived = derive_seed(Stream.WEIGHTS, seed)
        assert 0 <= derived < 2**63
        torch.Generator().manual_seed(derived)
        np.random.default_rng(derived)


def test_no_two_uses_in_a_run_share_a_seed():
    keys = [(Stream.WEIGHTS, seed) for seed in range(3)]
    sessions = list(itertools.product(range(3), range(1, 6)))
    keys += [(stream, *one) for stream in (Stream.BEFORE_SESSION, Stream.AFTER_SESSION) for one in sessions]
    keys += [(Stream.DRAWS, *one, epoch) for one in sessions for epoch in range(5)]
    keys += [(Stream.STEP, *one, *rest) for one in sessions for rest in itertools.product(*map(range, (5, 20, 2)))]
    assert len({derive_seed(*key) for key in keys}) == len(keys)


def test_a_negative_seed_is_a_bug():
    with pytest.raises(ValueError):
        derive_seed(Stream.WEIGHTS, -1)


def numbers(rng):
    return rng.integers(2**60, size=4).tolist()


def test_a_generator_from_torch_follows_torchs_seed():
    torch.manual_seed(5)
    first, second = numbers(generator_from_torch()), numbers(generator_from_torch())
    torch.manual_seed(5)
    assert numbers(generator_from_torch()) == first
    assert numbers(generator_from_torch()) == second != first
    torch.manual_seed(6)
    assert numbers(generator_from_torch()) != first


def test_a_generator_from_torch_costs_one_draw():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    generator_from_torch()
    after = torch.get_rng_state()
    assert not torch.equal(before, after)  # so that two in a row differ
    torch.set_rng_state(before)
    torch.randint(2**62, ())
    assert torch.equal(torch.get_rng_state(), after)  # by a single draw
