import pytest
from hypothesis import given
from hypothesis import strategies as some

from mlcil.core.errors import UserError
from mlcil.data.class_lists import parse, quoted

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


def test_quoted():
    assert [quoted(name) for name in ("traffic light", "a,b", 'x"y', " z")] == [
        "traffic light",
        '"a,b"',
        '"x""y"',
        '" z"',
    ]


@given(some.lists(some.lists(NAMES, min_size=1), min_size=1))
def test_parse_reverses_quoted(lists):
    assert parse("|".join(",".join(map(quoted, names)) for names in lists)) == lists
