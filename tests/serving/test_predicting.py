"""Tags of photos in whatever form they come, and of many photos, some of which cannot be read."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.serving import predicted_parts
from mlcil.serving.changing import choose_thresholds
from mlcil.serving.predicting import Outcome, Wish, as_record, score_photos, score_readable, tag_photos
from mlcil.serving.predictions import Prediction, Tag
from mlcil.serving.tagger import Tagger

from ..data import oddities
from .lessons import photos_of

SQUARE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
GREY = SQUARE[..., 0]


@pytest.fixture(scope="module")
def tagger(digit_tagger):
    return Tagger.load(digit_tagger)


@pytest.fixture(scope="module")
def photos(digit_tables):
    return [str(file) for file in photos_of(digit_tables, range(20))]


def as_rgb(grey):
    return np.repeat(np.asarray(grey, np.uint8)[..., None], 3, axis=-1)


OPAQUE = np.full((32, 32, 1), 255, np.uint8)
FORMS = {  # what is given, and what is seen
    "RGB": (Image.fromarray(SQUARE), SQUARE),
    "L": (Image.fromarray(GREY), as_rgb(GREY)),
    "opaque RGBA": (Image.fromarray(np.dstack([SQUARE, OPAQUE])), SQUARE),
    "clear RGBA": (Image.fromarray(np.dstack([SQUARE, OPAQUE * 0])), np.full_like(SQUARE, 255)),
    "I;16": (Image.fromarray(GREY.astype(np.uint16) * 257), as_rgb(GREY)),
    "P": (Image.fromarray(GREY).convert("P"), as_rgb(GREY)),
    "1": (Image.fromarray(GREY > 99), as_rgb((GREY > 99) * 255)),
    "CMYK": (Image.new("CMYK", (32, 32), (0, 255, 255, 0)), np.full_like(SQUARE, [255, 0, 0])),
    "bytes": (SQUARE, SQUARE),
    "bytes (1, H, W, 3)": (SQUARE[None], SQUARE),
    "bytes (H, W)": (GREY, as_rgb(GREY)),
    "bytes (H, W, 1)": (GREY[..., None], as_rgb(GREY)),
    "bytes (H, W, 4)": (np.dstack([SQUARE, OPAQUE]), SQUARE),
    "float64": (SQUARE / 255, SQUARE),
    "float32": ((SQUARE / 255).astype(np.float32), SQUARE),
    "bool": (GREY > 99, as_rgb((GREY > 99) * 255)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_may_have_any_form(tagger, form):
    given, seen = FORMS[form]
    (found,) = tagger.predict(given, top=2)
    (expected,) = tagger.predict(Image.fromarray(seen), top=2)
    assert found == expected
    assert found.image == "image 0"


@pytest.mark.parametrize(
    "array",
    [
        *(
            np.zeros((3, 4), np.int64),
            np.zeros((4, 4, 2), np.uint8),
            np.zeros(5, np.uint8),
            np.zeros((0, 4, 3), np.uint8),
        ),
        *(np.full((4, 4), value) for value in (1.5, -0.1, np.nan)),
    ],
)
def test_what_is_no_picture_is_said(tagger, array):
    with pytest.raises(UserError, match=r"^got an array of \w+ \([\d, ]*\), expected an image \(H, W\), "):
        tagger.predict([array])


def test_one_or_many_pictures_are_named_by_file_or_place(tagger, photos, digit_tables):
    mixed = [photos[0], digit_tables / "1.png", Image.open(photos[2]), np.asarray(Image.open(photos[3]))]
    assert [one.image for one in tagger.predict(mixed)] == [photos[0], photos[1], "image 2", "image 3"]
    assert tagger.predict(iter(photos)) == tagger.predict(tuple(photos)) == tagger.predict(photos)
    assert [one.tags for one in tagger.predict(mixed, top=2)] == [one.tags for one in tagger.predict(photos[:4], top=2)]
    assert tagger.predict([]) == []
    with pytest.raises(UserError, match=r"gone\.png: missing"):
        tagger.predict(["gone.png"])


def test_tags_are_those_above_their_thresholds_the_most_probable_first(tagger, photos):
    scores = tagger.scores(photos)
    wishes = {
        (): tagger.thresholds,
        ("threshold", 0.3): np.full(2, 0.3),
        ("precision", 0.95): tagger.thresholds_for(precision=0.95),
    }
    for wish, thresholds in wishes.items():
        found = tagger.predict(photos, **dict([wish] if wish else []))
        assert 0 < sum(len(one.tags) for one in found) < scores.size
        for row, one in zip(scores, found, strict=True):
            kept = sorted((k for k in range(2) if row[k] > thresholds[k]), key=lambda k: -row[k])
            assert one.tags == tuple(Tag(tagger.classes[k], row[k], row[k], thresholds[k]) for k in kept)
    for count in (1, 2, 9):
        assert {len(one.tags) for one in tagger.predict(photos, top=count)} == {min(count, 2)}


def test_a_person_may_have_chosen_thresholds(tagger, photos):
    strict = choose_thresholds(tagger, {"digit 0": 1.0})
    assert "digit 0" in {name for one in tagger.predict(photos) for name in one.names}
    assert "digit 0" not in {name for one in strict.predict(photos) for name in one.names}


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"threshold": 0.5, "precision": 0.5}, "got both a threshold and a precision"),
        ({"threshold": 1.5}, "got 1.5 for threshold, expected 0 to 1"),
        ({"precision": -1}, "got -1 for precision, expected 0 to 1"),
    ],
)
def test_wishes_that_cannot_be_met(tagger, wish, message):
    with pytest.raises(UserError, match=message):
        tagger.predict(SQUARE, **wish)


def test_rows_are_plain_values_for_a_table(tagger, photos):
    rows = [row for one in tagger.predict(photos, top=2) for row in one.rows()]
    assert len(rows) == 40
    assert list(rows[0]) == ["image", "name", "score", "probability", "threshold"]
    assert {type(value) for row in rows for value in row.values()} == {str, float}


def test_a_tagger_says_what_it_is(tagger):
    words = "Tagger of 2 labels (digit 0, digit 1): analytic on small_conv, learned in 1 step, from"
    assert repr(tagger) == f"{words} {tagger.path}"
    assert repr(replace(tagger, path=None)) == f"{words} memory"


def test_many_photos_are_tagged_like_few(tagger, photos, tmp_path):
    small = replace(tagger, config=replace(tagger.config, settings=replace(tagger.config.settings, batch_size=8)))
    (tmp_path / "broken.jpg").write_text("no image")
    given, shown = [*photos[:5], str(tmp_path / "broken.jpg"), "gone.jpg", *photos[5:]], []
    found = list(tag_photos(small, given, Wish(top=1), lambda *numbers: shown.append(numbers)))
    assert [one.prediction.image for one in found] == given
    assert [one.error for one in found[5:7]] == ["not an image", "missing"]
    assert [one.prediction.names for one in found if one.error is None] == [
        one.names for one in tagger.predict(photos, top=1)
    ]
    assert shown == [(16, 22), (22, 22)]
    readable = score_readable(small, given)
    assert readable.places.tolist() == [*range(5), *range(7, 22)]
    assert readable.scores.shape == (20, 2)
    assert len(readable.bad) == 2


def test_odd_files_have_tags_or_a_reason(tagger, tmp_path):
    files = oddities.make(tmp_path / "odd")
    found = tag_photos(tagger, [str(path) for path in files.values()], Wish())
    assert {name: one.error for name, one in zip(files, found, strict=True)} == {
        name: case.reason for name, case in oddities.CASES.items()
    }


def outcome(name, error=None):
    return Outcome(Prediction(name, () if error else (Tag("x", 0.1 + 0.2, 0.3, 0.5),)), error)


def test_parts_keep_what_was_done(tagger, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(predicted_parts, "PART", 6)
    gone = str(tmp_path / "caf\udce9\n\u2028.jpg")
    given, out, shown = [*photos[:5], gone, *photos[5:]], tmp_path / "new" / "out.csv", []
    parts = predicted_parts.Parts(out, "me")
    parts.fill(given[:12], lambda: tagger, Wish(), None, lambda done, total: shown.append((done, total)))
    assert shown == [(6, 12), (12, 12)]
    again = predicted_parts.Parts(out, "me")
    assert again.left(given[::-1]) == given[:11:-1]
    again.fill(again.left(given), lambda: tagger, Wish(), None, lambda done, total: None)
    expected = {one.prediction.image: one for one in tag_photos(tagger, given, Wish())}
    for order in (given, given[::-1]):
        assert list(again.outcomes(order)) == [expected[photo] for photo in order]
    assert expected[gone].error == "missing"
    assert predicted_parts.Parts(out, "another").left(given) == given
    again.close()
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("damage", ['{"image": "b', '{"image": "b.jpg"}', "[]", "\x00\x00", "7"])
def test_a_damaged_part_is_done_again(tagger, photos, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(predicted_parts, "PART", 6)
    parts = predicted_parts.Parts(tmp_path / "out.csv", "me")
    parts.fill(photos[:12], lambda: tagger, Wish(), None, lambda done, total: None)
    file = sorted(parts.folder.glob("*.jsonl"))[0]
    if damage.isdigit():  # another digit of a score
        place = file.read_bytes().rindex(damage.encode())
        file.write_bytes(file.read_bytes()[:place] + b"8" + file.read_bytes()[place + 1 :])
    else:
        with file.open("a") as stream:
            stream.write(damage)
    assert len(predicted_parts.Parts(tmp_path / "out.csv", "me").left(photos[:12])) == 6


def test_tags_do_not_depend_on_what_goes_with_a_photo(tagger, photos):
    whole = list(score_photos(tagger, photos))
    for chosen in ([3], [7, 3, 19], range(19, -1, -1)):
        found = list(score_photos(tagger, [photos[place] for place in chosen]))
        assert np.array_equal(found, [whole[place] for place in chosen])


def test_an_outcome_may_be_empty_but_says_so():
    assert as_record(outcome("a.jpg", "missing")) == {"image": "a.jpg", "tags": [], "error": "missing"}
