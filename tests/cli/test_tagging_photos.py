"""`mlcil predict`: every way to name photos, every format, and an interruption in the middle."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlcil.cli.app import app
from mlcil.serving import predicted_parts
from mlcil.serving.changing import choose_thresholds
from mlcil.serving.tagger import Tagger

from ..data import oddities
from ..serving.lessons import photos_of
from .test_tagging import call, failure, files_in


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture
def photos(digit_tables, tmp_path):
    """A folder of twelve photos of its own."""
    (tmp_path / "photos").mkdir()
    return [Path(shutil.copy(file, tmp_path / "photos")) for file in photos_of(digit_tables, range(12))]


def rows_of(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("wish", [{}, {"top": 1}, {"threshold": 0.3}, {"precision": 0.9}])
def test_predictions_in_every_format_are_those_of_the_tagger(digit_tagger, photos, tmp_path, wish):
    words = [word for key, value in wish.items() for word in (f"--{key}", str(value))]
    expected = Tagger.load(digit_tagger).predict(sorted(map(str, photos)), **wish)
    call("predict", digit_tagger, photos[0].parent, "--out", tmp_path / "p.jsonl", *words, says="12 photos")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == [one.image for one in expected]
    assert [line["tags"] for line in lines] == [[tag._asdict() for tag in one.tags] for one in expected]
    call("predict", digit_tagger, photos[0].parent, "--out", tmp_path / "p.csv", *words)
    given = [(row["image"], row["tag"]) for row in rows_of(tmp_path / "p.csv")]
    assert given == [(one.image, name) for one in expected for name in one.names or ("",)]
    assert not [one for one in files_in(tmp_path) if "journal" in one]


def test_photos_may_be_named_in_any_way(digit_tagger, photos):
    expected = call("predict", digit_tagger, *sorted(photos))
    assert expected.count("\n") == 12
    assert f"{photos[0]}: " in expected
    assert call("predict", digit_tagger, photos[0].parent) == expected
    assert call("predict", digit_tagger, photos[0].parent / "*.png") == expected
    listed = "\n".join(map(str, sorted(photos)))
    assert call("predict", digit_tagger, "-", input=listed) == expected


def test_what_cannot_be_read_is_named_and_the_rest_is_tagged(digit_tagger, tmp_path):
    files = oddities.make(tmp_path / "odd")
    names = "\n".join(map(str, files.values()))
    result = CliRunner().invoke(app, ["predict", str(digit_tagger), "-", "--out", str(tmp_path / "p.csv")], input=names)
    assert result.exit_code == 1
    bad = {str(files[name]): case.reason for name, case in oddities.CASES.items() if case.reason}
    for file, reason in bad.items():
        assert f"left out: cannot read image {file}: {reason}\n" in result.stderr
    assert result.stderr.count("left out: ") == len(bad)
    assert {row["image"]: row["error"] for row in rows_of(tmp_path / "p.csv") if row["error"]} == bad
    assert {row["image"] for row in rows_of(tmp_path / "p.csv")} == set(map(str, files.values()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.jpg"], "gone.jpg does not exist; expected photos"),
        (["PHOTOS", "--out", "p.txt"], "cannot write predictions to p.txt: its name must end in"),
        (["PHOTOS", "--threshold", "0.5", "--precision", "0.5"], "got both a threshold and a precision"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(words, message, digit_tagger, digit_tables):
    given = [word.replace("PHOTOS", str(digit_tables)) for word in words]
    assert failure("predict", digit_tagger, *given).startswith(message)
    assert failure("predict", digit_tables, digit_tables).endswith("it has no config.json and no config.yaml")


@pytest.fixture
def scored(monkeypatch):
    """The photos that are read to be scored, in parts of four; a number in `end` ends the command after so many."""
    state = {"photos": [], "end": None}
    square, tag = Tagger.square, predicted_parts.TagPart.__call__

    def seen(self, photo):
        state["photos"].append(photo)
        return square(self, photo)

    def cut(self, photos, show):
        tag(self, photos, show)
        state["done"] = state.get("done", 0) + 1
        if state["done"] == state["end"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tagger, "square", seen)
    monkeypatch.setattr(predicted_parts, "PART", 4)
    monkeypatch.setattr(predicted_parts.TagPart, "__call__", cut)
    return state


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_an_interrupted_prediction_goes_on_to_the_same_bytes(digit_tagger, photos, tmp_path, scored, format):
    photos[1].write_text("no image")
    command = ["predict", str(digit_tagger), *map(str, photos), "--out"]
    whole, cut = tmp_path / f"whole.{format}", tmp_path / f"cut.{format}"
    assert CliRunner().invoke(app, [*command, str(whole)]).exit_code == 1
    scored |= {"end": 1, "done": 0}
    assert CliRunner().invoke(app, [*command, str(cut)]).exit_code == 130
    assert not cut.exists()
    scored |= {"end": None, "photos": []}
    result = CliRunner().invoke(app, [*command, str(cut)])
    assert result.exit_code == 1
    assert "going on: 4 photos of 12 were tagged before" in result.stderr
    assert f"cannot read image {photos[1]}: not an image" in result.stderr  # it was named before, and is again
    # The threads of the interrupted command may have read ahead a little longer, so a photo may stand there twice.
    assert set(scored["photos"]) == {str(photo) for photo in photos[4:]}
    assert cut.read_bytes() == whole.read_bytes()
    assert not (tmp_path / f".cut.{format}.parts").exists()


@pytest.mark.parametrize("other", ["tagger", "wish"])
def test_another_tagger_or_wish_starts_over(digit_tagger, photos, tmp_path, scored, other):
    command = ["predict", str(digit_tagger), *map(str, photos), "--out", str(tmp_path / "p.csv")]
    scored |= {"end": 1, "done": 0}
    assert CliRunner().invoke(app, command).exit_code == 130
    scored |= {"end": None, "photos": []}
    if other == "wish":
        command += ["--top", "1"]
    else:  # its model card is the same to the letter
        tagger = Tagger.load(digit_tagger)
        nearly = choose_thresholds(tagger, {"digit 0": float(tagger.thresholds[0]) + 1e-9})
        command[1] = str(nearly.save(tmp_path / "nearly"))
    call(*command)
    assert set(scored["photos"]) == set(map(str, photos))


def subjects(photo):
    sidecar = Path(f"{photo}.xmp")
    parts = sidecar.read_text().split("<rdf:li>")[1:] if sidecar.exists() else []
    return {part.split("<")[0] for part in parts}


def test_tags_go_into_sidecars_and_out_again(digit_tagger, photos):
    folder = photos[0].parent
    before = files_in(folder)
    photos[3].write_text("no image")
    result = CliRunner().invoke(app, ["predict", str(digit_tagger), str(folder), "--xmp"])
    assert result.exit_code == 1  # because of one photo; the others have their tags all the same
    expected = Tagger.load(digit_tagger).predict([photo for photo in photos if photo != photos[3]])
    for one in expected:
        assert set(one.names) <= subjects(one.image)
        assert Path(f"{one.image}.xmp").exists() == bool(one.tags)
    assert f"{sum(bool(one.tags) for one in expected)} sidecars changed" in result.output
    call("predict", digit_tagger, folder, "--xmp-remove")
    assert files_in(folder) == before


def test_a_sidecar_that_is_broken_is_named_and_stays(digit_tagger, photos):
    (photo,) = [one.image for one in Tagger.load(digit_tagger).predict(photos) if one.tags][:1]
    sidecar = Path(f"{photo}.xmp")
    sidecar.write_text("<broken")
    result = CliRunner().invoke(app, ["predict", str(digit_tagger), *map(str, photos), "--xmp", "--adobe-names"])
    assert result.exit_code == 1
    assert f"left out: the sidecar of {photo}: " in result.stderr
    assert sidecar.read_text() == "<broken"
    assert list(Path(photo).parent.glob("*.xmp")) != [sidecar]
