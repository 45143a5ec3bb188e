"""Learning in closed form: in any order the same tagger, and every photo counts once with what was last said of it."""

import csv
import io
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from mlcil.core.errors import UserError
from mlcil.serving.changing import choose_thresholds
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.tagger import Tagger
from mlcil.training.config import make_config
from mlcil.training.run import run

from ..data import oddities
from ..tiny import settings
from .conftest import write_rows
from .lessons import assert_same, photos_of, start, teach

CLOSE = 1e-5  # by which sums in another order may move a score


@pytest.fixture(scope="module")
def tagger(digit_tagger):
    return Tagger.load(digit_tagger)


@pytest.fixture
def table(tmp_path, digit_tables):
    """Writes a table of pictures, each a number or a file, with its cells."""

    def write(rows, *headings, name="t.csv"):
        files = [digit_tables / f"{one}.png" if isinstance(one, int) else one for one, *_ in rows]
        return write_rows(
            tmp_path / name,
            [(file, *cells) for file, (_, *cells) in zip(files, rows, strict=True)],
            ("path", *(headings or ["labels"])),
        )

    return write


@pytest.fixture(scope="module")
def photos(digit_tables):
    return photos_of(digit_tables, range(0, 200, 5))


def rows_of(file):
    with file.open(newline="") as stream:
        return [(row["path"], row["labels"]) for row in csv.DictReader(stream)]


def counts_of(tagger):
    return {one.name: (one.positives, one.images) for one in tagger.labels}


