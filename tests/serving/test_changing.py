"""What can be done to a tagger besides learning: as if a step had never been, or as if all had been learned by one."""

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.serving.changing import choose_thresholds, forget_labels, forget_step, merge, rename
from mlcil.serving.tagger import Tagger

from .lessons import assert_same, photos_of, start, start_trained, teach

CLOSE = 1e-5  # by which sums in another order may move a score


@pytest.fixture(scope="module")
def a(digit_tagger):
    return Tagger.load(digit_tagger)


@pytest.fixture(scope="module")
def ab(a, digit_tables):
    return teach(a, digit_tables / "b.csv")


@pytest.fixture(scope="module")
def abc(ab, digit_tables):
    return teach(ab, digit_tables / "c.csv")


@pytest.fixture(scope="module")
def photos(digit_tables):
    return photos_of(digit_tables, range(0, 200, 5))


def test_without_a_label_the_others_stay_to_the_bit(ab, photos, tmp_path):
    left = forget_labels(ab, ["digit 2", "digit 0"])
    assert left.classes == ("digit 1", "digit 3")
    images = ab.prepare(np.stack([ab.square(photo) for photo in photos]))
    assert torch.equal(left.method.tagger(images).logits, ab.method.tagger(images).logits[:, [1, 3]])
    # A sigmoid may round the last bit differently where there are fewer columns.
    np.testing.assert_allclose(left.scores(photos), ab.scores(photos)[:, [1, 3]], rtol=0, atol=1e-7)
    assert np.array_equal(left.thresholds, ab.thresholds[[1, 3]])
    assert [one.positives for one in left.labels] == [ab.labels[1].positives, ab.labels[3].positives]
    assert [(step.labels, step.new_labels) for step in left.steps] == [(("digit 1",),) * 2, (("digit 3",),) * 2]
    assert_same(Tagger.load(left.save(tmp_path / "left")), left, photos)
    assert ab.classes == tuple(f"digit {k}" for k in range(4))  # itself is as it was


def test_figures_of_before_a_change_say_so(a, ab, abc, digit_tables):
    words = "80 photos of a.csv, cross-validated"
    then = [f"{words}, earlier, at threshold {value:.2f}" for value in a.thresholds]
    assert [one.origin for one in a.labels] == [words, words]
    assert [one.origin for one in ab.labels[:2]] == then
    assert [one.origin for one in merge(a, start(digit_tables / "c.csv")).labels[:2]] == then
    without_b = forget_step(ab, 2)
    assert [one.origin for one in without_b.labels[:2]] == then
    assert all("earlier" not in one.origin for one in abc.labels)  # c.csv has them all
    chosen = choose_thresholds(a, {"digit 1": 0.123})
    assert [one.origin for one in chosen.labels] == [words, then[1]]
    assert [one.ap for one in chosen.labels] == [one.ap for one in a.labels]
    assert [one.origin for one in forget_labels(ab, ["digit 2"]).labels[:2]] == then  # nothing else changed


def test_a_label_that_was_forgotten_can_be_learned_again(ab, digit_tables, photos):
    again = teach(forget_labels(ab, ["digit 2", "digit 3"]), digit_tables / "b.csv")
    assert_same(again, ab, photos, CLOSE)


def test_a_step_that_was_taken_back_was_never_learned(ab, abc, digit_tables, photos):
    assert_same(forget_step(abc, 3), ab, photos, CLOSE)
    assert forget_step(abc, 3).steps == ab.steps
    assert [one.measured for one in forget_step(abc, 3).labels] == [""] * 4  # c.csv, by which it was, is gone
    without_b = forget_step(abc, 2)
    assert_same(without_b, teach(start(digit_tables / "a.csv"), digit_tables / "c.csv"), photos, CLOSE)
    assert [step.number for step in without_b.steps] == [1, 3]
    # Its labels are now those of the step that is left.
    assert {one.name: one.step for one in without_b.labels} == {"digit 0": 1, "digit 1": 1, "digit 2": 3, "digit 3": 3}
    assert without_b.steps[1].new_labels == ("digit 2", "digit 3")
    assert without_b.labels[2].learned == abc.steps[2].learned
    without_a = forget_step(ab, 1)
    assert_same(without_a, start(digit_tables / "b.csv"), photos, CLOSE)
    assert (without_a.steps[0].number, without_a.steps[0].returning) == (2, 0)  # all of its photos are new now


def test_the_number_of_a_step_is_never_used_again(ab, abc, digit_tables, photos):
    again = teach(forget_step(abc, 2), digit_tables / "b.csv")
    assert [step.number for step in again.steps] == [1, 3, 4]
    assert_same(forget_step(again, 4), forget_step(abc, 2), photos, CLOSE)


def test_what_cannot_be_forgotten_is_one_line(a, ab):
    for deed, message in (
        (lambda: forget_labels(a, ["cat"]), r"unknown label 'cat'. Allowed: digit 0, digit 1$"),
        (lambda: forget_labels(a, a.classes), r"no label would be left; delete the tagger's folder instead$"),
        (lambda: forget_step(a, 1), r"no label would be left; delete the tagger's folder instead$"),
        (lambda: forget_step(ab, 7), r"unknown step '7'. Allowed: 1, 2$"),
    ):
        with pytest.raises(UserError, match=message):
            deed()


