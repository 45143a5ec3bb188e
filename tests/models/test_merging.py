"""Two ledgers in one: what both have learned counts once, or the merge is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from mlcil.core.errors import UserError
from mlcil.models import ledger as ledger_module
from mlcil.models import merging
from mlcil.models.ledger import Ledger

from .images import (
    DESCRIBED,
    IMAGES,
    LABELS,
    NAMES,
    TRUTH,
    WIDTH,
    assert_counts_as,
    assert_is,
    known,
    learned,
    with_images,
)

LIBRARY, OURS, THEIRS = range(4), range(4, 6), range(6, IMAGES)


def merged(first, second):
    """The merged ledger alone."""
    return merging.merged(first, second)[0]


def about(images, *names, labels=TRUTH):
    """What a step says of images: the truth about some classes."""
    masks = [name in names for name in NAMES]
    return [(image, tuple(x if m else -1 for x, m in zip(labels[image], masks, strict=True))) for image in images]


def steps_of(images):
    """Up to two steps about the library or about images of one's own."""
    choice = st.sampled_from([list(LIBRARY), list(images)])
    true = st.lists(st.sampled_from(NAMES), min_size=1).flatmap(
        lambda names: choice.map(lambda one: about(one, *names))
    )
    made = choice.flatmap(lambda one: st.tuples(*[st.tuples(st.just(image), LABELS) for image in one]).map(list))
    return st.lists(st.one_of(true, made), max_size=2)


def both(shared, ours, theirs):
    """Two ledgers with common first steps, and all steps in the order of the merged one."""
    start = dict(enumerate(shared, start=1))
    first = start | dict(enumerate(ours, start=len(shared) + 1))
    second = start | dict(enumerate(theirs, start=len(shared) + 1))
    everything = first | dict(enumerate(theirs, start=len(shared) + len(ours) + 1))
    return learned(first), learned(second), everything


@given(shared=steps_of(OURS), ours=steps_of(OURS), theirs=steps_of(THEIRS))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_merged_they_are_as_if_one_had_learned_all(shared, ours, theirs):
    first, second, everything = both(shared, ours, theirs)
    try:
        found = merged(first, second)
    except UserError:
        event("refused")
        assert {image for rows in ours for image, _ in rows} & {
            image for rows in (*shared, *theirs) for image, _ in rows
        }
        return
    event("merged")
    assert_counts_as(found, known(everything))
    assert_counts_as(merged(second, first), known(everything))
    for number in found.numbers:  # who said what is right as well
        rest = {other: rows for other, rows in everything.items() if other in found.numbers and other != number}
        try:
            left = found.without_step(number)
        except UserError:
            continue
        assert_counts_as(left.with_classes(NAMES), known(rest))


def test_learners_of_different_images():
    first, second, everything = both([], [about(OURS, *"ab")], [about(THEIRS, *"bc")])
    found = merged(first.without_class("c"), second.without_class("a"))
    assert found.classes == ("a", "b", "c")
    assert found.groups == (1, 2)
    assert_counts_as(found, known(everything))
    assert_counts_as(merged(first, Ledger(WIDTH, "same")), known({1: everything[1]}))
    assert_counts_as(merged(Ledger(WIDTH, "same"), first), known({1: everything[1]}))


def test_learners_with_common_first_steps():
    shared = [about(LIBRARY, "a"), about(LIBRARY, "b")]
    first, second, everything = both(shared, [about(OURS, *NAMES)], [about(THEIRS, *"ab")])
    found = merged(first, second)
    assert found.numbers == (1, 2, 3, 4)
    assert_counts_as(found, known(everything))
    assert_counts_as(merged(first, first), known({number: everything[number] for number in (1, 2, 3)}))
    # A step that one of them has taken back is still known from the other.
    assert_counts_as(merged(first, second.without_step(2)), known(everything))


