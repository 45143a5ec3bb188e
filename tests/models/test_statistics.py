"""The sums of a closed-form learner: added, taken away and merged they stay those of the images that are left."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlcil.models.statistics import Statistics, merged, without, without_class

from mlcil.core.errors import UserError
from mlcil.models.ridge import choose_ridge, solve

WIDTH, RIDGE = 12, 3.0
SUMS = ("gram", "cross", "total", "positives", "counts", "weight", "images")


def session(seed, classes, images=40, features="same"):
    """A session's sums, and the images behind them."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(images, WIDTH, generator=generator, dtype=torch.float64)
    z[:, -1] = 1
    y = (torch.rand(images, len(classes), generator=generator) < 0.4).double()
    y[: len(classes)] = torch.maximum(y[: len(classes)], torch.eye(len(classes)).double())
    w = torch.rand(images, generator=generator).double() + 0.5
    return Statistics.empty(WIDTH, features).with_classes(classes).with_images(z, y, w), (z, y, w)


def joint(parts):
    """Ridge regression on all images at once, a class absent where its session did not label it."""
    names = list(dict.fromkeys(name for sums, _ in parts for name in sums.classes))
    z, w = (torch.cat([images[place] for _, images in parts]) for place in (0, 2))
    y = torch.zeros(len(z), len(names), dtype=torch.float64)
    start = 0
    for sums, (_, labels, _) in parts:
        y[start : start + len(labels), [names.index(name) for name in sums.classes]] = labels
        start += len(labels)
    penalty = RIDGE * torch.eye(WIDTH, dtype=torch.float64)
    penalty[-1, -1] = 0
    return dict(zip(names, torch.linalg.solve(z.T @ (z * w[:, None]) + penalty, z.T @ (y * w[:, None])).T, strict=True))


def weights(sums):
    return dict(zip(sums.classes, solve(sums, RIDGE).weights.T, strict=True))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8)


PARTS = [session(seed, classes) for seed, classes in enumerate((["a", "b"], ["c"], ["d", "e", "a"]))]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_sessions_in_any_order_give_the_solution_of_all_images_at_once(order):
    whole = Statistics.empty(WIDTH, "same")
    for place in order:
        whole = merged(whole, PARTS[place][0])
    assert_same(weights(whole), joint(PARTS))


@given(seed=st.integers(0, 10**6), split=st.integers(1, 39))
@settings(max_examples=25, deadline=None)
def test_images_may_come_in_any_portions(seed, split):
    whole, (z, y, w) = session(seed, ["a", "b"])
    halves = Statistics.empty(WIDTH, "same").with_classes(["a", "b"])
    for part in (slice(split, None), slice(0, split)):
        halves = halves.with_images(z[part], y[part], w[part])
    for name in SUMS:
        torch.testing.assert_close(getattr(halves, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True), data=st.data())
@settings(max_examples=25, deadline=None)
def test_taking_a_session_away_is_as_if_it_had_never_been(seeds, data):
    parts = [session(seed, [f"{seed}-1", f"{seed}-2", "shared"]) for seed in seeds]
    gone = data.draw(st.integers(0, len(parts) - 1))
    whole = Statistics.empty(WIDTH, "same")
    for sums, _ in parts:
        whole = merged(whole, sums)
    left = without(whole, parts[gone][0])
    assert_same(weights(left), joint(parts[:gone] + parts[gone + 1 :]))


def test_taking_a_class_away_leaves_the_others_and_its_images():
    whole = merged(PARTS[0][0], PARTS[1][0])
    expected = joint(PARTS[:2])
    del expected["b"]
    left = without_class(whole, "b")
    assert_same(weights(left), expected)
    assert left.weight == whole.weight
    with pytest.raises(UserError, match=r"class 'x'.*a"):
        without_class(whole, "x")


def test_two_learners_that_share_a_start_merge_into_one():
    base, here, there = (sums for sums, _ in PARTS)
    one, other = merged(base, here), merged(base, there)
    assert_same(weights(merged(one, without(other, base))), joint(PARTS))


@given(seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)))
@settings(max_examples=20, deadline=None)
def test_merging_does_not_mind_who_is_first(seeds):
    one, other = (session(seed, classes)[0] for seed, classes in zip(seeds, (["a", "b"], ["b", "c"]), strict=True))
    assert_same(weights(merged(one, other)), weights(merged(other, one)))
    assert_same(
        weights(merged(one, other).with_classes(["c", "b"])),
        {k: v for k, v in weights(merged(other, one)).items() if k != "a"},
    )


def test_other_features_do_not_mix():
    with pytest.raises(UserError, match="do not have the same features"):
        merged(PARTS[0][0], session(5, ["x"], features="other")[0])
    with pytest.raises(UserError, match="do not have the same features"):
        without(PARTS[0][0], session(5, ["a"], features="other")[0])
    with pytest.raises(UserError, match="do not have the same features"):
        merged(PARTS[0][0], Statistics.empty(WIDTH + 1, "same"))


def test_what_was_never_there_cannot_be_taken_away():
    with pytest.raises(UserError, match="never part of the learner"):
        without(session(1, ["a"], images=10)[0], session(2, ["a"], images=90)[0])
    with pytest.raises(UserError, match="class to take away"):
        without(PARTS[0][0], PARTS[1][0])


def test_pseudo_labels_are_not_counted_as_annotated():
    z, y, annotated = torch.ones(3, WIDTH), torch.tensor([[1.0], [1.0], [0.0]]), torch.tensor([1.0])
    sums = Statistics.empty(WIDTH).with_classes(["a"]).with_images(z, y, annotated=annotated)
    assert (sums.positives.item(), sums.counts.item(), sums.weight.item()) == (2.0, 1.0, 3.0)


def test_pseudo_labels_survive_taking_away_the_last_session_twice():
    (first, _), (_, (z, y, _)) = PARTS[0], PARTS[1]
    labels = torch.cat([torch.zeros(len(z), 2), y], 1)
    labels[::3, 0] = 1  # what a model says of class a, which nobody labelled here
    later = first.with_classes(["a", "b", "c"]).with_images(
        z, labels, annotated=torch.tensor([0.0, 0.0, float(y.sum())])
    )
    again = without(later, without(later, first))
    assert_same(weights(again), weights(first))


def test_three_hundred_sessions_of_one_class_equal_one_session_of_all():
    width, count = 24, 300
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(count * 4, width, generator=generator, dtype=torch.float64)
    z[:, -1] = 1
    names = [f"class {place}" for place in range(count)]
    y = torch.eye(count, dtype=torch.float64).repeat_interleave(4, 0)
    step, sizes = Statistics.empty(width), []
    for place, name in enumerate(names):
        part = slice(4 * place, 4 * place + 4)
        step = step.with_classes([*step.classes, name]).with_images(z[part], y[part, : place + 1])
        sizes.append(step.gram.numel() + step.total.numel() + step.weight.numel())
    batch = Statistics.empty(width).with_classes(names).with_images(z, y)
    one, other = choose_ridge(step), choose_ridge(batch)
    assert one.ridge == pytest.approx(other.ridge, rel=1e-12)
    torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=1e-8)
    assert set(sizes) == {width * (width + 1) // 2 + width + 1}  # but for a column of `cross` a class, nothing grows
