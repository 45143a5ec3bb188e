"""Thresholds and temperatures against a literal search, known answers and the shape of what is stored."""

import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlcil.evaluation.calibration import (
    Calibration,
    absence_weights,
    best_scaling,
    best_threshold,
    class_thresholds,
    stored_thresholds,
)
from mlcil.evaluation.metrics import average_precision, expected_calibration_error, f1_scores

# Few distinct values, so that ties are the rule.
LENGTH = 14
tied = arrays(np.float64, LENGTH, elements=st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.8, 1.0]))
spread = arrays(np.float32, LENGTH, elements=st.floats(0.0009765625, 1, width=32))
some_labels = arrays(np.int8, LENGTH, elements=st.sampled_from([-1, 0, 1]))


def threshold_of(scores, labels, weights=None):
    return best_threshold(scores, labels, np.ones(labels.shape) if weights is None else weights)


def thresholds_of(scores, labels):
    return class_thresholds(scores, labels, np.ones(labels.shape))


def scaling_of(scores, labels, weights=None):
    return best_scaling(scores, labels, np.ones(labels.shape) if weights is None else weights)


def exact_f1(scores, labels, threshold):
    hit = sum(score > threshold and label == 1 for score, label in zip(scores, labels, strict=True))
    claimed = sum(score > threshold and label >= 0 for score, label in zip(scores, labels, strict=True))
    return Fraction(2 * hit, claimed + int((labels == 1).sum()))


def searched_threshold(scores, labels):
    """The highest of the best among all midpoints, each tried on its own."""
    known = [0.0, *sorted({float(score) for score, label in zip(scores, labels, strict=True) if label >= 0})]
    middles = [(below + above) / 2 for below, above in pairwise(known)]
    return max(middles, key=lambda middle: (exact_f1(scores, labels, middle), middle))


@settings(deadline=None)
@given(tied | spread, some_labels)
def test_the_threshold_is_that_of_a_search_over_all_midpoints(scores, labels):
    labels[0] = 1
    assert threshold_of(scores, labels) == pytest.approx(searched_threshold(scores, labels), rel=1e-12)


@settings(deadline=None)
@given(tied | spread, some_labels, st.randoms(use_true_random=False))
def test_the_threshold_does_not_depend_on_the_order_of_images(scores, labels, random):
    order = random.sample(range(LENGTH), LENGTH)
    assert threshold_of(scores[order], labels[order]) == threshold_of(scores, labels)


def test_of_thresholds_that_do_as_well_the_highest_is_taken():
    # To claim one is right once of once, to claim all is right twice of four times.
    scores, labels = np.array([0.9, 0.6, 0.5, 0.2]), np.array([1, 0, 0, 1], np.int8)
    assert exact_f1(scores, labels, 0.75) == exact_f1(scores, labels, 0.1) == Fraction(2, 3)
    assert threshold_of(scores, labels) == 0.75


@pytest.mark.parametrize("above", [0.3, 0.5, 0.7, 1e-300])
def test_neighbours_of_floating_point_are_told_apart(above):
    for _ in range(4):
        below, above = above, math.nextafter(above, math.inf)
        threshold = threshold_of(np.array([below, above]), np.array([0, 1], np.int8))
        assert below <= threshold < above


def test_claiming_all_is_a_choice_even_of_equal_scores():
    assert threshold_of(np.array([0.4, 0.4]), np.array([1, 0], np.int8)) == 0.2
    threshold = threshold_of(np.array([0.0, 0.0]), np.array([1, 0], np.int8))
    assert f1_scores(np.zeros((2, 1)), np.array([[1], [0]]), np.array([threshold])).of1 == pytest.approx(2 / 3)


def test_a_class_with_few_positives_takes_the_threshold_of_all_classes():
    scores = np.array([[0.9, 0.3], [0.8, 0.35], [0.7, 0.32], [0.1, 0.1]])
    labels = np.array([[1, 1], [1, 0], [1, 0], [0, 0]], np.int8)
    own = threshold_of(scores[:, 0], labels[:, 0])
    pooled = threshold_of(scores.ravel(), labels.ravel())
    assert own == pytest.approx(0.4)
    assert pooled == pytest.approx(0.525)
    assert threshold_of(scores[:, 1], labels[:, 1]) == pytest.approx(0.2)
    assert thresholds_of(scores, labels).tolist() == [own, pooled]


