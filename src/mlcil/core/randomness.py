"""One seed for a run, from which everything random derives a stream of its own."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What random numbers are for. No use can disturb another, and a resumed run meets the same numbers again."""

    DRAWS = 1  # which exemplars are drawn beside the batches of an epoch
    AFTER_SESSION = 2  # what a method draws when a session ends
    SET_ASIDE = 3  # which images are set aside for calibration
    WEIGHTS = 4  # the model's weights before the first session
    BEFORE_SESSION = 5  # what a method draws when a session begins
    SHUFFLE = 6  # the order of the images in an epoch
    STEP = 7  # dropout and the like within a training step


def stream_key(
    stream: Stream, seed: int, session: int = 0, epoch: int = 0, step: int = 0, process: int = 0
) -> tuple[int, ...]:
    """The numbers that a stream is seeded with; sessions count from 1, epochs, steps and processes from 0.

    Published numbers depend on these keys: numpy gives other random numbers for a key with a zero more or less.
    """
    if stream is Stream.WEIGHTS:
        return (seed,)
    if stream is Stream.BEFORE_SESSION:
        return seed, session
    if stream is Stream.SHUFFLE:
        return seed, session, epoch
    if stream is Stream.STEP:
        return seed, session, epoch, step, process
    return seed, session, epoch, 0, 0, stream.value


def derive_seed(stream: Stream, seed: int, session: int = 0, epoch: int = 0, step: int = 0, process: int = 0) -> int:
    """A seed for torch or numpy; arguments as for `stream_key`."""
    key = stream_key(stream, seed, session, epoch, step, process)
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_from_torch() -> np.random.Generator:
    """A numpy generator seeded by torch's global one, for random choices where only that one is seeded."""
    import torch  # here: readers of data need the streams and start without torch

    return np.random.default_rng(int(torch.randint(2**62, ()).item()))
