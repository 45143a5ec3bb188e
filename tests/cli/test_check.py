import csv
import os
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from mlcil.cli.app import app


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def write_table(folder, rows):
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "labels", "split"], *rows])
    return str(folder / "labels.csv")


def photo(folder, name, colour, size=(80, 70)):
    Image.new("RGB", size, colour).save(folder / name)
    return name


@pytest.fixture
def sound(tmp_path):
    """A table without faults: twelve photos of each of two classes and four that show neither, in both parts."""
    rows = []
    for split in ("train", "test"):
        for number, label in enumerate(["cat"] * 12 + ["dog"] * 12 + [""] * 4):
            name = photo(tmp_path, f"{split}-{number}.png", (number, len(split), 9))
            rows.append([name, label, split])
    return rows


def check(*words):
    return CliRunner().invoke(app, ["check", *words])


def test_sound_data_have_nothing_to_fix(tmp_path, sound):
    result = check(write_table(tmp_path, sound), "--protocol", "cat|dog")
    assert result.exit_code == 0, result.output
    assert "56 images (28 to train, 28 to test), 2 classes" in result.output
    assert "1.0 labels per labelled image; 8 images have no label" in result.output
    assert "files: 56 PNG; all 80 x 70 pixels" in result.output
    assert "nothing to fix" in result.output
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines()]
    assert ["cat", "12", "16", "0", "12", "16", "0"] in cells
    assert ["1", "cat", "16", "4", "16"] in cells
    assert ["2", "dog", "16", "4", "28"] in cells


def test_names_that_are_not_text_are_escaped(tmp_path, sound):
    write_table(tmp_path, [*sound, ["gone.png", "cat", "train"]])
    folder = tmp_path.parent / os.fsdecode(b"caf\xe9")
    tmp_path.rename(folder)
    done = subprocess.run(
        [sys.executable, "-m", "mlcil", "check", str(folder / "labels.csv")],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert f"reading {tmp_path.parent}/caf\\udce9/labels.csv" in done.stdout
    assert "caf\\udce9/gone.png" in done.stdout


def test_faults_are_named_the_worst_first(tmp_path, sound):
    (tmp_path / "text.png").write_text("not an image")
    photo(tmp_path, "again.png", (0, 5, 9))  # as train-0.png
    faults = [["text.png", "cat", "train"], ["gone.png", "dog", "train"], ["again.png", "Dog", "test"]]
    result = check(write_table(tmp_path, sound + faults), "--protocol", "cat|dog")
    assert result.exit_code == 1
    head, _, rest = result.output.partition("fix first")
    assert "look at" not in head
    assert f"1 image cannot be read (not an image): {tmp_path / 'text.png'}" in rest
    assert f"1 image cannot be read (missing): {tmp_path / 'gone.png'}" in rest
    assert "both for testing and for training" in rest
    assert "left out by the protocol: 'Dog' (1 image)" in rest
    assert "'Dog' (1 image)" in rest
    assert rest.index("cannot be read") < rest.index("look at")


def test_without_a_protocol_a_table_is_read_as_learn_reads_it(tmp_path, sound):
    rows = [[name, label, "train"] for name, label, _ in (*sound[:3], [sound[3][0], "dog;-cat", ""])]
    result = check(write_table(tmp_path, rows))
    assert result.exit_code == 0, result.output
    assert "4 images (4 to train, 0 to test), 2 classes" in result.output  # none has to be for testing
    assert "differ" not in result.output  # -cat is no other spelling of cat
    result = check(write_table(tmp_path, [[sound[0][0], "cat;-cat", "train"]]))
    assert "has both the label 'cat' and its denial '-cat'" in str(result.exception)


def test_a_damaged_image_is_found_by_decoding(tmp_path, sound):
    whole = (tmp_path / "train-0.png").read_bytes()
    middle = whole.index(b"IDAT") + 8
    (tmp_path / "train-0.png").write_bytes(whole[:middle] + b"\0\0\0\0" + whole[middle + 4 :])
    table = write_table(tmp_path, sound)
    assert check(table).exit_code == 0
    result = check(table, "--decode")
    assert result.exit_code == 1
    assert f"cannot read image {tmp_path / 'train-0.png'}: damaged" in result.output


def test_a_folder_of_photos_needs_no_table(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            photo(tmp_path / "photos" / name, f"{number}.png", (number, len(name), ord(name[0])))
    result = check(str(tmp_path / "photos"))
    assert result.exit_code == 0, result.output
    assert "40 images" in result.output


def test_a_wrong_kind_of_negatives_is_named(tmp_path, sound):
    result = check(write_table(tmp_path, sound), "--protocol", "cat|dog", "--negatives", "some")
    assert str(result.exception) == "unknown value for negatives 'some'. Allowed: auto, labelled, none"
