"""The tutorial's commands run as they stand, one after another, on photos that fit its tables."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import mlcil
from mlcil.cli import app as cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = re.findall(r"^    (mlcil .*)$", PAGE, re.MULTILINE)
LABELS = ("cat", "dog", "sofa", "chair")  # each is a digit here
SMALL = ["--backbone", "small_conv", "--set", "image_size=32", "--set", "threads=1"]  # no download, and seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photos and the tables that the page talks about."""
    folder, digits, random = tmp_path_factory.mktemp("tutorial"), load_digits(), np.random.default_rng(0)
    (folder / "photos").mkdir()
    shown = []
    for number in range(1, 301):
        pair = random.choice(np.flatnonzero(digits.target < 4), size=2)
        pixels = np.hstack([digits.images[one] for one in pair]) * 16  # (8, 16)
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).resize((32, 32)).convert("RGB")
        picture.save(folder / "photos" / f"{number}.jpg", quality=95)
        shown.append({LABELS[digits.target[one]] for one in pair})

    def write(name, rows):
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([["path", "labels"], *rows])

    def rows(first, stop, names):
        return [[f"photos/{n}.jpg", ";".join(sorted(shown[n - 1] & set(names)))] for n in range(first, stop)]

    wrong = {"photos/7.jpg": "cat", "photos/9.jpg": ""}  # what the page corrects later
    write("first.csv", [[path, wrong.get(path, labels)] for path, labels in rows(1, 201, LABELS[:2])])
    write("more.csv", rows(101, 281, LABELS[2:]))
    write("test.csv", rows(281, 301, LABELS[:2]))
    write("fix.csv", [["photos/7.jpg", "-cat"], ["photos/9.jpg", "dog"]])
    return folder


def test_the_commands_run_in_order(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLCIL_CACHE", str(place / "cache"))
    assert len(COMMANDS) >= 14
    for line in COMMANDS:
        words = shlex.split(line)[1:]
        if "--onnx" in words:
            pytest.importorskip("onnxruntime")
        words += SMALL if words[:2] == ["learn", "first.csv"] else []
        result = CliRunner().invoke(cli.app, words)
        assert result.exit_code == 0, (line, result.output, result.exception)
    assert mlcil.Tagger.load("tagger-2").classes == ("cat", "dog", "chair", "sofa")
    assert mlcil.Tagger.load("tagger-4").classes == ("cat", "dog", "sofa")
    assert Path("mistakes/index.html").exists()
    assert not list(Path("photos").glob("*.xmp"))  # written and taken away again
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    (code, _) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(code.replace("tagger-2", "tagger-7"), {})
    # As if the correction had never been.
    photos = [f"photos/{number}.jpg" for number in range(281, 301)]
    before, after = (mlcil.Tagger.load(name).scores(photos) for name in ("tagger-2", "tagger-5"))
    np.testing.assert_allclose(before, after, atol=1e-6)
    assert np.array_equal(mlcil.Tagger.load("tagger-6").scores(photos), before)
    assert Path("tagger-3/tags.csv").read_text() != Path("tagger-2/tags.csv").read_text()
