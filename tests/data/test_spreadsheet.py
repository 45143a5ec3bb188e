import datetime
import json
import sys

import pytest

from mlcil.core.errors import UserError
from mlcil.data.spreadsheet import is_table, read_sheet

KNOWN = ("path", "file")


def sheet(folder, text, name="t.csv"):
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return read_sheet(folder / name, KNOWN)


def columns(found):
    return {name: found.cells(name) for name in found.columns}


@pytest.mark.parametrize(
    "text",
    [
        "path,labels\na.jpg,cat;dog\nb.jpg,\n",
        "\ufeffpath,labels\r\na.jpg,cat;dog\r\nb.jpg,\r\n",
        '"path","labels"\n"a.jpg","cat;dog"\n"b.jpg",""\n',
        'path;labels\na.jpg;"cat;dog"\nb.jpg;\n',
        "path\tlabels\na.jpg\tcat;dog\nb.jpg\t\n",
        "path|labels\na.jpg|cat;dog\nb.jpg|\n",
        'sep=;\npath;labels\na.jpg;"cat;dog"\nb.jpg;\n',
        "sep=,\r\npath,labels\r\na.jpg,cat;dog\r\nb.jpg,\r\n",
        "path, labels\n a.jpg , cat;dog \nb.jpg,\n",
        "path,labels\ra.jpg,cat;dog\rb.jpg,\r",
        "path,labels,,\na.jpg,cat;dog,,\nb.jpg,,,\n",
        "path,labels\na.jpg,cat;dog,,\nb.jpg,,\n",
        "path,,labels\na.jpg,,cat;dog\nb.jpg,,\n",
    ],
)
def test_dialects(tmp_path, text):
    for name in ("t.csv", "t.tsv", "t.txt", "T.CSV"):
        found = sheet(tmp_path, text, name)
        assert columns(found) == {"path": ["a.jpg", "b.jpg"], "labels": ["cat;dog", ""]}
        assert found.numbers == [2, 3]
        assert found.findings == ()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252"])
def test_what_excel_saves_as_text(tmp_path, encoding):
    content = "path\tlabels\r\na.jpg\tK\xfche;caf\xe9\r\n".encode(encoding)
    assert columns(sheet(tmp_path, content, "t.txt")) == {"path": ["a.jpg"], "labels": ["K\xfche;caf\xe9"]}


def test_the_separator_that_gives_a_known_column(tmp_path):
    assert columns(sheet(tmp_path, "x,y,z;path\n1,2,3;a\n")) == {"x,y,z": ["1,2,3"], "path": ["a"]}
    assert columns(sheet(tmp_path, "x|y,z\n1|2,3\n")) == {"x|y": ["1|2"], "z": ["3"]}


