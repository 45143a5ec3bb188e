"""The threshold search against algorithm 1 written out, and the labels that follow."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlcil.methods.pseudo_labels import (
    HIGHEST,
    LOWEST,
    ClassRecall,
    binary_entropy,
    fill_unknown,
    find_threshold,
    rate_per_image,
)

CAP = 2000


def literal(scores, target, start=0.8, step=0.01, tolerance=0.1):
    """KRT's algorithm 1, counting afresh at every step; None where it does not end within bounds."""
    threshold = start
    for _ in range(CAP):
        if not LOWEST <= threshold <= HIGHEST:
            return None
        mean = (scores > threshold).sum(axis=1).mean()
        if abs(mean - target) <= tolerance:
            return threshold
        threshold = threshold + step if mean > target else threshold - step
    return None


def made_up_scores(kind, seed, images, classes):
    rng = np.random.default_rng(seed)
    uniform = rng.random((images, classes))
    sharp = rng.beta(0.1, 0.1, (images, classes))
    return {
        "uniform": uniform,
        "low": uniform**6,
        "high": 1 - uniform**6,
        "sharp": sharp,
        "middle": rng.beta(20, 20, (images, classes)),
        "coarse": np.floor(uniform * 5) / 5 + 0.0037,  # many ties, none on a point of the walk
        "narrow": 0.6033 + 1e-4 * uniform,
        "float32": uniform.astype(np.float32).astype(np.float64),
    }[kind]


KINDS = ["uniform", "low", "high", "sharp", "middle", "coarse", "narrow", "float32"]


def check_closest(found, scores, target):
    candidates = np.unique(np.concatenate([scores.ravel(), np.linspace(LOWEST, HIGHEST, 997)]))
    candidates = candidates[(candidates >= LOWEST) & (candidates <= HIGHEST)]
    counts = np.array([(scores > one).sum(axis=1).mean() for one in candidates])
    assert abs(found.mean_count - target) <= np.abs(counts - target).min() + 1e-12


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**31),
    images=st.integers(1, 40),
    classes=st.integers(1, 12),
    part=st.floats(0, 1.2),
    start=st.sampled_from([0.8, 0.5, 0.05, 0.97]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_equal_to_algorithm_1(kind, seed, images, classes, part, start):
    scores, target = made_up_scores(kind, seed, images, classes), part * classes * 0.6
    found, expected = find_threshold(scores, target, start), literal(scores, target, start)
    assert LOWEST <= found.value <= HIGHEST
    assert found.mean_count == pytest.approx((scores > found.value).sum(axis=1).mean(), abs=1e-12)
    assert found.met == (abs(found.mean_count - target) <= 0.1)
    if expected is None:
        check_closest(found, scores, target)
    else:
        assert found.value == expected  # to the bit
        assert found.met


@pytest.mark.parametrize("constant", [0.0, LOWEST, 0.3, 0.8, 0.81, HIGHEST, 1.0])
@pytest.mark.parametrize("target", [0.0, 0.5, 2.0, 4.0, 9.0])
def test_constant_scores(constant, target):
    scores = np.full((6, 4), constant)
    found, expected = find_threshold(scores, target), literal(scores, target)
    if expected is None:
        check_closest(found, scores, target)
    else:
        assert found.value == expected


def test_one_image():
    assert find_threshold(np.array([[0.9, 0.2, 0.1]]), 1.0).value == 0.8
    found = find_threshold(np.array([[0.9, 0.2, 0.1]]), 2.0)
    assert found.met
    assert 0.1 <= found.value < 0.2


def test_a_walk_that_swings_for_ever_ends_between():
    scores = np.full((10, 2), 0.8051)  # 20 labels below, none above
    scores[0, 0] = 0.8052
    found = find_threshold(scores, 1.0)
    assert literal(scores, 1.0) is None
    assert not found.met
    check_closest(found, scores, 1.0)


def literal_closest(scores, target):
    """Every score and bound tried as a threshold, the lowest of the best."""
    candidates = np.unique(np.concatenate([scores.ravel().astype(np.float64), [LOWEST, HIGHEST]]))
    candidates = candidates[(candidates >= LOWEST) & (candidates <= HIGHEST)]
    counts = np.array([(scores.astype(np.float64) > one).sum() / len(scores) for one in candidates])
    return candidates[np.abs(counts - target).argmin()]


@given(
    scores=arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 8), st.integers(1, 4)),
        elements=st.sampled_from([0.0, 2**-15, 0.25, 0.75, 0.875, 1.0]),
    ),
    target=st.floats(0, 5),
    start=st.sampled_from([0.8, 1e-5, 0.9999995]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_without_an_end_the_walk_gives_way_to_the_lowest_of_the_closest(scores, target, start):
    found = find_threshold(scores, target, start, tolerance=-1.0)  # which no count meets
    assert found.value == literal_closest(scores, target)
    assert not found.met


@pytest.mark.parametrize("start", [0.8, 0.79, 0.3, 0.7, 0.1])
def test_single_precision_scores_are_compared_in_double_precision(start):
    scores = np.full((4, 1), start, np.float32)  # beside the threshold by its rounding alone
    is_above = float(scores[0, 0]) > start
    assert find_threshold(scores, float(is_above), start).value == start
    assert find_threshold(scores, float(not is_above), start).value != start


def test_one_count_more_or_less_ends_the_walk_at_the_neighbouring_point():
    scores = np.linspace(0.005, 0.995, 100)[:, None]  # one score between any two points of the walk
    for target in np.linspace(0.01, 0.99, 57):
        found, expected = find_threshold(scores, target, tolerance=0.004), literal(scores, target, tolerance=0.004)
        assert found.met == (expected is not None)
        assert expected is None or found.value == expected


def test_restore_fills_unknown_old_columns_alone():
    labels = torch.tensor([[-1, -1, 1, 0], [0, 1, 0, 1], [1, -1, -1, 1]], dtype=torch.int8)
    scores = torch.tensor([[0.9, 0.2], [0.9, 0.2], [0.1, 0.9]])
    before = labels.clone()
    restored = fill_unknown(labels, scores > 0.8)
    assert restored.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, -1, 1]]
    assert restored.dtype == labels.dtype
    assert torch.equal(labels, before)


