import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.data.contents import Contents
from mlcil.data.images import Finding, Level
from mlcil.data.listing import Listing

from .fake_contents import FakeContents


def listing(rows, lists=True, **changes):
    """Rows are path, labels of cat and dog, part and session."""
    paths, labels, parts, arrivals = zip(*rows, strict=True)
    values = {
        "source": "t.csv",
        "paths": paths,
        "labels": np.array(labels, np.int8),
        "classes": ("cat", "dog"),
        "parts": parts,
        "arrivals": np.array(arrivals, np.int16),
        "places": tuple(f"row {row + 2}" for row in range(len(paths))),
        "lists": lists,
    }
    return Listing(**(values | changes))


SAME = {"b.jpg": "one", "x/c.jpg": "one"}  # two names of one photo
LAST = ("z.jpg", (1, 0), "test", 0)


def test_lists_of_one_image_are_united():
    found = listing(
        [("a.jpg", (1, 0), "train", 0), ("b.jpg", (1, 0), "train", 0), LAST, ("x/c.jpg", (0, 1), "train", 0)],
        findings=(Finding(Level.NOTE, "before"),),
    )
    data = found.resolve(FakeContents(content=SAME))
    assert data.train.paths == ("a.jpg", "b.jpg")
    assert data.train.labels.tolist() == [[1, 0], [1, 1]]
    assert data.test.paths == ("z.jpg",)
    assert data.train.digests == tuple(fact.digest for fact in FakeContents(content=SAME).look(["a.jpg", "b.jpg"]))
    assert data.train.arrivals is None
    assert data.test.arrivals is None
    same = "first b.jpg (row 3) and x/c.jpg (row 5);"
    assert data.findings == (
        Finding(Level.NOTE, "before"),
        Finding(Level.NOTE, f"1 image stands more than once in t.csv, {same} each was taken once"),
        Finding(Level.LOOK, f"1 image stands with different labels in t.csv, {same} all of them were taken"),
    )


def test_an_empty_list_against_labels():
    data = listing([("b.jpg", (0, 0), "train", 0), ("x/c.jpg", (0, 1), "train", 0), LAST]).resolve(
        FakeContents(content=SAME)
    )
    assert data.train.labels.tolist() == [[0, 1]]
    assert data.findings[1] == (
        Level.LOOK,
        "1 image stands both without and with labels in t.csv, first b.jpg (row 2) and x/c.jpg (row 3); "
        "the labels were taken",
    )


def test_unlabelled_is_no_contradiction():
    rows = [("b.jpg", (-1, -1), "train", 0), ("x/c.jpg", (0, 1), "train", 0), LAST]
    data = listing(rows).resolve(FakeContents(content=SAME))
    assert data.train.labels.tolist() == [[0, 1]]
    assert [finding.level for finding in data.findings] == [Level.NOTE]


def test_contradictions_of_columns_are_unknown():
    rows = [("b.jpg", (1, -1), "train", 0), ("x/c.jpg", (0, 1), "train", 0), LAST]
    data = listing(rows, lists=False).resolve(FakeContents(content=SAME))
    assert data.train.labels.tolist() == [[-1, 1]]
    assert data.findings[1] == (
        Level.LOOK,
        "1 label is both 1 and 0 in t.csv, first 'cat' of b.jpg (row 2) and x/c.jpg (row 3); taken as unknown",
    )


def test_an_image_is_never_on_both_sides():
    rows = [("b.jpg", (1, 0), "train", 0), ("x/c.jpg", (1, 0), "test", 0), ("a.jpg", (0, 1), "train", 0)]
    data = listing(rows).resolve(FakeContents(content=SAME))
    assert (data.train.paths, data.test.paths) == (("a.jpg",), ("b.jpg",))
    assert data.findings[1] == (
        Level.LOOK,
        "1 image stands both for testing and for training in t.csv, first x/c.jpg (row 3) and b.jpg (row 2); "
        "taken for testing alone",
    )


