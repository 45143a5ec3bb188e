"""Cells of CSV files that a spreadsheet would compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mlcil.core.csv_cells import guarded, unguarded


@given(some.text() | some.from_regex(r"'{0,3}[=+\-@\t\r].{0,5}", fullmatch=True))
def test_every_text_comes_back_and_none_is_a_formula(text):
    assert unguarded(guarded(text)) == text
    assert not guarded(text).startswith(("=", "+", "-", "@", "\t", "\r"))


@pytest.mark.parametrize("text", ["cat", "it's", "'tis", "a=b", ""])
def test_ordinary_text_stays_as_it_is(text):
    assert guarded(text) == unguarded(text) == text
