"""Taggers and photos at URLs give what local ones give, in one process and in several."""

import csv
import json
import shutil

import fsspec
import pytest
from typer.testing import CliRunner

import mlcil
from mlcil.cli.app import app
from mlcil.core.errors import UserError
from mlcil.data import decoding
from mlcil.serving.photo_lists import list_photos
from mlcil.serving.tagger import Tagger

from ..serving.conftest import own_cache, write_rows
from ..serving.lessons import assert_same, photos_of
from .test_tagging import call, failure

__all__ = ["own_cache"]


@pytest.fixture(scope="module")
def memory(digit_tagger, digit_tables):
    """The URL of a folder with the tagger, and with all pictures below `photos`."""
    system = fsspec.filesystem("memory")
    for file in digit_tagger.iterdir():
        system.pipe(f"/shared/tagger/{file.name}", file.read_bytes())
    for number in range(200):
        system.pipe(f"/shared/photos/{number}.png", (digit_tables / f"{number}.png").read_bytes())
    yield "memory://shared"
    system.rm("/shared", recursive=True)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_tagger_and_photos_at_urls_give_the_same_tags(digit_tagger, digit_tables, memory, tmp_path):
    call("predict", digit_tagger, *photos_of(digit_tables, range(5)), "--out", tmp_path / "local.jsonl")
    urls = [f"{memory}/photos/{number}.png" for number in range(5)]
    call("predict", f"{memory}/tagger", *urls, "--out", tmp_path / "urls.jsonl")
    local, remote = lines_of(tmp_path / "local.jsonl"), lines_of(tmp_path / "urls.jsonl")
    assert [one["image"] for one in remote] == urls
    assert [one["tags"] for one in remote] == [one["tags"] for one in local]
    assert len(list_photos([f"{memory}/photos"])) == 200
    assert list_photos([f"{memory}/photos/19?.PNG"]) == [f"{memory}/photos/{number}.png" for number in range(190, 200)]


def test_processes_open_urls_by_themselves(digit_tagger, digit_tables, tmp_path):
    (tmp_path / "photos").mkdir()
    for photo in photos_of(digit_tables, range(3)):
        shutil.copy(photo, tmp_path / "photos")
    (tmp_path / "photos" / "bad.png").write_text("no image")
    words = ["--jobs", "2", "--out", str(tmp_path / "p.csv")]
    given = ["predict", f"file://{digit_tagger}", f"file://{tmp_path}/photos", *words]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 1  # because of one photo
    with (tmp_path / "p.csv").open(newline="") as stream:
        found = [(row["image"], row["tag"], row["error"]) for row in csv.DictReader(stream)]
    tags = Tagger.load(digit_tagger).predict([str(tmp_path / "photos" / f"{number}.png") for number in range(3)])
    expected = [(f"file://{one.image}", name, "") for one in tags for name in one.names or ("",)]
    assert found == [*expected, (f"file://{tmp_path}/photos/bad.png", "", "not an image")]


def test_learning_from_urls_is_learning(digit_tagger, digit_tables, memory, tmp_path, monkeypatch):
    read, seen = decoding.read_bytes, []
    monkeypatch.setattr(decoding, "read_bytes", lambda url: seen.append(url) or read(url))
    call("learn", digit_tables / "b.csv", "--from", digit_tagger, "--out", tmp_path / "local")
    assert seen == []
    monkeypatch.setenv("MLCIL_CACHE", str(tmp_path / "cache"))  # where nothing is known yet
    given = ["--from", f"{memory}/tagger", "--images", f"{memory}/photos"]
    call("learn", digit_tables / "b.csv", *given, "--out", tmp_path / "urls")
    assert len(seen) == 2 * len(set(seen)) == 160  # once to know the photo again, and once to decode it
    same = photos_of(digit_tables, range(140, 150))
    assert_same(Tagger.load(tmp_path / "local"), Tagger.load(tmp_path / "urls"), same)