def test_without_a_positive_the_threshold_is_the_default():
    scores = np.random.default_rng(0).random((4, 2))
    labels = np.array([[0, -1], [0, 0], [-1, 0], [0, 0]], np.int8)
    assert threshold_of(scores[:, 0], labels[:, 0]) is None
    assert thresholds_of(scores, labels).tolist() == [0.8, 0.8]
    assert thresholds_of(scores[:0], labels[:0]).tolist() == [0.8, 0.8]


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def drawn(seed, temperature, count=20000):
    """Labels as likely as sigmoid(logits) says, and scores that are too sure by the factor `temperature`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 1.5, (count, 2))
    return sigmoid(logits * temperature), (rng.random(logits.shape) < sigmoid(logits)).astype(np.int8)


def likelihood(scores, labels, temperature, shift):
    """The negative log-likelihood, literally, with what holds the temperature at 1 and the shift at 0."""
    p = sigmoid(np.log(scores / (1 - scores)) / temperature + shift)
    held = (1 / temperature - 1) ** 2 / 2 + shift**2 / 2
    return -np.where(labels == 1, np.log(p), np.log(1 - p))[labels >= 0].sum() + held


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("shift", [0.0, -2.0])
def test_a_known_scaling_is_found_again(temperature, shift):
    scores, labels = drawn(0, temperature)
    logits = np.log(scores / (1 - scores)) - shift * temperature
    found, found_shift = scaling_of(sigmoid(logits), labels)
    assert found == pytest.approx(temperature, rel=0.05)
    assert found_shift == pytest.approx(shift, abs=0.05)


def test_the_scaling_is_the_most_likely_one():
    scores, labels = drawn(1, 1.7, 50)
    labels[::7] = -1
    best = scaling_of(scores, labels)
    steps = np.array([-0.5, -0.01, -1e-4, 1e-4, 0.01, 0.5])
    others = [(best[0] * np.exp(step), best[1]) for step in steps]
    others += [(best[0], best[1] + step) for step in steps]
    assert likelihood(scores, labels, *best) < min(likelihood(scores, labels, *one) for one in others)


def test_the_temperature_does_not_depend_on_the_order_of_images():
    scores, labels = drawn(2, 1.3, 500)
    order = np.random.default_rng(0).permutation(500)
    assert scaling_of(scores[order], labels[order]) == scaling_of(scores, labels)


def test_a_few_images_without_an_error_do_not_drive_the_temperature_to_its_limit():
    scores, labels = np.array([[0.6], [0.4]]), np.array([[1], [0]], np.int8)
    assert 0.7 < scaling_of(scores, labels)[0] < 1
    many, truth = scores.repeat(5000, axis=0), labels.repeat(5000, axis=0)
    assert scaling_of(many, truth)[0] < 0.1  # there is no doubt about so many


def test_a_temperature_at_its_limit_counts_for_nothing():
    scores, labels = np.array([[0.9], [0.2], [0.0], [1.0]]), np.array([[0], [1], [1], [0]], np.int8)
    assert scaling_of(scores.repeat(99, axis=0), labels.repeat(99, axis=0)) == (1, 0)


def test_where_nothing_is_known_nothing_changes():
    assert scaling_of(np.full((3, 2), 0.5), np.ones((3, 2), np.int8))[0] == 1  # of logits that are all 0
    assert scaling_of(np.full((3, 2), 0.9), np.full((3, 2), -1, np.int8)) == (1, 0)
    assert scaling_of(np.empty((0, 2)), np.empty((0, 2), np.int8)) == (1, 0)


def test_calibrated_probabilities_are_the_formula_and_right_more_often():
    scores, labels = drawn(3, 3.0)
    calibration = Calibration().extended(scores, labels, len(scores))
    again, truth = drawn(4, 3.0)
    probabilities = calibration.probabilities(again)
    expected = sigmoid(np.log(again / (1 - again)) / calibration.temperatures + calibration.shifts)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9)
    assert expected_calibration_error(again, truth) > 0.05
    assert expected_calibration_error(probabilities, truth) < 0.025


@pytest.mark.parametrize("temperature", [0.5, 1.0, 7.0, math.exp(3)])
def test_calibration_leaves_the_ranking_alone(temperature):
    rng = np.random.default_rng(0)
    scores = sigmoid(rng.normal(0, 8, (300, 2))).astype(np.float32)  # many beyond 1e-6
    scores[:2] = [[0, 1], [1, 0]]
    labels = rng.integers(-1, 2, scores.shape).astype(np.int8)
    probabilities = Calibration(np.full(2, 0.5), np.full(2, temperature), np.full(2, -1.0)).probabilities(scores)
    assert probabilities[:2].tolist() == [[0, 1], [1, 0]]
    np.testing.assert_array_equal(average_precision(probabilities, labels), average_precision(scores, labels))


def test_a_session_adds_its_classes_and_makes_those_of_others_rarer():
    scores, labels = drawn(5, 2.0, 40)
    scores = scores.astype(np.float32)
    first = Calibration().extended(scores[:, :1], labels[:, :1], images=100)
    assert first.thresholds.tolist() == [threshold_of(scores[:, 0], labels[:, 0])]  # they are all images there are
    hidden = np.concatenate([np.full((40, 1), -1, np.int8), labels[:, 1:]], axis=1)
    second = first.extended(scores, hidden, images=300)
    for column, rarity in ((0, 4.0), (1, 4 / 3)):
        part = slice(column, column + 1)
        weights = absence_weights(labels[:, part], rarity)
        assert second.thresholds[column] == threshold_of(scores[:, column], labels[:, column], weights[:, 0])
        both = (second.temperatures[column], second.shifts[column])
        assert both == scaling_of(scores[:, part], labels[:, part], weights)
    assert second.thresholds[0] >= first.thresholds[0]
    assert len(first.thresholds) == 1


@pytest.mark.parametrize("rarity", [1.0, 1.5, 8.0])
def test_weights_of_absence_give_the_share_among_all_images(rarity):
    labels = np.array([[1, 0], [0, 0], [0, -1], [1, 1]], np.int8)
    weights = absence_weights(labels, rarity)
    for column, share in ((0, 0.5), (1, 1 / 3)):
        known = labels[:, column] >= 0
        total = weights[known, column].sum()
        assert weights[labels[:, column] == 1, column].sum() / total == pytest.approx(share / rarity)
    assert np.isfinite(absence_weights(np.ones((3, 1), np.int8), rarity)).all()


def test_weighting_an_entry_is_repeating_it():
    scores, labels = drawn(8, 1.5, 30)
    times = np.random.default_rng(0).integers(1, 4, labels.shape).astype(float)
    again, truth = (np.repeat(one[:, 0], times[:, 0].astype(int)) for one in (scores, labels))
    assert threshold_of(scores[:, 0], labels[:, 0], times[:, 0]) == threshold_of(again, truth)
    weighted = scaling_of(scores[:, :1], labels[:, :1], times[:, :1])
    assert weighted == pytest.approx(scaling_of(again[:, None], truth[:, None]), rel=1e-9)


def test_of_very_many_images_some_are_kept():
    scores, labels = drawn(9, 1.5, 2500)
    calibration = Calibration().extended(scores, labels, len(scores))
    assert len(calibration.parts[0].scores) == 834
    assert calibration.parts[0].images == 2500


def test_a_session_without_validation_images_gets_what_changes_nothing():
    calibration = Calibration().extended(np.empty((0, 3), np.float32), np.empty((0, 3), np.int8), 0)
    assert calibration.thresholds.tolist() == [0.8] * 3
    scores = np.random.default_rng(0).random((4, 3))
    np.testing.assert_allclose(calibration.probabilities(scores), scores, rtol=1e-12)


def test_images_that_come_back_are_counted_once():
    """A session of 300 images, of which the first session had 100, adds 200."""
    rng = np.random.default_rng(0)
    scores, labels = rng.random((40, 2)), rng.integers(0, 2, (40, 2)).astype(np.int8)
    first = Calibration().extended(scores[:, :1], labels[:, :1], images=100)
    again, new = first.extended(scores, labels, 300, back=100), first.extended(scores, labels, 200)
    assert again.thresholds[0] == new.thresholds[0]
    assert again.temperatures[0] == new.temperatures[0]


@pytest.mark.parametrize(("images", "is_enough"), [(19, False), (20, True)])
def test_a_session_with_too_few_images_keeps_the_defaults(images, is_enough):
    scores, labels = drawn(5, 3.0, images)
    calibration = Calibration().extended(scores, labels, images)
    assert calibration.parts[0].is_enough == is_enough
    assert (calibration.thresholds.tolist() == [0.8, 0.8]) == (not is_enough)
    assert (calibration.temperatures.tolist() == [1, 1]) == (not is_enough)


def test_scores_that_cannot_be_ranked_are_refused():
    with pytest.raises(ValueError, match="contain NaN"):
        Calibration().extended(np.full((5, 2), np.nan), np.ones((5, 2), np.int8), 5)


def test_stored_values_come_back_to_the_bit():
    calibration = Calibration().extended(*drawn(7, 1.9, 30), 30)
    again = Calibration.from_values(json.loads(json.dumps(calibration.to_values())))
    assert again.thresholds.tolist() == calibration.thresholds.tolist()
    assert again.temperatures.tolist() == calibration.temperatures.tolist()
    assert again.shifts.tolist() == calibration.shifts.tolist()
    later = drawn(8, 1.2, 20)
    wide = [np.concatenate([np.zeros((20, 2)), one], axis=1).astype(one.dtype) for one in later]
    both = [one.extended(*wide, images=70).to_values() for one in (calibration, again)]
    assert both[0] == both[1]


def test_a_methods_own_thresholds_come_first():
    calibration = Calibration(np.array([0.4]), np.array([1.0]), np.array([0.0]))
    assert stored_thresholds(None, None) is None
    assert stored_thresholds(None, calibration) is calibration.thresholds
    assert stored_thresholds(np.array([0.7], np.float32), calibration) == pytest.approx([0.7])
