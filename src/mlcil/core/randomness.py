"""One seed for a run, from which everything random derives its own."""

from __future__ import annotations

import numpy as np


def derive_seed(*key: int) -> int:
    """A seed that depends on the whole key, such as (run's seed, session, epoch, step).

    Keys of less than five parts that differ by zeros at the end only give the same seed: count from 1.
    """
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
