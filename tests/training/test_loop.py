"""How a step is divided among processes and micro-batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlcil.training.micro_batches import MicroBatch, divide


def parts_of(batch: int, draw: int, world: int, size: int | None) -> list[list[MicroBatch]]:
    """The parts of a step in each process; the draws are numbered from 1000."""
    draws = (1000 + np.arange(draw),) if draw else ()
    return [divide(np.arange(batch), draws, rank, world, size) for rank in range(world)]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 5), st.none() | st.integers(1, 9))
def test_images_count_once_and_processes_keep_in_step(batch: int, draw: int, world: int, size: int | None) -> None:
    processes = parts_of(batch, draw, world, size)
    assert len({len(parts) for parts in processes}) == 1
    flat = [part for parts in processes for part in parts]
    counted = [part for part in flat if part.weight]
    assert sorted(np.concatenate([part.positions for part in counted])) == list(range(batch))
    # The mean over processes of the weighted means is the mean over the batch.
    for part in counted:
        assert part.weight / world == pytest.approx(len(part.positions) / batch)
    assert sum(part.weight for part in flat) == pytest.approx(world)
    assert all(len(part.positions) <= (size or batch) for part in flat)
    assert all(len(part.positions) and all(len(one) for one in part.draws) for part in flat)
    drawn = {int(row) for part in flat for one in part.draws for row in one}
    assert drawn == {1000 + row for row in range(draw)}


def test_draws_are_divided_like_the_batch() -> None:
    one, two = parts_of(8, 8, 2, 2)
    assert [part.positions.tolist() for part in one] == [[0, 2], [4, 6]]
    assert [part.draws[0].tolist() for part in two] == [[1001, 1003], [1005, 1007]]