def test_a_table_may_mix_urls_with_paths(digit_tagger, digit_tables, memory, tmp_path):
    with (digit_tables / "c.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    local = [(digit_tables / name, labels) for name, labels in rows]
    mixed = [(f"{memory}/photos/{name}", labels) for name, labels in rows[:30]] + local[30:]
    bad = [(f"{memory}/photos/gone.png", "digit 0")]
    tagger = mlcil.load(f"{memory}/tagger")
    expected = tagger.evaluate(write_rows(tmp_path / "local.csv", local))
    found = tagger.evaluate(write_rows(tmp_path / "mixed.csv", mixed + bad))
    assert found.overall == expected.overall
    assert found.bad == (f"cannot read image {memory}/photos/gone.png: missing",)
    assert tagger.path == f"{memory}/tagger"
    call("inspect", f"{memory}/tagger", says=f"{memory}/tagger: analytic")
    call(
        "explain", f"{memory}/tagger", f"{memory}/photos/0.png", "--out", tmp_path / "x", says=f"{memory}/photos/0.png:"
    )
    assert (tmp_path / "x" / "0-explained.png").exists()


def test_a_damaged_tagger_at_a_url_is_refused(digit_tagger, tmp_path):
    folder = shutil.copytree(digit_tagger, tmp_path / "tagger")
    (folder / "preprocessing.json").write_text("{}")
    with pytest.raises(
        UserError, match=f"^tagger file://{folder} is damaged: preprocessing.json does not have the SHA"
    ):
        Tagger.load(f"file://{folder}")
    (folder / "preprocessing.json").unlink()
    with pytest.raises(UserError, match=f"^tagger file://{folder} is incomplete: preprocessing.json is missing"):
        Tagger.load(f"file://{folder}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "TAGGER", "PHOTO", "--out", "s3://bucket/p.csv"], "cannot write to s3:/bucket/p.csv: expected a"),
        (["learn", "TABLE", "--out", "s3://bucket/tagger"], "cannot write to s3:/bucket/tagger: expected a local path"),
        (["thresholds", "TAGGER", "--precision", "0.5", "--out", "s3://bucket/t"], "cannot write to s3:/bucket/t: "),
        (["predict", "TAGGER", "PHOTO", "--xmp"], "PHOTO is a URL, but XMP sidecars are written beside local photos"),
        (["predict", "TAGGER", "PHOTO", "--xmp-remove"], "PHOTO is a URL, but XMP sidecars are written beside local"),
        (["predict", "TAGGER", "MEMORY/gone.png"], "cannot read MEMORY/gone.png: missing"),
        (["predict", "TAGGER", "MEMORY/*.gif"], "MEMORY/*.gif has no image files"),
        (["predict", "MEMORY/gone", "PHOTO"], "MEMORY/gone is not a tagger: it has no config.json; only taggers"),
        (["tagger", "TAGGER", "--session", "2", "--out", "t"], "TAGGER is a tagger, which has no sessions"),
        (
            ["learn", "MEMORY/a.csv", "--from", "TAGGER"],
            "MEMORY/a.csv is a URL, but only the photos of a table may have one",
        ),
        (["learn", "table:MEMORY/a.csv", "--from", "TAGGER"], "MEMORY/a.csv is a URL, but only the photos"),
        (["evaluate", "TAGGER", "folder:MEMORY/a"], "MEMORY/a is a URL, but only the photos"),
    ],
)
def test_what_urls_cannot_do_is_one_line(words, message, digit_tables, memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"TAGGER": f"{memory}/tagger", "PHOTO": f"{memory}/photos/0.png", "TABLE": str(digit_tables / "a.csv")}
    for name, value in (names | {"MEMORY": memory}).items():
        words, message = [word.replace(name, value) for word in words], message.replace(name, value)
    assert failure(*words).startswith(message)
    assert list(tmp_path.iterdir()) == []