def test_rows_as_a_person_counts_them(tmp_path):
    found = sheet(tmp_path, '\npath,note\n\na.jpg,"two\nlines"\n , \nb.jpg,x\n')
    assert columns(found) == {"path": ["a.jpg", "b.jpg"], "note": ["two\nlines", "x"]}
    assert found.numbers == [4, 6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("path,cat\n\n", "is empty"),
        ("path,cat\na.jpg\n", "row 2: got 1 cells, expected 2"),
        ("path,labels\n\na.jpg,cat,dog\n", "row 3: got 3 cells, expected 2; cells are separated by ',' here"),
        (
            "path;labels\na.jpg;cat;dog\n",
            "row 2: got 3 cells, expected 2; cells are separated by ';' here.* needs quotes",
        ),
        ("path,cat,cat\na.jpg,1,1\n", "two columns named 'cat'"),
        (",path,cat\n0,a.jpg,1\n", "column 1 has no name"),
        ('path,labels\na.jpg,cat\nb.jpg,"dog\nc.jpg,cat\n', "row 3: a quote is not closed"),
        ("path,cat\na.jpg,1\x00\n", "is not a text file"),
    ],
)
def test_mistakes_name_their_place(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        sheet(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "photos"
    for row in [
        ["path", "cat", "dog", "when", None],
        ["a.jpg", 1.0, None, datetime.date(2024, 5, 1), None],
        [None, None, None, None, None],
        ["b.jpg", True, 0, 2.5, None],
    ]:
        book.active.append(row)
    book.create_sheet("other").append(["nothing"])
    book.save(tmp_path / "t.xlsx")
    found = read_sheet(tmp_path / "t.xlsx", KNOWN)
    assert columns(found) == {
        "path": ["a.jpg", "b.jpg"],
        "cat": ["1", "True"],
        "dog": ["", "0"],
        "when": ["2024-05-01 00:00:00", "2.5"],
    }
    assert found.numbers == [2, 4]
    assert "has 2 sheets; only 'photos', the first that is not empty, was read" in found.findings[0].text


def test_excel_without_openpyxl_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"mlcil\[excel\]"):
        sheet(tmp_path, "", "t.xlsx")


def test_broken_excel(tmp_path):
    pytest.importorskip("openpyxl")
    with pytest.raises(UserError, match="is not an Excel workbook") as caught:
        sheet(tmp_path, "hello", "t.xlsx")
    assert "\n" not in str(caught.value)


def test_json_lines(tmp_path):
    entries = [
        {"path": "a.jpg", "labels": ["traffic light", " a;b ", None], "meta": {"x": 1}},
        {"path": "b.jpg", "labels": [], "n": 1.0},
        {"path": "c.jpg", "n": 7},
    ]
    lines = "\n\n".join(json.dumps(entry) for entry in entries)
    found = sheet(tmp_path, lines, "t.jsonl")
    assert found.numbers == [1, 3, 5]
    assert found.cells("labels") == [["traffic light", "a;b"], [], ""]
    assert found.texts("n") == ["", "1", "7"]
    with pytest.raises(UserError, match="row 1: got a structure in column 'meta'"):
        found.cells("meta")
    with pytest.raises(UserError, match="row 1: got a list in column 'labels'"):
        found.texts("labels")


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "row 2: not JSON"), ('{"n": ' + "9" * 5000 + "}", "row 2: not JSON"), ("[1]", "row 2: expected an object")],
)
def test_broken_json_lines(tmp_path, line, message):
    with pytest.raises(UserError, match=message):
        sheet(tmp_path, f'{{"path": "a"}}\n{line}\n', "t.jsonl")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = {"path": ["a", "b"], "n": [1.0, float("nan")], "tags": [["x;y", "z"], None], "yes": [True, None]}
    parquet.write_table(pyarrow.table(values), tmp_path / "t.parquet")
    found = read_sheet(tmp_path / "t.parquet", KNOWN)
    expected = {"path": ["a", "b"], "n": ["1", ""], "tags": [["x;y", "z"], ""], "yes": ["True", ""]}
    assert columns(found) == expected
    assert found.numbers == [1, 2]


def test_broken_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match="is not a Parquet file"):
        sheet(tmp_path, "hello", "a.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"mlcil\[parquet\]"):
        sheet(tmp_path, "", "a.parquet")


def test_codes(tmp_path):
    found = sheet(tmp_path, "path,cat\na,1\nb, Yes \nc,2\n")
    assert found.codes("cat", {"1": 1, "yes": 5, "2": 0}, "") == [1, 5, 0]
    with pytest.raises(UserError, match="row 4: got '2' in column 'cat', expected yes"):
        found.codes("cat", {"1": 1, "yes": 5}, "expected yes")


@pytest.mark.parametrize("name", ["t.xls", "t.ods", "t.numbers"])
def test_other_spreadsheets(tmp_path, name):
    with pytest.raises(UserError, match="save it as .xlsx or .csv"):
        sheet(tmp_path, "x", name)
    assert is_table(tmp_path / name)


def test_files_that_are_not_tables(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_sheet(tmp_path / "gone.csv", KNOWN)
    with pytest.raises(UserError, match=r"must end in .csv, .tsv, .txt, .xlsx, .parquet or .jsonl"):
        sheet(tmp_path, "x", "t.jpg")
    assert not is_table(tmp_path / "t.jpg")


def test_a_stray_cell_far_away_takes_no_memory(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["path", "labels", "note"])
    book.active.append(["a.jpg", "cat"])
    book.active.cell(200_000, 16_384, " ")  # padding all rows to it would take 26 GB
    book.save(tmp_path / "t.xlsx")
    assert columns(read_sheet(tmp_path / "t.xlsx", KNOWN)) == {"path": ["a.jpg"], "labels": ["cat"], "note": [""]}


def test_names_that_look_like_formulas_come_back_from_csv(tmp_path):
    found = sheet(tmp_path, "path,labels\n'-1.jpg,\"'=HYPERLINK(1)\"\n''=a.jpg,'tis\n")
    assert columns(found) == {"path": ["-1.jpg", "'=a.jpg"], "labels": ["=HYPERLINK(1)", "'tis"]}
