import csv
import json
import sys

import pytest

from mlcil.core.errors import UserError
from mlcil.data.table import read_table
from mlcil.serving.predicting import Outcome, as_record, outcome_of
from mlcil.serving.prediction_files import check_format, write_predictions
from mlcil.serving.predictions import Prediction, Tag

TAGS = (Tag('a "b", c\nd', 0.123456789, 0.2, 0.1), Tag("🐱", 1.0, 0.75, 0.5))
OUTCOMES = [
    Outcome(Prediction("one, two.jpg", TAGS)),
    Outcome(Prediction("none.jpg", ())),
    Outcome(Prediction("caf\udce9.jpg", ()), "truncated"),
]


def test_csv_has_a_row_for_each_tag_and_for_each_photo_without(tmp_path):
    write_predictions(file := tmp_path / "new" / "p.csv", OUTCOMES)
    with file.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["image", "tag", "score", "probability", "threshold", "error"],
        ["one, two.jpg", 'a "b", c\nd', "0.123457", "0.2", "0.1", ""],
        ["one, two.jpg", "🐱", "1", "0.75", "0.5", ""],
        ["none.jpg", "", "", "", "", ""],
        ["caf\\udce9.jpg", "", "", "", "", "truncated"],
    ]


def test_json_lines_have_a_line_for_each_photo_and_come_back_whole(tmp_path):
    write_predictions(file := tmp_path / "p.JSONL", OUTCOMES)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [outcome_of(record) for record in records] == OUTCOMES
    assert records == [as_record(one) for one in OUTCOMES]
    assert "error" not in records[0]


def test_parquet_has_the_rows_of_the_csv(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_predictions(file := tmp_path / "p.parquet", OUTCOMES)
    rows = parquet.read_table(file).to_pylist()
    assert rows[0] == {"image": "one, two.jpg", "tag": TAGS[0].name, "error": "", **_numbers(TAGS[0])}
    assert rows[2] == {"image": "none.jpg", "tag": "", "error": ""} | dict.fromkeys(_numbers(TAGS[0]))
    assert (len(rows), rows[3]["image"], rows[3]["error"]) == (4, "caf\\udce9.jpg", "truncated")


def _numbers(tag):
    return {"score": tag.score, "probability": tag.probability, "threshold": tag.threshold}


def test_formats_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"p\.txt: its name must end in \.csv, \.jsonl, \.parquet"):
        check_format(tmp_path / "p.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'mlcil\[parquet\]'"):
        check_format(tmp_path / "p.parquet")


def test_no_cell_of_the_csv_is_a_formula_and_a_table_reads_it_back(tmp_path):
    name, tag = "-1 photo.jpg", '=HYPERLINK("http://example.org")'
    write_predictions(file := tmp_path / "p.csv", [Outcome(Prediction(name, (Tag(tag, 0.9, 0.9, 0.5),)))])
    assert file.read_text().splitlines()[1].startswith("'-1 photo.jpg,\"'=HYPERLINK(")
    found = read_table(file)
    assert (found.paths, found.classes) == ((str(tmp_path / name),), (tag,))