def test_the_order_of_tables_does_not_matter(tagger, digit_tables, photos, tmp_path):
    ab = teach(tagger, digit_tables / "b.csv")
    assert ab.steps[1].returning == 20
    ba = teach(start(digit_tables / "b.csv"), digit_tables / "a.csv")
    assert_same(ab, ba, photos, CLOSE)
    assert counts_of(ab)["digit 2"][1] == 80  # 80 photos were looked at for it, of 140 in all
    sides = {name: dict(rows_of(digit_tables / f"{name}.csv")) for name in "ab"}
    labels = [f"digit {k}" for k in range(4)]
    cells = {
        photo: [
            "" if photo not in sides["ab"[k // 2]] else int(labels[k] in sides["ab"[k // 2]][photo].split(";"))
            for k in range(4)
        ]
        for photo in sides["a"] | sides["b"]
    }
    rows = [(digit_tables / photo, *values) for photo, values in cells.items()]
    assert_same(ab, start(write_rows(tmp_path / "both.csv", rows, ("path", *labels))), photos, CLOSE)


def test_learning_the_same_table_again_changes_nothing_but_the_steps(tagger, digit_tables, photos):
    again = teach(tagger, digit_tables / "a.csv")
    assert_same(again, tagger, photos)
    assert [(step.number, step.images, step.returning, step.new_labels) for step in again.steps] == [
        (1, 80, 0, ("digit 0", "digit 1")),
        (2, 80, 80, ()),
    ]
    assert [one.step for one in again.labels] == [1, 1]


def test_the_tagger_that_learns_stays_as_it_is_until_it_has(tagger, digit_tables, photos):
    mine = Tagger.load(tagger.path)
    teach(mine, digit_tables / "b.csv")
    assert_same(mine, tagger, photos)
    with pytest.raises(UserError, match="does not exist"):
        mine.learn("gone.csv")
    assert_same(mine, tagger, photos)
    report = mine.learn(digit_tables / "b.csv")
    assert report.labels == ("digit 2", "digit 3")
    assert mine.classes == tuple(f"digit {k}" for k in range(4))
    assert mine.path is None


def test_a_label_that_a_list_merely_omits_stays(tagger, table, digit_tables, photos):
    shown = [photo for photo, labels in rows_of(digit_tables / "a.csv") if "digit 0" in labels]
    omitted = teach(tagger, table([(digit_tables / shown[0], "digit 1"), (digit_tables / shown[1], "digit 0")]))
    assert counts_of(omitted)["digit 0"] == counts_of(tagger)["digit 0"]
    says_nothing_new = teach(tagger, table([(digit_tables / one, "digit 0") for one in shown[:3]]))
    assert_same(says_nothing_new, tagger, photos, CLOSE)


@pytest.mark.parametrize("way", ["-", "\u2212", "column"])
def test_a_correction_takes_a_label_back(tagger, table, digit_tables, photos, way, tmp_path):
    known = rows_of(digit_tables / "a.csv")
    wrong, right = [digit_tables / photo for photo, labels in known if "digit 0" in labels][:2]
    rows = [(wrong, 0), (right, 1)] if way == "column" else [(wrong, f"{way}digit 0")]
    learned, report = learn(tagger, table(rows, "digit 0" if way == "column" else "labels"), LearnOptions())
    assert report.plan.corrections == 1
    positives, images = counts_of(tagger)["digit 0"]
    assert counts_of(learned)["digit 0"] == (positives - 1, images)
    mended = [
        (digit_tables / photo, labels.replace("digit 0", "") if digit_tables / photo == wrong else labels)
        for photo, labels in known
    ]
    assert_same(learned, start(write_rows(tmp_path / "mended.csv", mended)), photos, CLOSE)


def test_a_photo_returns_under_any_name(tagger, table, digit_tables, tmp_path):
    shutil.copy(digit_tables / "0.png", tmp_path / "another name.png")
    learned = teach(tagger, table([("another name.png", "new"), (150, "")]))
    assert (learned.steps[1].images, learned.steps[1].returning) == (2, 1)
    assert counts_of(learned)["new"] == (1, 2)


def test_only_the_labels_that_are_named_are_learned(tagger, digit_tables, photos):
    some = teach(tagger, digit_tables / "b.csv", labels=("digit 3",))
    assert some.classes == ("digit 0", "digit 1", "digit 3")
    whole = teach(tagger, digit_tables / "b.csv")
    assert np.abs(some.scores(photos) - whole.scores(photos)[:, [0, 1, 3]]).max() <= CLOSE


def test_test_rows_are_measured_on_and_not_learned_from(digit_tables, table, photos):
    rows = [(digit_tables / photo, labels) for photo, labels in rows_of(digit_tables / "a.csv")]
    split = start(
        table([(*row, "test" if place < 30 else "train") for place, row in enumerate(rows)], "labels", "split")
    )
    assert_same(split, start(table(rows[30:])), photos)
    assert split.steps[0].images == 50
    assert {one.measured for one in split.labels} == {"30 photos of t.csv set aside"}
    truth = np.array([["digit 0" in labels, "digit 1" in labels] for _, labels in rows[:30]])
    claimed = split.scores([file for file, _ in rows[:30]]) > split.thresholds
    for k, one in enumerate(split.labels):
        assert one.recall == pytest.approx(100 * (claimed & truth)[:, k].sum() / truth[:, k].sum())


def test_a_check_measures_what_has_changed(tagger, digit_tables, photos):
    learned, report = learn(tagger, str(digit_tables / "b.csv"), LearnOptions(check=str(digit_tables / "c.csv")))
    assert [one.name for one in report.changes] == ["digit 0", "digit 1"]
    assert {one.how for one in report.changes} == {"measured on 60 photos of c.csv"}
    before, after = tagger.evaluate(digit_tables / "c.csv"), learned.evaluate(digit_tables / "c.csv")
    for change, was, now in zip(report.changes, before.results, after.results[:2], strict=True):
        assert (change.before.ap, change.after.ap) == pytest.approx((was.ap, now.ap))
        assert learned.labels[learned.column(change.name)].ap == change.after.ap
    with pytest.raises(UserError, match=r"b\.csv has none of the labels that the tagger knows \(digit 0, digit 1\)"):
        teach(tagger, digit_tables / "c.csv", check=str(digit_tables / "b.csv"))


def test_photos_that_it_has_learned_from_flatter_it_and_their_figures_are_not_kept(tagger, digit_tables):
    learned, report = learn(tagger, str(digit_tables / "b.csv"), LearnOptions(check=str(digit_tables / "a.csv")))
    how = "measured on 80 photos of a.csv, 80 of which it has learned from, which flatters it"
    assert [one.how for one in report.changes] == [how, how]
    assert [one.ap for one in learned.labels[:2]] == [one.ap for one in tagger.labels]
    assert all("80 photos of a.csv, cross-validated, earlier" in one.origin for one in learned.labels[:2])


def test_without_a_photo_that_can_be_read_each_is_named(tmp_path):
    file = io.StringIO()
    console = Console(file=file, width=200)
    table = write_rows(tmp_path / "gone.csv", [("gone-1.JPG", "cat"), ("gone-2.JPG", "")])
    with pytest.raises(UserError, match=r"gone\.csv has no photo that can be read and says anything about a label$"):
        learn(None, table, LearnOptions(backbone="small_conv", settings={"image_size": 32, "threads": 1}), console)
    assert [line.split("gone-")[1][:1] for line in file.getvalue().splitlines() if "left out: " in line] == ["1", "2"]


def test_a_correction_of_a_few_photos_is_not_said_to_be_measured(tagger, digit_tables, tmp_path):
    rows = [(str(digit_tables / f"{number}.png"), "digit 1") for number in (7, 9)]
    learned, report = learn(tagger, write_rows(tmp_path / "fix.csv", rows), LearnOptions())
    assert report.measured == ""
    assert [one.ap for one in learned.labels] == [one.ap for one in tagger.labels]
    assert all("cross-validated, earlier" in one.origin for one in learned.labels)


def test_chosen_thresholds_survive_learning(tagger, digit_tables):
    learned = teach(choose_thresholds(tagger, {"digit 0": 0.123}), digit_tables / "b.csv")
    assert learned.thresholds[0] == 0.123
    assert learned.thresholds[1] != 0.123
    own = choose_thresholds(learned, {"digit 0": None})
    assert own.thresholds.tolist() == teach(tagger, digit_tables / "b.csv").thresholds.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_size": 64}, "this tagger has image_size 32, which stays as it is; leave out image_size=64"),
        ({"expansion": 50}, "this tagger has expansion 0, which stays as it is; leave out expansion=50"),
        ({"power": 1.0}, "this tagger has power 0.5, which stays as it is; leave out power=1.0"),
        ({"epoch": 2}, "unknown key for method analytic 'epoch', did you mean 'epochs'?"),
    ],
)
def test_what_a_tagger_is_made_of_stays(tagger, digit_tables, settings, message):
    with pytest.raises(UserError) as caught:
        teach(tagger, digit_tables / "b.csv", settings=settings)
    assert str(caught.value).startswith(message)


