"""Teaching by marks: what is said counts, stays, can be taken back, and becomes a tagger that has forgotten nothing."""

import shutil
import sqlite3

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.file_index import Stamp
from mlcil.serving.tagger import Tagger
from mlcil.teaching.photo_index import LookedAt, PhotoIndex

from ..data.oddities import CASES, make
from ..serving.lessons import photos_of
from .conftest import ids


def test_a_label_is_learned_from_a_few_marks(bench, truth):
    shown, others = ids(bench, truth, "digit 2"), ids(bench, truth, "digit 2", shown=False)
    bench.mark("digit 2", shown[:8], others[:8], [])
    _, found, rows = bench.view("digit 2")
    unmarked = [bench.photos.row(photo) for photo in (*shown[8:], *others[8:])]
    present = [photo in shown for photo in (*shown[8:], *others[8:])]
    scores = found.scores[unmarked]
    right = (scores[np.array(present)][:, None] > scores[~np.array(present)]).mean()
    assert right > 0.5  # of all pairs, the one that shows it scores higher; the network is untrained
    assert not {bench.photos.id(row) for row in (*rows.likely, *rows.unsure)} & {*shown[:8], *others[:8]}
    assert not set(rows.likely) & set(rows.unsure)


def test_the_version_that_is_saved_tags_as_the_page_showed_and_leaves_other_labels_alone(
    bench, truth, digit_tables, digit_tagger
):
    shown, others = ids(bench, truth, "digit 2"), ids(bench, truth, "digit 2", shown=False)
    bench.mark("digit 2", shown[:6], others[:6], [])
    bench.mark("digit 3", ids(bench, truth, "digit 3")[:4], others[6:8], [])
    pages = {name: bench.view(name)[1] for name in ("digit 2", "digit 3")}
    made, lines = bench.save(None)
    assert made.classes == ("digit 0", "digit 1", "digit 2", "digit 3")
    assert lines[-1].startswith("saved digits-v")
    photos = [bench.photos.path(row) for row in range(len(bench.photos))]
    before, after = Tagger.load(digit_tagger), Tagger.load(made.path)
    is_tagged = after.scores(photos) > after.thresholds
    for name, page in pages.items():
        different = is_tagged[:, after.column(name)] != page.is_tagged
        assert different.sum() <= 1, name  # features are standardised anew
    unseen = photos_of(digit_tables, range(100, 140))
    np.testing.assert_allclose(after.scores(unseen)[:, :2], before.scores(unseen), atol=0.1)
    facts = {one.name: one for one in after.labels}
    assert (facts["digit 2"].positives, facts["digit 2"].images) == (6, 12)
    assert after.steps[-1].new_labels == ("digit 2", "digit 3")


def test_what_was_said_is_there_after_a_restart_and_can_still_be_undone(open_bench, truth, tmp_path):
    first = open_bench()
    shown = ids(first, truth, "digit 3")
    first.mark("digit 3", shown[:3], [], [])
    first.mark("digit 3", [], shown[3:4], [])
    scores = first.view("digit 3")[1].scores
    first.close()

    again = open_bench()
    np.testing.assert_array_equal(again.view("digit 3")[1].scores, scores)
    assert again.undo() == "digit 3: no to 1"
    assert again.view("digit 3")[0].marks == dict.fromkeys(shown[:3], True)
    assert again.undo(again=True) == "digit 3: no to 1"
    again.mark("digit 3", [], [], shown[:3])
    assert again.view("digit 3")[1] is None  # no example is left
    again.undo()
    np.testing.assert_array_equal(again.view("digit 3")[1].scores, scores)


def test_a_known_label_can_be_corrected(bench, truth):
    wrong = [
        bench.photos.id(row)
        for row in np.flatnonzero(bench.view("digit 0")[1].is_tagged)
        if "digit 0" not in truth[bench.photos.name(int(row))]
    ]
    before = bench.view("digit 0")[1].scores
    bench.mark("digit 0", [], wrong[:3], [])
    after = bench.view("digit 0")[1].scores
    rows = [bench.photos.row(photo) for photo in wrong[:3]]
    assert (after[rows] < before[rows]).all()


