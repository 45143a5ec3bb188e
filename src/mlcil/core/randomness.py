"""One seed for a run, from which everything random derives its own."""

from __future__ import annotations

import numpy as np
import torch


def derive_seed(*key: int) -> int:
    """A seed that depends on the whole key, such as (run's seed, session, epoch, step).

    Keys of less than five parts that differ by zeros at the end only give the same seed: count from 1.
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_from_torch() -> np.random.Generator:
    """A numpy generator seeded by torch's global one, for random choices where only that one is seeded."""
    return np.random.default_rng(int(torch.randint(2**62, ()).item()))