def test_weights_of_a_tagger_stay(tagger, digit_tables):
    with pytest.raises(
        UserError, match=r"has weights \(no pretrained weights\), which stays as it is; leave out weights=x"
    ):
        teach(tagger, digit_tables / "b.csv", weights="x.safetensors")


def test_the_regularisation_may_change(tagger, digit_tables):
    assert teach(tagger, digit_tables / "b.csv", settings={"ridge": 2.0}).config.options.ridge == 2.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, ""), (2, "")], "has no labels: no image has any class"),
        ([(1, "-x"), (2, "-x")], "no photo of the table that can be read shows x, so there is nothing to learn"),
        ([(1, "x;-x"), (2, "")], r"1\.png has both the label 'x' and its denial '-x'; keep one of them"),
        ([("gone.png", "x"), (2, "y")], "no photo of the table that can be read shows x"),
        ([(1, "x")], "all look the same to the backbone; it needs different ones"),
    ],
)
def test_a_table_with_nothing_to_learn_is_one_line(table, rows, message):
    with pytest.raises(UserError, match=message) as caught:
        start(table(rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "path,labels\n", "nothing\nmore\n"])
def test_a_table_that_is_none_is_one_line(tmp_path, content):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=r"t\.csv") as caught:
        start(tmp_path / "t.csv")
    assert "\n" not in str(caught.value)


def test_photos_that_look_all_the_same_are_said_to(table, tmp_path):
    for level in range(3):
        Image.new("RGB", (32, 32), (9, 9, 9)).save(tmp_path / f"{level}.png", compress_level=level)
    with pytest.raises(UserError, match="all look the same to the backbone"):
        start(table([("0.png", "x"), ("1.png", ""), ("2.png", "")]))


def test_a_label_on_every_photo_is_learned_and_warned_of(table):
    learned, report = learn(
        None,
        table([(number, "x") for number in range(12)]),
        LearnOptions(backbone="small_conv", settings={"image_size": 32}),
    )
    assert any("every photo shows x: add photos that do not" in one.text for one in report.findings)
    assert np.isfinite(learned.scores(np.zeros((1, 8, 8, 3), np.uint8))).all()
    assert (learned.labels[0].positives, learned.labels[0].images, learned.labels[0].ap) == (12, 12, None)


def test_odd_files_are_learned_from_or_left_out_by_name(tagger, tmp_path):
    files = oddities.make(tmp_path / "odd")
    rows = [(str(path), "odd" if place % 2 else "") for place, path in enumerate(files.values())]
    said = io.StringIO()
    console = Console(file=said, width=10_000)
    learned, _ = learn(tagger, write_rows(tmp_path / "odd.csv", rows), LearnOptions(), console)
    bad = {str(files[name]) for name, case in oddities.CASES.items() if case.reason is not None}
    left_out = {line for line in said.getvalue().splitlines() if "left out: " in line}
    assert len(left_out) == len(bad)
    assert all(any(path in line for line in left_out) for path in bad)
    contents = {path.read_bytes() for path in files.values() if str(path) not in bad}
    assert learned.steps[1].images == len(contents)


@pytest.mark.parametrize("remember", ["none", "fingerprints"])
def test_a_run_in_closed_form_can_learn_more(remember, digit_tables, tmp_path):
    run(make_config(settings("analytic", options={"expansion": 20, "remember": remember})), tmp_path / "run")
    loaded = Tagger.load(tmp_path / "run")
    learned = teach(loaded, digit_tables / "a.csv")
    assert learned.classes == (*"0123456", "digit 0", "digit 1")
    assert [step.number for step in learned.steps] == [1, 2, 3, 4]
    again = Tagger.load(learned.save(tmp_path / "tagger"))
    twice = teach(again, digit_tables / "a.csv")
    assert twice.labels[-1].images == learned.labels[-1].images + (80 if remember == "none" else 0)
    assert twice.steps[-1].returning == (0 if remember == "none" else 80)
