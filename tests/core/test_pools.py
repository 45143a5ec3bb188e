"""Work on many items: everything once, whatever becomes of the processes."""

from functools import partial

import pytest

from mlcil.core.errors import UserError
from mlcil.core.pools import LocalPool, make_pool

from ..workers import Square, no_work

EXPECTED = [(place, place * place) for place in range(9)]


def test_every_item_is_done_once_though_a_process_is_killed(tmp_path):
    mark = tmp_path / "killed"
    assert sorted(LocalPool(2).map(partial(Square, 3, mark), range(9))) == EXPECTED
    assert mark.exists()
    assert list(LocalPool(2).map(Square, [])) == []


def test_what_kills_every_process_is_given_up():
    with pytest.raises(UserError, match=r"^the work on one of 3 parts has ended its process 3 times; .*--jobs"):
        list(LocalPool(2).map(partial(Square, deadly=0), range(3)))


@pytest.mark.parametrize(
    ("make", "message"), [(partial(Square, wrong=2), "2 is wrong"), (no_work, "there is nothing to work with")]
)
def test_a_mistake_is_told_as_it_is(make, message):
    with pytest.raises(UserError, match=message):
        list(LocalPool(2).map(make, range(5)))


def test_one_process_needs_no_pool_and_an_unknown_engine_is_named():
    assert make_pool("local", 1) is None
    assert isinstance(make_pool("local", 3), LocalPool)
    with pytest.raises(UserError, match=r"unknown engine 'rya'"):
        make_pool("rya", 2)