def test_a_named_part_wins_over_none():
    rows = [("b.jpg", (1, 0), "", 0), ("x/c.jpg", (1, 0), "test", 0), ("a.jpg", (0, 1), "train", 0)]
    data = listing(rows).resolve(FakeContents(content=SAME))
    assert data.test.paths == ("b.jpg",)
    assert len(data.findings) == 1


def test_a_photo_may_come_with_several_sessions():
    rows = [("b.jpg", (1, 0), "train", 3), ("x/c.jpg", (0, 1), "train", 2), ("b.jpg", (1, 0), "train", 0), LAST]
    data = listing([*rows, ("b.jpg", (0, 1), "", 3)]).resolve(FakeContents(content=SAME))
    assert data.train.arrivals.tolist() == [3, 2, 0]
    assert data.train.labels.tolist() == [[1, 1], [0, 1], [1, 0]]
    assert data.train.arrivals.dtype == np.int16
    assert data.test.arrivals.tolist() == [0]


def test_with_all_of_its_sessions_a_photo_is_in_one_part():
    rows = [("b.jpg", (1, 0), "train", 1), ("x/c.jpg", (0, 1), "test", 2), ("a.jpg", (0, 1), "train", 0)]
    data = listing(rows).resolve(FakeContents(content=SAME))
    assert data.test.arrivals.tolist() == [1, 2]
    assert "both for testing and for training" in data.findings[0].text


def test_real_files_by_content(tmp_path):
    from PIL import Image

    (tmp_path / "img").mkdir()
    Image.new("RGB", (4, 4), "red").save(tmp_path / "img" / "a.png")
    Image.new("RGB", (4, 4), "blue").save(tmp_path / "img" / "b.png")
    (tmp_path / "copy.png").write_bytes((tmp_path / "img" / "a.png").read_bytes())
    names = ["img/a.png", "img/../img/a.png", "copy.png", "img/a.png"]
    rows = [(str(tmp_path / name), (1, 0), "train", 0) for name in names]
    data = listing([*rows, (str(tmp_path / "img/b.png"), (0, 1), "test", 0)]).resolve(Contents())
    assert data.train.paths == (str(tmp_path / "img/a.png"),)
    assert len(data.test) == 1


def test_unreadable_files_are_different_images():
    same = {"a.jpg": "", "b.jpg": "", "./a.jpg": ""}
    rows = [(path, (1, 0), "train", 0) for path in ("a.jpg", "b.jpg", "./a.jpg")]
    data = listing([*rows, LAST]).resolve(FakeContents(content=same, broken=tuple(same)))
    assert data.train.paths == ("a.jpg", "b.jpg")


def undecided(names):
    return listing([(name, (1, 0), "", 0) for name in names], test_fraction=0.3)


def test_the_part_follows_the_content():
    names = [f"{number}.jpg" for number in range(2000)]
    whole = undecided(names).resolve(FakeContents())
    half = undecided(names[1::2][::-1]).resolve(FakeContents())
    assert set(half.test.paths) == set(whole.test.paths) & set(names[1::2])
    assert 0.27 < len(whole.test) / 2000 < 0.33
    renamed = FakeContents(content={f"new/{name}": name for name in names})
    moved = undecided([f"new/{name}" for name in names]).resolve(renamed)
    assert moved.test.paths == tuple(f"new/{name}" for name in whole.test.paths)
    # Stored: the same images on every machine and in every version.
    assert whole.test.paths[:5] == ("1.jpg", "4.jpg", "5.jpg", "7.jpg", "8.jpg")


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_images(part):
    other = {"train": "test", "test": "train"}[part]
    with pytest.raises(UserError, match=rf"t.csv has no {part} images; .*test_fraction"):
        listing([("a.jpg", (1, 0), other, 0)]).resolve(FakeContents())


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_fraction_out_of_range(fraction):
    with pytest.raises(UserError, match="for test_fraction, expected a number between 0 and 1"):
        listing([("a.jpg", (1, 0), "", 0)], test_fraction=fraction)
    listing([("a.jpg", (1, 0), "train", 0)], test_fraction=fraction)  # is not needed