def test_the_same_library_labelled_for_different_classes():
    first, second, everything = both([], [about(LIBRARY, "a")], [about(LIBRARY, "b", "c")])
    found = merged(first, second)
    assert found.groups == (1,)  # of the first; the images of both are the same
    assert_counts_as(found, known(everything))


def test_the_same_library_divided_between_two():
    halves = ([(i, TRUTH[i] if i in own else (-1, -1, -1)) for i in LIBRARY] for own in ((0, 1), (2, 3)))
    first, second, everything = both([], *([half] for half in halves))
    assert_counts_as(merged(first, second), known(everything))


def test_a_correction_of_what_both_began_with_holds():
    wrong = [[1 - x for x in row] for row in TRUTH]
    shared, right = [about(LIBRARY, "a", labels=wrong)], about(LIBRARY, "a")
    for ours, theirs in (([right], []), ([], [right])):
        first, second, everything = both(shared, ours, theirs)
        assert_counts_as(merged(first, second), known(everything))


def test_what_was_said_before_a_common_step_does_not_come_after_it():
    wrong = [[1 - x for x in row] for row in TRUTH]
    first = learned({1: about(LIBRARY, *NAMES)})
    second = learned({1: about(LIBRARY, *NAMES, labels=wrong), 2: about(LIBRARY, *NAMES)})
    for pair in ((first, second), (second, first)):
        with pytest.raises(UserError, match="both have given labels"):
            merged(*pair)


def test_images_that_came_with_others_are_refused():
    first, second, _ = both([], [about([0, 1, 2], "a")], [about([1, 2, 3], "b")])
    with pytest.raises(UserError, match="both have seen 2 photos"):
        merged(first, second)


def test_a_group_whose_images_the_other_has_in_several():
    first, second, everything = both([], [about([0, 1], "a"), about([2, 3], "a")], [about(LIBRARY, "b")])
    assert_counts_as(merged(first, second), known(everything))
    assert_counts_as(merged(second, first), known(everything))


def test_labels_of_the_same_class_for_the_same_image_are_refused():
    first = learned({1: [(0, (1, -1, -1)), (1, (1, -1, -1)), (2, (-1, -1, -1))]})
    second = learned({1: [(0, (-1, -1, -1)), (1, (1, -1, -1)), (2, (1, -1, -1))]})
    with pytest.raises(UserError, match=r"both have given labels to the same photos on their own \(a\)"):
        merged(first, second)
    wrong = [[1 - x for x in row] for row in TRUTH]
    first, second, _ = both([], [about(LIBRARY, *"abc")], [about(LIBRARY, "b", labels=wrong)])
    with pytest.raises(UserError, match=r"on their own \(b\)"):
        merged(first, second)


def test_other_features_and_images_without_fingerprints_are_refused():
    first = learned({1: about(OURS, "a")})
    with pytest.raises(UserError, match="do not have the same features"):
        merged(first, replace(first, features="other"))
    with pytest.raises(UserError, match="do not have the same features"):
        merged(first, Ledger(WIDTH + 1, "same"))
    forgetful = with_images(first, DESCRIBED[:1], np.ones((1, 3), np.int8))
    for pair in ((first, forgetful), (forgetful, first)):
        with pytest.raises(UserError, match="does not remember"):
            merged(*pair)


def test_learners_that_parted_after_many_steps_merge_though_the_oldest_share_a_matrix(monkeypatch):
    monkeypatch.setattr(ledger_module, "OWN", 2)
    begun = {number: [(number, (1, 0, -1))] for number in range(1, 4)}
    first, second = {4: [(4, (0, 1, -1))], 5: [(5, (1, 1, -1))]}, {4: [(6, (-1, -1, 1))]}
    one, other = (learned(more, learned(begun)) for more in (first, second))
    assert set(one.groups) == {0, 4, 5}
    assert set(other.groups) == {0, 3, 4}
    both, number = merging.merged(one, other)
    assert number == {1: 1, 2: 2, 3: 3, 4: 6}
    assert_is(both, begun | first | {6: second[4]})
    assert set(both.groups) == {0, 5, 6}