def test_photos_that_the_tagger_has_learned_from_are_known_and_surprises_are_shown(open_bench, digit_tables):
    bench = open_bench(names=[f"{number}.png" for number in range(60)])
    label, found, rows = bench.view("digit 0")
    assert not len(rows.likely)  # nothing is open: every picture was looked at for it
    assert (bench.told(label) >= 0).all()
    row = int(np.flatnonzero(bench.told(label) == 1)[0])
    bench.mark("digit 0", [], [bench.photos.id(row)], [])
    assert bench.view("digit 0")[1].scores[row] < found.scores[row]
    positives = {one.name: one.positives for one in bench.tagger.labels}
    assert bench.save(None)[0].labels[0].positives == positives["digit 0"] - 1


def test_labels_are_renamed_merged_and_deleted_and_the_tagger_follows(bench, truth):
    shown = ids(bench, truth, "digit 2")
    bench.mark("two", shown[:4], ids(bench, truth, "digit 2", shown=False)[:4], [])
    bench.mark("zwei", shown[4:6], [], [])
    bench.do({"do": "merge", "label": "zwei", "into": "two"})
    bench.do({"do": "rename", "label": "digit 0", "to": "zero"})
    bench.do({"do": "rename", "label": "digit 1", "to": "digit 0"})
    bench.do({"do": "delete", "label": "zero"})
    assert bench.view("two")[0].yes == 6
    made, _ = bench.save("changed")
    assert made.classes == ("digit 0", "two")
    one, two = made.labels
    assert (one.step, two.positives) == (1, 6)
    bench.undo()
    assert [*bench.book.labels] == ["zero", "digit 0", "two"]


def test_labels_of_the_tagger_are_merged_exactly_or_not_at_all(open_bench, digit_tables, truth, tmp_path):
    without = open_bench(folder=tmp_path / "without")
    with pytest.raises(UserError, match="cannot be looked at here"):
        without.do({"do": "merge", "label": "digit 1", "into": "digit 0"})
    assert [*without.book.labels] == ["digit 0", "digit 1"]

    bench = open_bench(folder=tmp_path / "with", names=[f"{number}.png" for number in range(80)])
    bench.do({"do": "merge", "label": "digit 1", "into": "digit 0"})
    page = bench.view("digit 0")[1].scores
    made, _ = bench.save(None)
    assert made.classes == ("digit 0",)
    labels = bench.scorer.ledger.labels_now()
    assert made.labels[0].positives == int((labels == 1).any(axis=1).sum())
    saved = bench.photos.features @ made.method.tagger.weights[:, 0].numpy()
    assert np.corrcoef(saved, page)[0, 1] > 0.999


def test_only_one_program_teaches_in_a_folder_and_only_one_tagger(open_bench, bench, digit_tables, tmp_path):
    with pytest.raises(UserError, match="another program is teaching"):
        open_bench()
    bench.close()
    other = bench.tagger
    other.rename({"digit 0": "zero"})
    path = other.save(tmp_path / "other")
    with pytest.raises(UserError, match="holds marks for another tagger"):
        open_bench(tagger=path)


