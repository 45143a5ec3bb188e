import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlcil.reports.table import (
    Row,
    Spread,
    Table,
    cell_text,
    shorten,
    sort_key,
    spread,
    spreads,
    to_csv,
    to_latex,
    to_markdown,
    to_terminal,
)

HOSTILE = Table(
    "k",
    "A 100% title\n\\input{x}",
    "A note.",
    ["[name]", "value"],
    [
        Row([r"a_b & 5% of $6 #1 {x} ~ ^ \end <t> | …", Spread(82.14, 0.44)]),
        Row(["*\nstar", None]),
    ],
)


def test_values_over_seeds_have_a_mean_and_a_sample_deviation():
    assert spread([None, 81.0, 83.0]) == Spread(82.0, pytest.approx(2**0.5))
    assert spread([None, 4]) == Spread(4.0, None)
    assert spread([None]) is None
    by_class = spreads([{"ant": 1.0, "bee": None}, {"ant": 3.0, "cat": 5.0}])
    assert by_class == {"ant": Spread(2.0, pytest.approx(2**0.5)), "cat": Spread(5.0, None)}


@pytest.mark.parametrize(
    ("cell", "text", "key"),
    [
        ("a", "a", "a"),
        (None, "-", ""),
        (12, "12", "12.0"),
        (1.25, "1.2", "1.25"),
        (-0.01, "0.0", "-0.01"),
        (Spread(-4.44, 0.5), "-4.4 ± 0.5", "-4.44"),
        (Spread(-0.01, 0.0), "0.0 ± 0.0", "-0.01"),
        (Spread(0.1234, None, decimals=3), "0.123", "0.1234"),
    ],
)
def test_text_and_sort_key_come_from_the_value(cell, text, key):
    assert cell_text(cell) == text
    assert sort_key(cell) == key


def test_columns_without_any_value_can_be_left_out():
    table = Table("k", "t", "", ["a", "b", "c"], [Row([1, None, None]), Row(["x", None, 0])]).without_empty_columns()
    assert (table.headings, [row.cells for row in table.rows]) == (["a", "c"], [[1, None], ["x", 0]])


def test_markdown_has_title_note_and_escaped_cells():
    assert to_markdown(HOSTILE).splitlines()[2:] == [
        "A note.",
        "",
        r"| \[name\] | value |",
        "| --- | ---: |",
        r"| a_b \& 5% of $6 #1 {x} \~ ^ \\end \<t\> \| … | 82.1 ± 0.4 |",
        r"| \* star | - |",
    ]


def test_a_terminal_shows_names_that_look_like_markup():
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(to_terminal(HOSTILE))
    text = capture.get()
    assert text.startswith("A 100% title")
    assert [line.split()[-1] for line in text.splitlines() if "…" in line or "[name]" in line] == ["value", "0.4"]
    assert "82.1 ± 0.4" in text


def test_latex_escapes_every_special_sign():
    assert to_latex(HOSTILE).splitlines() == [
        r"% A 100% title \input{x}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"{[}name{]} & value \\",
        r"\midrule",
        r"a\_b \& 5\% of \$6 \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}end "
        r"\textless{}t\textgreater{} \textbar{} \ldots{} & 82.1 $\pm$ 0.4 \\",
        r"{*} star & - \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@given(st.text("&%$#_{}[]*~^\\<>|±…\n\t\x00a -"))
def test_no_text_can_break_out_of_its_cell_in_latex(text):
    table = Table("k", text, "", ["a", "b"], [Row([text, 1])])
    lines = to_latex(table).splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("% ")
    assert all(line.isprintable() for line in lines)
    bare = re.sub(r"\\(text(backslash|ascii(tilde|circum)|less|greater|bar)\{\}|ldots\{\}|[&%$#_{}])", "", lines[5])
    bare = re.sub(r"\{[\[\]*]\}|\$\\pm\$", "", bare)
    assert bare.endswith(r" & 1 \\")
    assert not set(r"&%$#_{}~^\[*") & set(bare.removesuffix(r" & 1 \\"))


def test_csv_has_plain_numbers_and_a_column_for_deviations():
    table = Table(
        "k",
        "t",
        "",
        ["name", "last", "published", "runs"],
        [
            Row(['a, "b"', Spread(82.123456, 0.25), 70.2, 4]),
            Row(["c", Spread(-0.00001, None), None, 5]),
            Row(["d", 1.5, None, 6]),
        ],
    )
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["name", "last", "last deviation", "published", "runs"],
        ['a, "b"', "82.1235", "0.25", "70.2", "4"],
        ["c", "0.0", "", "", "5"],
        ["d", "1.5", "", "", "6"],
    ]


def test_long_lists_are_shortened():
    assert shorten(["ant", "bee"]) == "ant, bee"
    assert shorten([f"class {i}" for i in range(40)]) == "class 0, class 1 +38"
    assert len(shorten(["x" * 90, "y"])) < 40


def test_no_cell_of_the_csv_is_a_formula():
    table = Table("k", "t", "", ["@name", "value"], [Row(["=1+1", -1.5]), Row(["-", None])])
    assert to_csv(table) == "'@name,value\n'=1+1,-1.5\n'-,\n"
