import csv
import io
import re
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlcil.reports.cells import (
    Row,
    Seeds,
    Spread,
    Table,
    cell_text,
    figure_text,
    sort_key,
    spread,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6), st.integers(0, 3))
def test_a_spread_is_mean_and_sample_deviation_of_what_is_there(values, missing):
    found = spread([*values, *[None] * missing])
    assert found == Spread(pytest.approx(fmean(values), abs=1e-9), pytest.approx(stdev(values), abs=1e-9), len(values))


def test_one_value_has_no_deviation_and_no_value_no_spread():
    assert spread([None, 4]) == Spread(4.0, None, 1)
    assert spread([None]) is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([82.0, 82.2], "82.1 ± 0.1"),
        ([82.12], "82.1"),
        ([], "-"),
        ([None, None], "-"),
        ([-0.01], "0.0"),
        ([-0.01, -0.01, -0.01], "0.0 ± 0.0"),
        ([-1.26], "-1.3"),
    ],
)
def test_the_text_of_a_figure(values, text):
    assert figure_text(spread(values)) == text


def test_decimals_come_from_the_figure_unless_told():
    figure = Spread(0.12345, 0.02, 2, decimals=3)
    assert cell_text(figure) == "0.123 ± 0.020"
    assert figure_text(figure, 0) == "0 ± 0"


@pytest.mark.parametrize(
    ("cell", "text", "key"),
    [
        ("a", "a", "a"),
        (None, "-", ""),
        (12, "12", 12.0),
        (1.25, "1.2", 1.25),
        (Seeds(3, 3), "3", 3.0),
        (Seeds(2, 3), "2 of 3", 2.0),
        (Spread(-4.44, 0.5, 2), "-4.4 ± 0.5", -4.44),
    ],
)
def test_text_and_sort_key_come_from_the_value(cell, text, key):
    assert cell_text(cell) == text
    assert sort_key(cell) == key
    assert type(sort_key(cell)) is type(key)


HOSTILE = Table(
    "k",
    "A 100% title\n\\input{x}",
    "A note.",
    ["[name]", "value"],
    [
        Row([r"a_b & 5% of $6 #1 {x} ~ ^ \end <t> | …", Spread(82.14, 0.44, 3)]),
        Row(["*\nstar", None]),
    ],
)


def test_markdown_has_title_note_and_escaped_cells():
    assert to_markdown(HOSTILE).splitlines()[3:] == [
        "A note.",
        "",
        "| [name] | value |",
        "| --- | ---: |",
        r"| a_b & 5% of $6 #1 {x} ~ ^ \\end <t> \| … | 82.1 ± 0.4 |",
        "| * star | - |",
    ]


def test_a_terminal_shows_names_that_look_like_markup():
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(to_rich(HOSTILE))
    text = capture.get()
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
        ["name", "last", "seeds", "published", "runs"],
        [
            Row(['a, "b"', Spread(82.123456, 0.25, 3), Seeds(2, 3), 70.2, 4]),
            Row(["c", Spread(-0.00001, None, 1), Seeds(1, 1), None, 5]),
            Row(["d", 1.5, Seeds(0, 1), None, 6]),
        ],
    )
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["name", "last", "last deviation", "seeds", "seeds started", "published", "runs"],
        ['a, "b"', "82.1235", "0.25", "2", "3", "70.2", "4"],
        ["c", "0.0", "", "1", "1", "", "5"],
        ["d", "1.5", "", "0", "1", "", "6"],
    ]
