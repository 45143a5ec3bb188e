import sys

import pytest

from mlcil.core.errors import UserError
from mlcil.data.table import read_table

ROWS = "path,split,dog,cat\na.jpg,train,1,0\nb.jpg,test,,TRUE\nc.jpg,trainval,-1,1.0\nd.jpg,val,false,0\n"


def write(folder, text, name="table.csv"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_column_per_class(tmp_path):
    data = read_table(write(tmp_path, ROWS))
    assert data.train.classes == data.test.classes == ("cat", "dog")
    assert data.train.paths == (str(tmp_path / "a.jpg"), str(tmp_path / "c.jpg"))
    assert data.train.labels.tolist() == [[0, 1], [1, -1]]
    assert data.test.labels.tolist() == [[1, -1], [0, 0]]
    assert (data.train.split, data.test.split) == ("train", "test")


def test_a_column_of_labels(tmp_path):
    text = "\ufeffFile,Tags,set,note\nx/a.jpg, dog ;cat;dog,train,hello\nb.jpg,,test,\n"
    data = read_table(write(tmp_path, text), images=tmp_path / "photographs")
    assert data.train.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [[1, 1]]
    assert data.test.labels.tolist() == [[0, 0]]
    assert data.train.paths == (str(tmp_path / "photographs" / "x" / "a.jpg"),)


def test_named_columns(tmp_path):
    text = "path,where,what,part\nno,a.jpg,cat,train\nno,b.jpg,dog,test\n"
    data = read_table(write(tmp_path, text), path="where", labels="what", split="part")
    assert data.train.paths == (str(tmp_path / "a.jpg"),)
    assert data.train.classes == ("cat", "dog")


def test_absolute_paths_stay(tmp_path):
    text = f"path,labels,split\n{tmp_path}/a.jpg,cat,train\nb.jpg,cat,test\n"
    assert read_table(write(tmp_path, text), images=tmp_path / "x").train.paths == (str(tmp_path / "a.jpg"),)


def many(count, every=1):
    return "path,labels\n" + "".join(f"{number}.jpg,cat\n" for number in range(0, count, every))


def test_the_split_by_hash_is_stable(tmp_path):
    whole = read_table(write(tmp_path, many(2000)), test_fraction=0.3)
    half = read_table(write(tmp_path, many(2000, every=2)), test_fraction=0.3)
    assert set(half.test.paths) == set(whole.test.paths) & set(half.train.paths + half.test.paths)
    assert 0.27 < len(whole.test) / 2000 < 0.33
    # Stored: the same images on every machine and in every version.
    assert [path.rsplit("/")[-1] for path in whole.test.paths[:5]] == [
        "0.jpg",
        "1.jpg",
        "5.jpg",
        "14.jpg",
        "19.jpg",
    ]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"image": ["a.jpg", "b.jpg"], "split": ["train", "test"]}
    classes = {"dog": [1.0, None], "cat": [True, False], "owl": [float("nan"), 1.0], "cow": [0, -1]}
    parquet.write_table(pyarrow.table(columns | classes), tmp_path / "a.parquet")
    data = read_table(tmp_path / "a.parquet")
    assert data.train.classes == ("cat", "cow", "dog", "owl")
    assert data.train.labels.tolist() == [[1, 0, 1, -1]]
    assert data.test.labels.tolist() == [[0, -1, -1, 1]]
    parquet.write_table(pyarrow.table(columns | {"tags": [["cat", "dog"], []]}), tmp_path / "b.parquet")
    assert read_table(tmp_path / "b.parquet").train.labels.tolist() == [[1, 1]]


def test_broken_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match="is not a Parquet file"):
        read_table(write(tmp_path, "hello", "a.parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"mlcil\[parquet\]"):
        read_table(write(tmp_path, "", "a.parquet"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("path,cat\n", "is empty"),
        ("photo,cat\na.jpg,1\n", "has no path column; expected one of path, file, filename, image"),
        ("path,cat\na.jpg,1\n ,1\n", "row 3: the image path is empty"),
        (
            "path,cat\na.jpg,1\n\nb.jpg,2\n",
            "row 4: got '2' in column 'cat', expected 1, 0, true, false, -1 or",
        ),
        ("path,split\na.jpg,train\nb.jpg,test\n", "has no labels"),
        ("path,cat,dog\na.jpg,0,\n", "has no labels"),
        ("path,labels\na.jpg,\n", "has no labels"),
        (
            "path,cat,split\na.jpg,1,train\nb.jpg,1,tset\n",
            "row 3: got 'tset' in column 'split', expected one of",
        ),
        ("path,cat\na.jpg,1\n./a.jpg,0\n", "row 3: './a.jpg' already stands in row 2"),
        ("path,cat,split\na.jpg,1,train\n", "has no test images"),
        ("path,cat,split\na.jpg,1,test\n", "has no train images"),
        ("path,cat\na.jpg\n", "row 2: got 1 cells, expected 2"),
        ("path,cat,cat\na.jpg,1,1\n", "two columns named 'cat'"),
        (",path,cat\n0,a.jpg,1\n", "column 1 has no name"),
        ("path,cat\na.jpg,1\x00\n", "row 2: got|is not a CSV file"),
    ],
)
def test_mistakes_name_their_place(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read_table(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["path", "labels", "split"])
def test_unknown_columns(tmp_path, option):
    with pytest.raises(UserError, match="'catt', did you mean 'cat'"):
        read_table(write(tmp_path, ROWS), **{option: "catt"})


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_fraction_out_of_range(tmp_path, fraction):
    with pytest.raises(UserError, match="for test_fraction, expected a number between 0 and 1"):
        read_table(write(tmp_path, many(10)), test_fraction=fraction)


def test_files_that_are_not_tables(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_table(tmp_path / "gone.csv")
    with pytest.raises(UserError, match=r"must end in .csv or .parquet"):
        read_table(write(tmp_path, ROWS, "table.xlsx"))
    (tmp_path / "latin.csv").write_bytes("path,caf\xe9\na.jpg,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="is not a CSV file in UTF-8"):
        read_table(tmp_path / "latin.csv")