def test_restore_is_strict():
    labels = torch.full((1, 3), -1, dtype=torch.int8)
    assert fill_unknown(labels, torch.tensor([[0.5, 0.75, 1.0]]) > 0.75).tolist() == [[0, 0, 1]]
    assert fill_unknown(labels, torch.ones(1, 3) > 1.0).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("rate", [0.3, 0.5, 1.0, 2.9, 6.0])
def test_the_rate_of_a_truncated_poisson_is_recovered(rate):
    counts = np.random.default_rng(0).poisson(rate, 400_000)
    counts = np.minimum(counts[counts > 0], 20)
    labels = (np.arange(20) < counts[:, None]).astype(np.int8)
    assert rate_per_image(labels) == pytest.approx(rate, rel=0.05)


def test_one_label_per_image_says_nothing():
    assert rate_per_image(np.eye(4, dtype=np.int8)) == 0
    assert rate_per_image(np.ones((5, 1), np.int8)) is None


def test_images_without_a_label_tell_how_often_there_is_one():
    assert rate_per_image(np.array([[1], [0], [0], [1]], np.int8)) == 0.5
    assert rate_per_image(np.array([[1, 1], [0, 0], [1, -1], [0, 0]], np.int8)) == 0.75


def test_unknown_labels_do_not_count():
    labels = np.array([[1, 1, -1], [1, -1, 0]], np.int8)
    assert rate_per_image(labels) == rate_per_image(labels.clip(min=0))


@given(seed=st.integers(0, 10**6), gate=st.booleans())
@settings(max_examples=40, deadline=None)
def test_recall_by_class_is_the_mean_over_its_positives(seed, gate):
    rng = np.random.default_rng(seed)
    scores = rng.random((30, 4)).astype(np.float32)
    positives = rng.random((30, 4)) < 0.3
    positives[:, 3] = False  # a class that has never been seen
    recall = ClassRecall.empty().refreshed(torch.from_numpy(scores), torch.from_numpy(positives))
    new = rng.random((20, 4)).astype(np.float32)
    found = recall.accepts(torch.from_numpy(new), gate).numpy()
    for column in range(4):
        of_class = scores[positives[:, column], column].astype(np.float64)
        entropy = -(of_class * np.log(of_class) + (1 - of_class) * np.log(1 - of_class))
        for row in range(20):
            p = float(new[row, column])
            sure = len(of_class) > 0 and p >= of_class.mean() - 1e-6
            unsure = -(p * np.log(p) + (1 - p) * np.log(1 - p))
            expected = sure and (not gate or unsure <= entropy.mean() + 1e-6)
            assert found[row, column] == expected
    assert np.array_equal(recall.count.numpy(), positives.sum(0))


def test_a_class_without_positives_keeps_what_was_known_of_it():
    first = ClassRecall.empty().refreshed(torch.tensor([[0.9], [0.7]]), torch.tensor([[True], [True]]))
    scores, positives = torch.tensor([[0.2, 0.6], [0.3, 0.8]]), torch.tensor([[False, True], [False, True]])
    second = first.refreshed(scores, positives)
    torch.testing.assert_close(second.confidence, torch.tensor([0.8, 0.7]))
    assert second.count.tolist() == [2, 2]
    assert torch.equal(second.entropy[:1], first.entropy)
    third = second.refreshed(scores, positives.flip(1))
    torch.testing.assert_close(third.confidence, torch.tensor([0.25, 0.7]))  # refreshed by what is accepted now


def test_entropy_of_certainty_is_zero():
    found = binary_entropy(torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(found, torch.tensor([0.0, float(np.log(2)), 0.0]))


def test_the_entropy_gate_refuses_what_is_likely_but_unsure():
    # Scores of 0.99 and 0.51: their mean is 0.75, their mean entropy 0.37, that of 0.75 is 0.56.
    recall = ClassRecall.empty().refreshed(torch.tensor([[0.99], [0.51]]), torch.ones(2, 1).bool())
    score = torch.tensor([[0.76], [0.95]])
    assert recall.accepts(score, gate=False).tolist() == [[True], [True]]
    assert recall.accepts(score, gate=True).tolist() == [[False], [True]]