def test_forgetting_in_place_does_all_or_nothing(ab, photos):
    mine = rename(ab, {})
    with pytest.raises(UserError, match="unknown label 'cat'"):
        mine.forget(["cat"], steps=[2])
    assert_same(mine, ab, photos)
    mine.forget(["digit 0"], steps=[2])
    assert mine.classes == ("digit 1",)


@pytest.mark.parametrize("shared", [False, True])
def test_merged_is_as_if_one_had_learned_all(a, digit_tables, photos, shared):
    second = teach(a, digit_tables / "c.csv") if shared else start(digit_tables / "c.csv")
    one, other = merge(a, second), merge(second, a)
    assert_same(one, teach(a, digit_tables / "c.csv"), photos, CLOSE)
    assert_same(one, other, photos, CLOSE)
    assert [step.source for step in one.steps] == ["a.csv", "c.csv"]
    assert [step.number for step in one.steps] == [1, 2]
    assert [label.step for label in one.labels] == [1, 1, 2, 2]


def test_merged_taggers_keep_thresholds_that_were_chosen(a, digit_tables):
    first = choose_thresholds(a, {"digit 0": 0.25})
    second = choose_thresholds(start(digit_tables / "c.csv"), {"digit 0": 0.5, "digit 3": 0.75})
    assert merge(first, second).chosen == {"digit 0": 0.25, "digit 3": 0.75}  # the first one decides


def test_a_merged_tagger_learns_on(a, digit_tables, photos):
    merged = teach(merge(a, start(digit_tables / "c.csv")), digit_tables / "b.csv")
    assert_same(merged, teach(teach(a, digit_tables / "c.csv"), digit_tables / "b.csv"), photos, CLOSE)
    assert [step.number for step in merged.steps] == [1, 2, 3]


def test_taggers_that_cannot_be_merged_say_why(a, digit_tables):
    wider = start(digit_tables / "c.csv", settings={"image_size": 16, "threads": 1})
    with pytest.raises(UserError, match="the two do not have the same features: they need the same backbone"):
        merge(a, wider)
    with pytest.raises(UserError, match="cannot merge exactly: both have seen 20 photos that came with other photos"):
        merge(a, start(digit_tables / "b.csv"))
    forgetful = start(digit_tables / "c.csv", settings={"image_size": 32, "threads": 1, "remember": "none"})
    with pytest.raises(UserError, match="one of the two does not remember its photos"):
        merge(a, forgetful)


@pytest.mark.parametrize("method", ["ft", "adaptive"])
def test_only_a_closed_form_forgets(a, digit_tables, method):
    trained = start_trained(digit_tables / "a.csv", method, epochs=1)
    for deed in (
        lambda: forget_labels(trained, ["digit 0"]),
        lambda: forget_step(trained, 1),
        lambda: merge(trained, a),
        lambda: merge(a, trained),
    ):
        with pytest.raises(
            UserError, match=rf"^only a closed-form tagger \(analytic\) can [^\n]+; this one is {method}"
        ):
            deed()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    renamed = rename(trained, {"digit 0": "zero"})
    assert renamed.classes == ("zero", "digit 1")
    assert np.array_equal(renamed.scores(pixels), trained.scores(pixels))


def test_another_name_changes_nothing_else(ab, digit_tables, photos, tmp_path):
    renamed = rename(choose_thresholds(ab, {"digit 2": 0.3}), {"digit 2": "two", "digit 0": "zéro 🐱"})
    assert renamed.classes == ("zéro 🐱", "digit 1", "two", "digit 3")
    assert renamed.chosen == {"two": 0.3}
    assert np.array_equal(renamed.scores(photos), ab.scores(photos))
    assert renamed.steps[1].new_labels == ("two", "digit 3")
    again = Tagger.load(renamed.save(tmp_path / "renamed"))
    assert_same(again, renamed, photos)
    back = rename(again, {"two": "digit 2", "zéro 🐱": "digit 0"})
    assert_same(
        teach(back, digit_tables / "c.csv"),
        teach(choose_thresholds(ab, {"digit 2": 0.3}), digit_tables / "c.csv"),
        photos,
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"cat": "dog"}, r"unknown label 'cat'. Allowed: digit 0, digit 1$"),
        ({"digit 0": "digit 1"}, "cannot rename 'digit 0' to 'digit 1': there is a label of that name already"),
        ({"digit 0": " "}, "cannot rename 'digit 0' to ' ': a label needs a name"),
        ({"digit 0": "x", "digit 1": "x"}, "cannot give two labels the same name"),
    ],
)
def test_names_that_cannot_be_given(a, names, message):
    with pytest.raises(UserError, match=message):
        rename(a, names)


def test_thresholds_are_chosen_by_label_or_by_precision(a):
    assert choose_thresholds(a, {"digit 1": 0.5}).thresholds.tolist() == [a.thresholds[0], 0.5]
    precise = choose_thresholds(a, {"digit 1": 0.5}, precision=0.95)
    assert precise.thresholds.tolist() == [a.thresholds_for(precision=0.95)[0], 0.5]
    assert choose_thresholds(precise, {"digit 0": None, "digit 1": None}).chosen is None
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(UserError, match=rf"got threshold {value} for 'digit 0', expected 0 to 1"):
            choose_thresholds(a, {"digit 0": value})
    with pytest.raises(UserError, match="unknown label 'cat'"):
        choose_thresholds(a, {"cat": 0.5})
