import json

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.data.images import Level
from mlcil.data.table import read_table

ROWS = "path,split,dog,cat\na.jpg,train,1,0\nb.jpg,test,,TRUE\nc.jpg,trainval,-1,1.0\nd.jpg,val,false,0\n"


def write(folder, text, name="table.csv"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_column_per_class(tmp_path):
    found = read_table(write(tmp_path, ROWS))
    assert found.classes == ("cat", "dog")
    assert found.paths == tuple(str(tmp_path / f"{name}.jpg") for name in "abcd")
    assert found.labels.tolist() == [[0, 1], [1, -1], [1, -1], [0, 0]]
    assert found.labels.dtype == np.int8
    assert found.parts == ("train", "test", "train", "test")
    assert found.places == ("row 2", "row 3", "row 4", "row 5")
    assert found.arrivals.tolist() == [0, 0, 0, 0]
    assert (found.source, found.findings, found.lists) == (str(tmp_path / "table.csv"), (), False)


def test_a_column_of_labels(tmp_path):
    text = "\ufeffFile,Tags,set,note\nx/a.jpg, dog ;cat;dog,train,hello\nb.jpg,,test,\n"
    found = read_table(write(tmp_path, text), images=tmp_path / "photographs")
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [[1, 1], [0, 0]]
    assert found.paths == tuple(str(tmp_path / "photographs" / name) for name in ("x/a.jpg", "b.jpg"))
    assert found.lists


def test_named_columns(tmp_path):
    text = "path,where,what,part,when\nno,a.jpg,cat,train,2\nno,b.jpg,dog,test,\n"
    found = read_table(write(tmp_path, text), path="where", labels="what", split="part", session="when")
    assert found.paths[0] == str(tmp_path / "a.jpg")
    assert found.classes == ("cat", "dog")
    assert found.parts == ("train", "test")
    assert found.arrivals.tolist() == [2, 0]


@pytest.mark.parametrize("column", ["path", "file", "FileName", "image", "file_name", "Image_Path", "photo"])
def test_usual_names_of_the_path(tmp_path, column):
    assert read_table(write(tmp_path, f"{column},cat\na.jpg,1\n")).classes == ("cat",)


@pytest.mark.parametrize("column", ["labels", "Tags", "label", "tag", "keywords"])
def test_usual_names_of_labels(tmp_path, column):
    assert read_table(write(tmp_path, f"path,{column}\na.jpg,cat;dog\n")).classes == ("cat", "dog")


def test_absolute_and_foreign_paths(tmp_path):
    (tmp_path / "odd\\name.jpg").touch()
    text = f"path,labels\n{tmp_path}/a.jpg,cat\nx\\b.jpg,cat\nodd\\name.jpg,cat\n"
    paths = read_table(write(tmp_path, text)).paths
    assert paths == (str(tmp_path / "a.jpg"), str(tmp_path / "x" / "b.jpg"), str(tmp_path / "odd\\name.jpg"))


def test_paths_beside_a_table_in_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, "path,labels\nphotos/a.jpg,cat\n").relative_to(tmp_path)
    assert read_table(file).paths == ("photos/a.jpg",)


@pytest.mark.parametrize(
    ("separator", "cell"),
    [
        ("comma", '"cat, old dog"'),
        (",", '"cat,old dog,"'),
        ("pipe", "cat|old dog"),
        ("slash", "cat / old dog"),
        ("tab", '"cat\told dog"'),
        ("semicolon", "cat;old dog"),
        ("#", "cat#old dog"),
    ],
)
def test_separators(tmp_path, separator, cell):
    found = read_table(write(tmp_path, f"path,labels\na.jpg,{cell}\n"), separator=separator)
    assert found.classes == ("cat", "old dog")


def test_blanks_as_separators(tmp_path):
    found = read_table(write(tmp_path, "path,labels\na.jpg,cat  dog\n"), separator="blank")
    assert found.classes == ("cat", "dog")


@pytest.mark.parametrize("separator", ["", "commma", "a", "||"])
def test_wrong_separators(tmp_path, separator):
    with pytest.raises(UserError, match=f"got '{separator.replace('|', '.')}' for separator, expected a character or"):
        read_table(write(tmp_path, "path,labels\na.jpg,cat\n"), separator=separator)


def test_sessions(tmp_path):
    text = "path,labels,Session\na.jpg,cat,1\nb.jpg,cat,\nc.jpg,cat,2.0\nd.jpg,cat, 12\n"
    assert read_table(write(tmp_path, text)).arrivals.tolist() == [1, 0, 2, 12]


@pytest.mark.parametrize("cell", ["0", "-1", "1.5", "one", "123456", "nan"])
def test_wrong_sessions(tmp_path, cell):
    text = f"path,labels,session\na.jpg,cat,1\nb.jpg,cat,{cell}\n"
    with pytest.raises(UserError, match=f"row 3: got '{cell}' in column 'session', expected a session from 1"):
        read_table(write(tmp_path, text))


