"""The ledger: after any steps it is what all of them say at once, and a step that is taken back has never been."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.core.errors import UserError
from mlcil.core.state import State, load_state_of, state_of
from mlcil.models import ledger as ledger_module
from mlcil.models.ledger import Ledger
from mlcil.models.ridge import choose_ridge

from .images import (
    DESCRIBED,
    IMAGES,
    NAMES,
    PRINTS,
    STEPS,
    TRUTH,
    WIDTH,
    assert_counts_as,
    assert_is,
    in_memory,
    known,
    learned,
    numbered,
    steps_of,
    with_images,
    with_step,
)

few = settings(max_examples=40, deadline=None, derandomize=True)


def is_present(steps):
    return {(image, name) for image, by_class in known(steps).items() for name in NAMES if by_class[name] == 1}


def cannot_undo(steps, number):
    """Whether later steps change what a step did to the labels: it is not what taking it back has to undo."""
    until = {other: rows for other, rows in steps.items() if other <= number}
    before = is_present({other: rows for other, rows in until.items() if other < number})
    without = is_present({other: rows for other, rows in steps.items() if other != number})
    added, removed = is_present(until) - before, before - is_present(until)
    return (is_present(steps) - without, without - is_present(steps)) != (added, removed)


def stated(steps):
    """The classes that a step says anything about."""
    return {name for by_class in known(steps).values() for name, label in by_class.items() if label >= 0}


def left_names(steps, number, names=NAMES):
    """The classes that remain without a step."""
    rest = {other: rows for other, rows in steps.items() if other != number}
    said = {name for other, rows in rest.items() for name in stated({other: rows})}
    return tuple(name for name in names if name in said or name not in stated({number: steps[number]}))


@given(steps=STEPS)
@few
def test_any_steps_are_all_of_them_at_once(steps):
    assert_is(learned(numbered(steps)), numbered(steps))


@given(steps=STEPS, data=st.data())
@few
def test_the_order_of_steps_without_a_contradiction_does_not_matter(steps, data):
    told = [
        [(i, tuple(t if one >= 0 else -1 for t, one in zip(TRUTH[i], x, strict=True))) for i, x in s] for s in steps
    ]
    turned = data.draw(st.permutations(told))
    one, other = learned(numbered(told)), learned(numbered(turned))
    assert_counts_as(other, known(numbered(told)))
    torch.testing.assert_close(one.sums().gram, other.sums().gram)


def test_an_image_that_comes_back_counts_once_with_the_last_that_is_known():
    steps = {1: [(0, (1, 0, -1)), (1, (0, 1, -1))], 2: [(0, (-1, 1, 1))], 3: [(0, (0, -1, -1)), (2, (1, 1, 1))]}
    ledger = learned(steps)
    assert ledger.labels_now()[ledger.find(PRINTS[[0]])].tolist() == [[0, 1, 1]]
    assert ledger.sums().images == 3
    assert set(ledger.groups) == {1, 3, 0}  # images of step 1 alone, of step 3 alone, and of several


def test_an_image_that_stands_twice_in_a_step_counts_once_with_the_labels_of_both():
    ledger = learned({1: [(0, (1, 0, -1)), (1, (0, 0, 0)), (0, (0, -1, -1))]})
    assert ledger.labels_now()[ledger.find(PRINTS[[0]])].tolist() == [[1, 0, -1]]
    assert ledger.sums().images == 2


def test_counts_are_those_of_images_that_were_looked_at():
    counts = learned({1: [(0, (1, 0, -1)), (1, (1, -1, -1))], 2: [(0, (0, -1, -1))]}).counts()
    assert (counts.images.tolist(), counts.positives.tolist()) == ([2, 1, 0], [1, 0, 0])


def test_a_step_may_be_empty_or_say_nothing():
    ledger = learned({1: [(0, (1, 0, -1))]})
    empty = ledger.with_step(2, PRINTS[[]], np.empty((0, 3), np.int8), in_memory(DESCRIBED))
    assert_is(empty.without_step(1), {}, names=("c",))
    silent = with_step(ledger, 2, [(1, (-1, -1, -1))])
    assert_is(silent, {1: [(0, (1, 0, -1))], 2: [(1, (-1, -1, -1))]})


def test_images_are_found_by_their_fingerprints():
    ledger = learned({1: [(3, (1, 0, 0)), (1, (1, 0, 0))]})
    assert ledger.find(PRINTS[[1, 2, 3, 1]]).tolist() == [1, -1, 0, 1]
    assert Ledger(WIDTH).find(PRINTS[:2]).tolist() == [-1, -1]
    assert ledger.find(PRINTS[:0]).tolist() == []


@given(steps=STEPS, gone=st.sampled_from(NAMES))
@few
def test_a_class_that_is_taken_away_was_never_labelled(steps, gone):
    names = tuple(name for name in NAMES if name != gone)
    ledger = learned(numbered(steps)).without_class(gone)
    assert_is(ledger, numbered(steps), names)
    assert_is(ledger.with_classes(NAMES), {n: silenced(rows, gone) for n, rows in numbered(steps).items()})


def silenced(rows, gone):
    place = NAMES.index(gone)
    return [(image, (*labels[:place], -1, *labels[place + 1 :])) for image, labels in rows]


@given(steps=STEPS, names=st.permutations(NAMES))
@few
def test_columns_may_change_places_between_steps(steps, names):
    *first, last = steps
    ledger = learned(numbered(first)).with_classes(names)
    turned = [(image, tuple(labels[NAMES.index(name)] for name in names)) for image, labels in last]
    ledger = with_step(ledger, len(steps), turned)
    assert ledger.classes == tuple(names)
    assert_is(ledger, numbered(steps))


def test_a_class_has_another_name():
    steps = {1: [(0, (1, 0, -1)), (1, (0, 1, -1))], 2: [(1, (1, 1, 1))]}
    ledger = learned(steps).renamed("a", "x")
    assert ledger.classes == ("x", "b", "c")
    assert_is(ledger.renamed("x", "a"), steps)
    assert np.array_equal(ledger.labels_now(), learned(steps).labels_now())
    with pytest.raises(UserError, match="unknown label 'a'"):
        ledger.renamed("a", "y")
    with pytest.raises(UserError, match="a label of that name"):
        ledger.renamed("x", "b")
    with pytest.raises(UserError, match="unknown label 'a'"):
        ledger.without_class("a")


@given(steps=STEPS, data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_step_that_is_taken_back_has_never_been(steps, data):
    steps = numbered(steps)
    number = data.draw(st.sampled_from(list(steps)))
    ledger = learned(steps)
    if cannot_undo(steps, number):
        with pytest.raises(UserError, match=f"step {number} cannot be taken back"):
            ledger.without_step(number)
        return
    names = left_names(steps, number)
    rest = {other: rows for other, rows in steps.items() if other != number}
    left = ledger.without_step(number)
    assert left.numbers == tuple(rest)
    assert_is(left, rest, names)
    again = rest | {9: steps[number]}
    assert_is(learned({9: steps[number]}, left.with_classes(NAMES)), again)  # and then learned once more


@given(steps=STEPS, data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_steps_may_be_taken_back_in_any_order(steps, data):
    steps = numbered(steps)
    ledger, names = learned(steps), NAMES
    several = {image for image, numbers in steps_of(steps).items() if len(numbers) > 1}
    for number in data.draw(st.permutations(list(steps))):
        left = {other: rows for other, rows in steps.items() if other != number}
        together = several & set(known(steps))
        if cannot_undo(steps, number) or together & set(known(left)) not in (set(), together):
            with pytest.raises(UserError, match=f"step {number} cannot be taken back"):
                ledger.without_step(number)
            return
        ledger, names = ledger.without_step(number), left_names(steps, number, names)
        steps = left
        assert_is(ledger, steps, names)
    assert len(ledger.fingerprints) == len(ledger.groups) == 0


BOTH = [(0, (1, 0, -1)), (1, (0, 1, -1))]


@pytest.mark.parametrize(
    ("second", "raises"),
    [
        ([(0, (-1, -1, 1)), (1, (-1, -1, 0))], False),  # another class
        ([(2, (1, 0, 1))], False),  # another image
        ([(1, (0, -1, -1))], False),  # says again what is absent
        ([(0, (1, 0, -1)), (1, (0, 1, -1))], True),  # the same again
        ([(0, (0, -1, -1))], True),  # a correction
    ],
)
def test_the_last_step_can_be_undone_and_an_earlier_one_unless_it_was_repeated_or_corrected(second, raises):
    steps = {1: BOTH, 2: second}
    ledger = learned(steps)
    assert_is(ledger.without_step(2), {1: BOTH}, left_names(steps, 2))
    if raises:
        with pytest.raises(UserError, match=r"step 1 cannot be taken back: a later step.*\((a|a, b)\).*first"):
            ledger.without_step(1)
    else:
        assert_is(ledger.without_step(1), {2: second}, left_names(steps, 1))


def test_images_that_came_with_steps_that_are_gone_cannot_be_told_from_others():
    steps = {1: [(0, (1, -1, -1)), (1, (1, -1, -1))], 2: [(0, (-1, 1, -1)), (2, (-1, 1, -1))], 3: [(2, (-1, -1, 1))]}
    left = learned(steps).without_step(3)
    assert_is(left, {1: steps[1], 2: steps[2]}, ("a", "b"))
    with pytest.raises(UserError, match="step 2 cannot be taken back: some of its photos had also come with a step"):
        left.without_step(2)  # image 0 would stay, image 2 would go, and both are in one matrix


def test_a_class_that_nobody_has_labelled_stays_when_a_step_goes():
    ledger = learned({1: [(0, (1, 0, -1))], 2: [(1, (1, -1, -1))]})
    assert ledger.without_step(2).classes == ("a", "b", "c")
    assert ledger.without_step(1).classes == ("a", "c")  # only step 1 was about b


def test_steps_have_rising_numbers():
    ledger = learned({4: BOTH})
    with pytest.raises(UserError, match="step 4 cannot be learned after step 4"):
        with_step(ledger, 4, BOTH)
    with pytest.raises(UserError, match=r"unknown step '3'.*4"):
        ledger.without_step(3)


@given(steps=STEPS)
@few
def test_a_saved_ledger_is_the_same_to_the_bit(steps):
    owner, other = Owner(), Owner()
    owner.ledger = learned(numbered(steps))
    tensors, values = state_of(owner)
    load_state_of(other, State({name: one.clone() for name, one in tensors.items()}, values))
    for name, value in vars(owner.ledger).items():
        found = getattr(other.ledger, name)
        if isinstance(value, tuple):
            assert len(found) == len(value)
            assert all(same(*pair) for pair in zip(found, value, strict=True)), name
        else:
            assert same(found, value), name
    assert_is(other.ledger, numbered(steps))


class Owner:
    saved = ("ledger",)

    def __init__(self):
        self.ledger = Ledger(1)


def same(one, other):
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


@given(steps=STEPS, own=st.integers(1, 3))
@few
def test_sums_are_exact_however_few_steps_have_a_matrix_of_their_own(steps, own):
    steps = numbered(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "OWN", own)
        ledger = learned(steps)
        assert_is(ledger, steps)
        assert_is(ledger.without_class("b"), steps, ("a", "c"))
        last = max(steps)
        rest = {number: rows for number, rows in steps.items() if number != last}
        assert_is(ledger.without_step(last), rest, left_names(steps, last))
    gram = sum(learned(steps).grams)  # with a matrix for each step
    torch.testing.assert_close(sum(ledger.grams), gram, rtol=0, atol=1e-9)


def test_only_the_newest_steps_have_a_matrix_of_their_own_and_can_be_taken_back(monkeypatch):
    monkeypatch.setattr(ledger_module, "OWN", 2)
    steps = {number: [(number, (1, 0, -1)), (0, (-1, -1, 1))] for number in range(1, 6)}
    del steps[1][1], steps[4][1]
    ledger = learned(steps)
    assert set(ledger.groups) == {0, 4, 5}
    assert_is(ledger.without_step(4), {number: rows for number, rows in steps.items() if number != 4})
    with pytest.raises(UserError, match=r"step 1 cannot be taken back: only the newest 2 steps keep.*forgotten"):
        ledger.without_step(1)
    again = with_step(ledger, 6, [(1, (-1, 1, -1)), (2, (0, -1, -1))])  # images of steps that have no matrix any more
    assert_is(again, steps | {6: [(1, (-1, 1, -1)), (2, (0, -1, -1))]})


def test_the_number_of_matrices_has_a_bound():
    ledger, image = Ledger(WIDTH).with_classes(("a",)), torch.ones(1, WIDTH - 1).double()
    for number in range(1, 2 * ledger_module.OWN):
        ledger = ledger.with_step(number, np.array([number]), np.ones((1, 1), np.int8), in_memory(number * image))
        assert len(ledger.grams) == min(number, ledger_module.OWN + 1)
    assert ledger.images == ledger.sums().images == 2 * ledger_module.OWN - 1


def test_labels_of_some_images_are_theirs_in_any_order():
    ledger = learned({1: [(0, (1, 0, -1)), (1, (0, 1, -1))], 2: [(1, (-1, 0, 1)), (2, (1, 1, 1))]})
    rows = np.array([2, 0, 2, 1])
    assert np.array_equal(ledger.labels_now(rows), ledger.labels_now()[rows])


def test_images_that_are_not_remembered_count_again():
    labels = np.array([[1, 0, -1]] * IMAGES, np.int8)
    ledger = learned({1: BOTH})
    twice = with_images(with_images(ledger, DESCRIBED, labels), DESCRIBED[:3], labels[:3])
    assert not twice.remembers
    assert twice.sums().images == 2 + IMAGES + 3
    assert twice.counts().images.tolist() == [IMAGES + 5] * 3
    assert twice.counts().positives.tolist() == [IMAGES + 4, 1, 0]
    left = twice.without_step(1)
    assert left.classes == NAMES  # who said what about the others is not known
    torch.testing.assert_close(
        left.sums().cross,
        with_images(with_images(Ledger(WIDTH).with_classes(NAMES), DESCRIBED, labels), DESCRIBED[:3], labels[:3])
        .sums()
        .cross,
    )


def test_three_hundred_sessions_of_one_class_equal_one_session_of_all():
    width, count = 24, 300
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(count * 4, width - 1, generator=generator, dtype=torch.float64)
    names = tuple(f"class {place}" for place in range(count))
    y = np.eye(count, dtype=np.int8).repeat(4, 0)
    step, sizes = Ledger(width), set()
    for place in range(count):
        part = slice(4 * place, 4 * place + 4)
        step = with_images(step.with_classes(names[: place + 1]), z[part], y[part, : place + 1])
        sizes.add((len(step.groups), step.grams[0].numel(), len(step.fingerprints)))
    batch = with_images(Ledger(width).with_classes(names), z, y)
    one, other = (choose_ridge(ledger.sums(), names) for ledger in (step, batch))
    assert one.ridge == pytest.approx(other.ridge, rel=1e-12)
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-8)
    assert sizes == {(1, width * (width + 1) // 2, 0)}  # but for a column a class, nothing grows


def fixed_solution(ledger, penalty):
    """Weights with a penalty that does not depend on the images."""
    matrix = ledger.sums().matrix()
    whole = matrix + matrix.tril(-1).T
    return torch.linalg.solve(whole + penalty, ledger.sums().cross)


@given(steps=STEPS, told=st.lists(st.sampled_from([-1, 0, 1]), min_size=3, max_size=3))
@few
def test_a_new_image_with_its_own_scores_leaves_the_weights_of_what_is_unknown(steps, told):
    steps = [[(image % (IMAGES - 1), labels) for image, labels in rows] for rows in steps]  # the last one is new
    before, penalty = (
        learned(numbered(steps)),
        torch.diag(torch.tensor([1.0] * (WIDTH - 1) + [1e-9], dtype=torch.float64)),
    )
    weights, image = fixed_solution(before, penalty), [IMAGES - 1]
    expected = (torch.cat([DESCRIBED[image], torch.ones(1, 1)], 1).double() @ weights).numpy().astype(np.float32)
    labels = np.array([told], np.int8)
    after = before.with_step(9, PRINTS[image], labels, in_memory(DESCRIBED[image]), expected)
    unknown = [column for column, one in enumerate(told) if one < 0]
    torch.testing.assert_close(fixed_solution(after, penalty)[:, unknown], weights[:, unknown], atol=1e-5, rtol=1e-5)
    assert np.array_equal(after.labels_now(after.find(PRINTS[image])), labels)

    # What is said about it later replaces what was expected, and can be taken back.
    truth = np.array([TRUTH[IMAGES - 1]], np.int8)
    later = after.with_step(10, PRINTS[image], truth, in_memory(DESCRIBED[image]))
    plain = before.with_step(9, PRINTS[image], truth, in_memory(DESCRIBED[image]))
    torch.testing.assert_close(later.sums().cross, plain.sums().cross, atol=1e-6, rtol=1e-6)
    assert later.counts().positives.tolist() == plain.counts().positives.tolist()
    left = later.without_step(10)  # without classes that only this step spoke of
    torch.testing.assert_close(left.sums().cross, after.with_classes(left.classes).sums().cross, atol=1e-6, rtol=1e-6)


@given(steps=STEPS)
@few
def test_two_classes_made_one_are_as_if_each_image_had_been_labelled_with_the_one(steps):
    steps = [[(image, tuple(max(one, -1) for one in labels)) for image, labels in rows] for rows in steps]
    ledger = learned(numbered(steps))
    joined = ledger.joined(9, "b", "a", lambda rows: features_of(ledger.fingerprints[rows]))
    labels = ledger.labels_now()
    united = np.where((labels[:, :2] == 1).any(axis=1), 1, labels[:, 0])
    assert joined.classes == ("a", "c")
    assert np.array_equal(joined.labels_now()[:, 0], united)
    z = features_of(joined.fingerprints)
    torch.testing.assert_close(joined.sums().cross[:, 0], z.T @ torch.from_numpy(united == 1).double())
    assert joined.counts().positives.tolist()[0] == (united == 1).sum()


def test_two_classes_made_one_count_what_was_expected_of_them_once():
    ledger = learned(numbered([[(0, (1, 0, 1)), (1, (0, 1, 0))]]))
    guesses = np.array([[0.2, 0.3, 0.4], [0.5, 0.6, 0.1], [0.1, 0.7, 0.2]], np.float32)
    told = np.array([[-1, -1, 1], [-1, 1, 0], [1, -1, 0]], np.int8)
    images = [2, 3, 4]
    ledger = ledger.with_step(2, PRINTS[images], told, in_memory(DESCRIBED[images]), guesses)
    joined = ledger.joined(3, "b", "a", lambda rows: features_of(ledger.fingerprints[rows]))
    counted = {0: 1.0, 1: 1.0, 2: 0.2 + 0.3, 3: 1.0, 4: 1.0}  # nothing known of image 2, so what is expected adds up
    z = features_of(PRINTS[list(counted)])
    values = torch.tensor(list(counted.values()), dtype=torch.float64)
    torch.testing.assert_close(joined.sums().cross[:, 0], z.T @ values, atol=1e-6, rtol=1e-6)


def features_of(prints):
    places = [PRINTS.tolist().index(one) for one in prints.tolist()]
    return torch.cat([DESCRIBED[places], torch.ones(len(places), 1, dtype=DESCRIBED.dtype)], 1)


def test_a_ledger_of_an_earlier_version_has_no_guesses():
    ledger = learned(numbered([[(0, (1, 0, 1)), (1, (0, 1, 0))]]))
    earlier = dataclasses.replace(ledger, guesses=())
    again = earlier.with_step(2, PRINTS[[0]], np.array([[0, 1, -1]], np.int8), in_memory(DESCRIBED[[0]]))
    assert_is(again, numbered([[(0, (1, 0, 1)), (1, (0, 1, 0))], [(0, (0, 1, -1))]]))
