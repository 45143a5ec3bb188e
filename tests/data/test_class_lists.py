import pytest
from hypothesis import given
from hypothesis import strategies as some

from mlcil.core.errors import UserError
from mlcil.data.class_lists import is_list, parse, quoted

NAMES = some.text(min_size=1).filter(str.strip)


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("cat", [["cat"]]),
        (" cat , traffic light|car,bus ", [["cat", "traffic light"], ["car", "bus"]]),
        ('"a, b"|"c|d" , e', [["a, b"], ["c|d", "e"]]),
        ('"5"" disc",6" disc', [['5" disc', '6" disc']]),
        ('" blanks "', [[" blanks "]]),
    ],
)
def test_what_a_text_means(text, lists):
    assert parse(text) == lists


@pytest.mark.parametrize("text", ["", " ", "cat,", ",cat", "cat||dog", "cat|", '"",cat', '" "'])
def test_empty_names(text):
    with pytest.raises(UserError, match="has an empty class name or session"):
        parse(text)


@pytest.mark.parametrize("text", ['"cat', 'cat,"dog|bus', '"cat"x', '"', '"cat"" '])
def test_open_quotes(text):
    with pytest.raises(UserError, match="has a quote that is not closed"):
        parse(text)


@given(some.lists(some.lists(NAMES, min_size=1), min_size=1))
def test_every_name_can_be_written(lists):
    assert parse("|".join(",".join(map(quoted, names)) for names in lists)) == lists


def test_what_is_a_list():
    assert [is_list(text) for text in ("cat", "B0-C2", "cat,dog", "cat|dog", '"cat"')] == [
        False,
        False,
        True,
        True,
        True,
    ]
