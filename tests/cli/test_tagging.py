"""The commands of people with photos, from the table to tags in files, and one clear line for each mistake."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from mlcil.cli.app import app
from mlcil.core.errors import UserError
from mlcil.serving.tagger import Tagger

from ..serving.conftest import write_rows
from ..serving.lessons import assert_same, photos_of, teach

NEW = ["--backbone", "small_conv", "--set", "image_size=32", "--set", "threads=1"]
KRT = [
    *("--method", "krt", "--backbone", "small_conv", "--set", "image_size=16", "--set", "epochs=2"),
    *("--set", "batch_size=4", "--set", "width=16", "--set", "heads=4", "--set", "threads=1"),
]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "200")
        yield


def call(*words, says="", **options):
    """Run a command that works; returns what it printed."""
    result = CliRunner().invoke(app, list(map(str, words)), **options)
    assert result.exit_code == 0, (result.output, result.exception)
    assert says in result.output
    return result.output


def failure(*words, **options):
    """Run a command that a person got wrong; returns its only line."""
    result = CliRunner().invoke(app, list(map(str, words)), **options)
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def files_in(folder):
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


def test_learn_learn_more_and_predict(digit_tagger, digit_tables, tmp_path):
    first = tmp_path / "first"
    said = call("learn", digit_tables / "a.csv", "--out", first, *NEW)
    assert "plan: learn from 80 photos\n" in said
    assert "measured on 80 photos of a.csv, cross-validated" in said
    assert f"saved {first}" in said
    some = photos_of(digit_tables, range(30))
    assert_same(Tagger.load(first), Tagger.load(digit_tagger), some)
    said = call(
        "learn", digit_tables / "b.csv", "--from", first, "--out", tmp_path / "second", "--rename", "digit 0=zero"
    )
    assert "plan: learn from 80 photos, 20 of them seen before\n" in said
    assert "the 2 labels that it knew before: AP " in said
    assert Tagger.load(tmp_path / "second").classes == ("zero", "digit 1", "digit 2", "digit 3")
    assert files_in(tmp_path) & {"first", "second", ".second.learning"} == {"first", "second"}
    call("learn", "--from", first, "--rename", "digit 1=one", "--out", tmp_path / "renamed")
    assert Tagger.load(tmp_path / "renamed").classes == ("digit 0", "one")


def test_labels_images_and_check_may_be_given(digit_tagger, digit_tables, tmp_path):
    table = shutil.copy(digit_tables / "b.csv", tmp_path / "elsewhere.csv")
    known = ("--from", digit_tagger, "--images", digit_tables, "--labels", '"digit 3"')
    said = call("learn", table, *known, "--out", tmp_path / "new")
    assert Tagger.load(tmp_path / "new").classes == ("digit 0", "digit 1", "digit 3")
    assert "an estimate from what it said" in said
    check = ("--check", shutil.copy(digit_tables / "c.csv", tmp_path / "c.csv"))
    call("learn", table, *known, *check, "--out", tmp_path / "other", says="measured on 60 photos of c.csv")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.csv", *NEW], "table gone.csv does not exist or is not a file"),
        (["TABLES/a.csv", "--from", "gone"], "gone does not exist; expected the folder of a tagger or of a run"),
        (["TABLES/a.csv", "--method", "krtt"], "unknown method 'krtt', did you mean 'krt'?"),
        (["TABLES/a.csv", *NEW, "--set", "epoch=1"], "unknown key for method analytic 'epoch', did you mean 'epochs'?"),
        (["TABLES/a.csv", "--weights", "/gone/w.safetensors"], "weight file /gone/w.safetensors does not exist"),
        (["TABLES/a.csv", *NEW, "--labels", "digit 7"], "unknown class 'digit 7', did you mean"),
        (["TABLES/b.csv", "--from", "TAGGER", "--rename", "cat=dog"], "unknown label 'cat'. Allowed: digit 0, digit 1"),
        (["TABLES/b.csv", "--from", "TAGGER", "--rename", "cat"], "got 'cat', expected NAME=VALUE"),
        (["--from", "TAGGER"], "nothing to learn: give a table, or --rename OLD=NEW"),
        (["--rename", "a=b"], "--rename needs --from, the tagger whose labels are to be renamed"),
        (
            ["TABLES/b.csv", "--from", "TAGGER", "--method", "krt"],
            "this tagger has method analytic, which stays as it is",
        ),
        (["TABLES/b.csv", "--from", "TAGGER", "--check", "gone.csv"], "table gone.csv does not exist"),
    ],
)
def test_what_cannot_be_learned_is_one_line_and_leaves_nothing(words, message, digit_tables, digit_tagger, tmp_path):
    places = {"TABLES": str(digit_tables), "TAGGER": str(digit_tagger)}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    assert failure("learn", *words, "--out", tmp_path / "new").startswith(message)
    assert not files_in(tmp_path)


def test_a_place_that_is_taken_is_said_before_the_work(digit_tables, digit_tagger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    for out in (".", "..", tmp_path, digit_tagger, "link"):
        for words in (
            ("learn", "gone.csv", "--out", out),
            ("forget", "gone", "--label", "x", "--out", out),
            ("merge", "gone", "gone", "--out", out),
        ):
            assert failure(*words).startswith(f"{out} exists already; choose another --out")
    assert files_in(tmp_path) == {"link"}


def test_a_run_becomes_a_tagger(tmp_path):
    from mlcil.training.config import make_config
    from mlcil.training.run import run

    from ..tiny import settings

    run(make_config(settings("ft", epochs=1)), tmp_path / "run")
    call("tagger", tmp_path / "run", "--out", tmp_path / "last")
    call("tagger", tmp_path / "run", "--out", tmp_path / "first", "--session", "1", "--slim")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    for name, session in (("last", 3), ("first", 1)):
        made, of_run = Tagger.load(tmp_path / name), Tagger.load(tmp_path / "run", session)
        assert np.array_equal(made.scores(pixels), of_run.scores(pixels))
    message = failure("learn", "gone.csv", "--from", tmp_path / "first", "--out", tmp_path / "new")
    assert "was saved slim, without what further learning needs" in message


def test_forget_merge_thresholds_and_inspect(digit_tagger, digit_tables, tmp_path):
    tagger = Tagger.load(digit_tagger)
    second = teach(tagger, digit_tables / "b.csv").save(tmp_path / "second")
    call("forget", second, "--label", "digit 0", "--step", 2, "--out", tmp_path / "less", says="1 label")
    assert Tagger.load(tmp_path / "less").classes == ("digit 1",)
    call("merge", digit_tagger, second, "--out", tmp_path / "both", says="4 labels")
    assert_same(Tagger.load(tmp_path / "both"), Tagger.load(second), photos_of(digit_tables, range(20)), 1e-5)
    said = call("thresholds", digit_tagger, "--set", "digit 1=0.25", "--out", tmp_path / "chosen")
    assert [line.split("│")[1:4] for line in said.splitlines() if "chosen " in line and "│" in line] == [
        [" digit 1 ", " 0.2500    ", " chosen           "]
    ]
    assert Tagger.load(tmp_path / "chosen").thresholds[1] == 0.25
    assert "give --out FOLDER" in failure("thresholds", digit_tagger, "--set", "digit 1=0.25")
    message = failure("thresholds", digit_tagger, "--set", "digit 1=x", "--out", tmp_path / "no")
    assert message == "got threshold 'x' for 'digit 1', expected a number from 0 to 1, or auto"
    assert "nothing to forget" in failure("forget", second, "--out", tmp_path / "no")
    said = call("inspect", second)
    for words in ("analytic on small_conv, 32 pixels", "4 labels", "a.csv", "b.csv", "digit 2, digit 3"):
        assert words in said


def test_a_lesson_that_was_killed_goes_on_to_the_same_tagger(digit_tables, tmp_path):
    table = write_rows(tmp_path / "t.csv", [(digit_tables / f"{i}.png", "x" if i % 3 else "y") for i in range(60)])
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    call("learn", table, *KRT, "--out", whole)
    command = [sys.executable, "-m", "mlcil", "learn", table, *KRT, "--out", str(cut)]
    command += ["--set", "checkpoint_seconds=0"]
    progress = tmp_path / ".cut.learning" / "session-01" / "progress.safetensors"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    while not progress.exists():
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not cut.exists()
    call("learn", table, *KRT, "--out", cut, says="going on from")
    assert_same(Tagger.load(cut), Tagger.load(whole), photos_of(digit_tables, range(20)))
    assert not [one for one in files_in(tmp_path) if "learning" in one]