def test_a_folder_with_oddities_is_taught_with_what_can_be_read(open_bench, digit_tables, truth, tmp_path):
    names = list(truth)[:4]
    copies = tmp_path / "photos"
    copies.mkdir()
    for name in names:
        shutil.copy(digit_tables / name, copies)
    shutil.copy(copies / names[0], copies / "the same again.png")
    (copies / "broken.jpg").write_bytes((copies / names[1]).read_bytes()[:60])
    (copies / "text.jpg").write_text("no image")
    (copies / "empty.png").touch()
    Image.new("RGBA", (40, 10), (0, 0, 0, 0)).save(copies / "<img src=x>.png")
    found = sorted(str(one) for one in copies.iterdir())
    bench = open_bench(names=found)
    assert len(bench.photos) == 5
    assert {name.rpartition("/")[2] for name, _ in bench.photos.problems} == {"broken.jpg", "text.jpg", "empty.png"}
    assert bench.photos.looked_at == bench.photos.total == 9
    bench.close()
    again = open_bench(names=found)
    assert len(again.photos) == 5
    assert len(again.photos.problems) == 3
    for row in range(5):
        assert again.index.thumbnail(again.photos.digest(row)).startswith(b"\xff\xd8")


def test_a_damaged_index_is_made_again(open_bench, tmp_path):
    bench = open_bench()
    features = bench.photos.features.copy()
    bench.close()
    for file in (tmp_path / "digits.teach").glob("photos.sqlite*"):
        file.write_bytes(b"not a database" * 100)
    again = open_bench()
    np.testing.assert_array_equal(again.photos.features, features)


def test_a_photo_never_has_the_features_or_the_thumbnail_of_another(tmp_path):
    def photo(name):
        vector = np.full(3, ord(name), np.float32)
        return LookedAt(name, Stamp(1, 2, 3, 4), name.encode(), None, 5, 6, 9 * name.encode(), vector)

    index = PhotoIndex(tmp_path / "photos.sqlite", "kind")
    index.add([photo("a"), photo("b")], [b"a", b"b"])
    assert sorted(digest for digest, _ in index.find([b"a", b"b"])) == [b"a", b"b"]
    with sqlite3.connect(index.path) as other:
        other.execute("UPDATE features_2 SET digest = X'63' WHERE digest = X'62'")
        other.execute("UPDATE features_2 SET digest = X'62' WHERE digest = X'61'")
        other.execute("UPDATE photos_2 SET thumbnail = X'62' WHERE digest = X'61'")
        other.execute("UPDATE files_2 SET digest = X'61' WHERE path = X'62'")
    other.close()
    assert not list(index.find([b"a", b"b", b"c"]))
    assert [index.thumbnail(name) for name in (b"a", b"b")] == [None, 9 * b"b"]
    assert list(index.files()) == [b"a"]
    index.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "some text"),
        (" a", "without spaces"),
        ("a\nb", "one line"),
        ("x" * 201, "at most 200"),
        ("a\ud800", "one line"),
    ],
)
def test_names_that_cannot_be_shown_are_refused(bench, truth, name, why):
    with pytest.raises(UserError, match=why):
        bench.mark(name, ids(bench, truth, "digit 2")[:1], [], [])
    assert not bench.journal.done


def test_marks_that_make_no_sense_are_refused(bench, truth):
    photo = ids(bench, truth, "digit 2")[0]
    with pytest.raises(UserError, match="there is no photo"):
        bench.mark("digit 2", ["0" * 32], [], [])
    with pytest.raises(UserError, match="in two ways"):
        bench.mark("digit 2", [photo], [photo], [])
    with pytest.raises(UserError, match="nothing to save"):
        bench.save(None)
    bench.mark("digit 2", [photo], [], [])
    with pytest.raises(UserError, match="expected the name of a folder"):
        bench.save("../elsewhere")


def test_every_odd_file_among_real_photos_is_taken_or_named(open_bench, tmp_path):
    paths = make(tmp_path / "odd")
    bench = open_bench(names=[str(path) for path in paths.values()])
    readable = [name for name, case in CASES.items() if case.pixels is not None]
    assert bench.indexer.failure is None
    assert len(bench.photos.problems) == len(CASES) - len(readable)
    named = {name.rpartition("/")[2] for name, _ in bench.photos.problems}
    assert named == {paths[name].name for name in CASES if name not in readable}
    for row in range(len(bench.photos)):
        assert bench.index.thumbnail(bench.photos.digest(row)).startswith(b"\xff\xd8")
