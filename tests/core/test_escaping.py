"""Text of others in terminals, Markdown and CSV files."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mlcil.core.escaping import csv_line, markdown, printable, unguarded

HOSTILE = some.text() | some.text("a'=+-@\uff1d ;|,\"\t\r\n")
FORMULA = ("=", "+", "-", "@", "\uff1d")


@given(some.lists(HOSTILE, min_size=1))
def test_every_cell_comes_back_and_none_is_a_formula(texts):
    line = csv_line(texts)
    (row,) = csv.reader(io.StringIO(line, newline=""), strict=True) if line != "\n" else [[""]]
    assert [unguarded(cell) for cell in row] == texts
    assert not any(cell.lstrip().startswith(FORMULA) for cell in row)


@given(some.lists(HOSTILE, min_size=1))
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_neither_is_one_for_another_separator(separator, texts):
    rows = csv.reader(io.StringIO(csv_line(["first", *texts]), newline=""), delimiter=separator)
    assert not any(cell.lstrip().startswith(FORMULA) for row in rows for cell in row)


@pytest.mark.parametrize("text", ["cat", "it's", "'tis", "a=b", ""])
def test_ordinary_text_stays_as_it_is(text):
    assert csv_line([text, "x"]) == f"{text},x\n"
    assert unguarded(text) == text


def test_numbers_are_plain():
    assert csv_line([1, -2.5, None, 1 / 3, "-1"]) == "1,-2.5,,0.333333,'-1\n"
    assert csv_line([1 / 3], number=lambda value: f"{value:.1f}") == "0.3\n"


@given(some.text())
def test_nothing_that_is_printed_acts_on_a_terminal(text):
    assert all(one.isprintable() or one in "\u200c\u200d" for one in printable(text))


@pytest.mark.parametrize("text", ["dog", "\u0645\u06cc\u200c\u062e", "\U0001f469\u200d\U0001f52c"])
def test_words_of_any_script_are_printed_as_they_are(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[31mred", "\\x1b[31mred"), ("a\nb", "a\\nb"), ("\u202egnp.exe", "\\u202egnp.exe"), ("\udcff", "\\udcff")],
)
def test_what_acts_is_escaped(text, shown):
    assert printable(text) == shown


def test_markdown_is_shown_as_it_is():
    assert markdown("a_b\n![x](http://y) <script> |`") == r"a_b !\[x\](http://y) \<script\> \|\`"