def test_suspicious_labels(tmp_path):
    rows = ['"cat,dog"'] * 3 + ["cat"] * 6 + ["Cat", "traffic light"]
    text = "path,labels\n" + "".join(f"{row}.jpg,{cell}\n" for row, cell in enumerate(rows))
    found = read_table(write(tmp_path, text))
    assert [finding.level for finding in found.findings] == [Level.LOOK, Level.LOOK]
    assert "'Cat' (1 image) and 'cat' (6 images)" in found.findings[0].text
    assert "3 images have the label 'cat,dog'; labels are separated by ';'" in found.findings[1].text


def test_class_columns_in_two_spellings(tmp_path):
    found = read_table(write(tmp_path, "path,Cat,cat\na.jpg,1,0\nb.jpg,1,1\n"))
    assert "'Cat' (2 images) and 'cat' (1 image)" in found.findings[0].text


def test_the_encoding_that_was_taken(tmp_path):
    (tmp_path / "latin.csv").write_bytes("path,labels\na.jpg,caf\xe9\n".encode("cp1252"))
    found = read_table(tmp_path / "latin.csv")
    assert found.classes == ("caf\xe9",)
    assert [finding.level for finding in found.findings] == [Level.NOTE]
    assert "read as Windows-1252" in found.findings[0].text


def test_lists_are_not_split(tmp_path):
    rows = [{"file_name": "a.jpg", "labels": ["salt;pepper", "rock, paper"]}, {"file_name": "b.jpg", "labels": []}]
    found = read_table(write(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl"))
    assert found.classes == ("rock, paper", "salt;pepper")
    assert found.labels.tolist() == [[1, 1], [0, 0]]
    assert found.findings == ()


def test_a_zero_byte_in_a_path(tmp_path):
    with pytest.raises(UserError, match="row 1: got .* which has a zero byte"):
        read_table(write(tmp_path, '{"path": "a\\u0000.jpg", "cat": 1}', "t.jsonl"))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"image": ["a.jpg", "b.jpg"], "split": ["train", "test"], "session": [1.0, None]}
    classes = {"dog": [1.0, None], "cat": [True, False], "owl": [float("nan"), 1.0], "cow": [0, -1]}
    parquet.write_table(pyarrow.table(columns | classes), tmp_path / "a.parquet")
    found = read_table(tmp_path / "a.parquet")
    assert found.classes == ("cat", "cow", "dog", "owl")
    assert found.labels.tolist() == [[1, 0, 1, -1], [0, -1, -1, 1]]
    assert found.arrivals.tolist() == [1, 0]
    parquet.write_table(pyarrow.table(columns | {"tags": [["cat", "dog"], []]}), tmp_path / "b.parquet")
    assert read_table(tmp_path / "b.parquet").labels.tolist() == [[1, 1], [0, 0]]


def test_excel(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["photo", "cat", "dog", "session"], ["a.jpg", 1, None, 2], ["b.jpg", False, 1.0, None]]:
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    found = read_table(tmp_path / "t.xlsx")
    assert found.labels.tolist() == [[1, -1], [0, 1]]
    assert found.arrivals.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (
            "picture,cat\na.jpg,1\n",
            "has no path column among picture, cat; expected one of path, file",
        ),
        ("path,cat\na.jpg,1\n ,1\n", "row 3: the image path is empty"),
        (
            "path,cat\na.jpg,1\n\nb.jpg,2\n",
            "row 4: got '2' in column 'cat', expected 1, 0, true, false, yes, no, x, -1 or nothing; no column is named",
        ),
        ("path,split\na.jpg,train\nb.jpg,test\n", "has no labels"),
        ("path,cat,dog\na.jpg,0,\n", "has no labels"),
        ("path,labels\na.jpg,\n", "has no labels"),
        (
            "path,cat,split\na.jpg,1,train\nb.jpg,1,tset\n",
            "row 3: got 'tset' in column 'split', expected one of",
        ),
        ("path,cat,split\na.jpg,1,\n", "row 2: got '' in column 'split'"),
    ],
)
def test_mistakes_name_their_place(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read_table(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["path", "labels", "split", "session"])
def test_unknown_columns(tmp_path, option):
    with pytest.raises(UserError, match="'catt', did you mean 'cat'"):
        read_table(write(tmp_path, ROWS), **{option: "catt"})


def test_a_fraction_out_of_range(tmp_path):
    with pytest.raises(UserError, match="for test_fraction, expected a number between 0 and 1"):
        read_table(write(tmp_path, "path,labels\na.jpg,cat\n"), test_fraction=1.5)
