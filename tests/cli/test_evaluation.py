import json

import pytest
from typer.testing import CliRunner

from mlcil.cli.app import app
from mlcil.core.errors import UserError
from mlcil.serving.tagger import Tagger

from ..serving.conftest import write_rows


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def evaluate(*words):
    return CliRunner().invoke(app, ["evaluate", *map(str, words)])


def cells_of(output):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines()]


def test_the_figures_are_printed_and_written(digit_tagger, digit_tables, tmp_path):
    result = evaluate(digit_tagger, digit_tables / "c.csv", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    found = Tagger.load(digit_tagger).evaluate(str(digit_tables / "c.csv"))
    assert "2 labels on 60 photos of c.csv" in result.stdout
    for one in found.results:
        figures = [f"{value:.1f}" for value in (one.ap, one.precision, one.recall)]
        counts = [str(one.positives), str(one.negatives)], [str(one.wrong), str(one.missed)]
        assert [one.name, *counts[0], f"{one.threshold:.2f}", *figures, *counts[1]] in cells_of(result.stdout)
    assert f"mean AP {found.overall['mAP']:.1f} over 2 labels\n" in result.stdout
    assert f"{found.overall['precision']:.1f} % of the tags given are right" in result.stdout
    assert f"{found.overall['recall']:.1f} % of the labels on the photos are found" in result.stdout
    assert f"F1 {found.overall['F1']:.1f}" in result.stdout
    assert f"by {found.overall['ECE']:.1f} percent points" in result.stdout
    assert "not measured, as the tagger does not know them: digit 2, digit 3" in result.stdout
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["overall"] == found.overall
    assert (tmp_path / "out" / "index.html").is_file()


def test_paths_may_be_relative_to_another_folder_and_nothing_is_written_unasked(digit_tagger, digit_tables, tmp_path):
    table = write_rows(tmp_path / "t.csv", [("1.png", "digit 0"), ("2.png", "")])
    result = evaluate(digit_tagger, table, "--images", digit_tables)
    assert result.exit_code == 0, result.output
    assert "1 label on 2 photos of t.csv" in result.stdout
    assert "2 of the 2 photos are among those that the tagger learned from" in result.stdout
    assert {one.name for one in tmp_path.iterdir()} <= {"t.csv", "cache"}


def test_a_photo_that_cannot_be_read_is_named_and_is_no_failure(digit_tagger, digit_tables, tmp_path):
    table = write_rows(tmp_path / "t.csv", [(digit_tables / "150.png", "digit 0"), ("gone.png", "digit 1")])
    result = evaluate(digit_tagger, table)
    assert result.exit_code == 0, result.output
    assert f"left out: cannot read image {tmp_path / 'gone.png'}: missing" in result.stderr
    assert "on 1 photo of t.csv" in result.stdout
    assert "mean AP - over 0 labels; the others need photos with and without them" in result.stdout


def test_if_no_photo_can_be_read_the_command_fails_and_writes_nothing(digit_tagger, tmp_path):
    table = write_rows(tmp_path / "t.csv", [("gone.png", "digit 1")])
    result = evaluate(digit_tagger, table, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "gone.png: missing" in result.stderr
    assert "no photo of" in result.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_common_label_there_is_one_line(digit_tagger, digit_tables):
    result = evaluate(digit_tagger, digit_tables / "b.csv")
    assert isinstance(result.exception, UserError)
    assert "has no label that the tagger knows" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_folder_that_is_taken_is_refused_before_the_work(digit_tables, tmp_path):
    result = evaluate(tmp_path / "no tagger", digit_tables / "c.csv", "--out", tmp_path)
    assert isinstance(result.exception, UserError)
    assert "exists already" in str(result.exception)
