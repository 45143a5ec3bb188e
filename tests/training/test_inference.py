import pytest

from mlcil.core.errors import UserError
from mlcil.training.inference import in_all


class SecondOfTwo:
    """A process of two; the first one has this problem."""

    world_size = 2

    def __init__(self, problem):
        self.problem, self.asked = problem, []

    def broadcast(self, value, src):
        self.asked.append(src)
        return self.problem if src == 0 else value


def fail():
    raise UserError("the disk is full")


def test_a_mistake_in_one_process_is_raised_in_all():
    with pytest.raises(UserError, match="no room"):
        in_all(SecondOfTwo("no room"), lambda: 5)
    with pytest.raises(UserError, match="the disk is full"):
        in_all(SecondOfTwo(None), fail)


def test_without_a_mistake_every_process_gets_its_own_result():
    fabric = SecondOfTwo(None)
    assert in_all(fabric, lambda: 5) == 5
    assert fabric.asked == [0, 1]
