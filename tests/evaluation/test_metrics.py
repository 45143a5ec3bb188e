import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score

from mlcil.evaluation.metrics import (
    average_precision,
    backward_transfer,
    expected_calibration_error,
    f1_scores,
    forgetting,
)

NAN = float("nan")
SHAPE = (12, 3)
# Few distinct values, so that ties are the rule.
tied_scores = arrays(np.float64, SHAPE, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 1.0]))
some_labels = arrays(np.int8, SHAPE, elements=st.sampled_from([-1, 0, 1]))


def column(*values):
    return np.array(values)[:, None]


def test_reference_average_precision():
    ap = average_precision(column(0.9, 0.8, 0.7, 0.6), column(1, 0, 1, 0))
    assert ap == pytest.approx([5 / 6], abs=1e-12)
    assert ap.dtype == np.float64


def test_reference_f1():
    scores = np.array([[0.9, 0.85], [0.95, 0.1], [0.2, 0.81], [0.3, 0.9]])
    labels = np.array([[1, 0], [1, 1], [1, 1], [0, 1]], np.int8)
    f1 = f1_scores(scores, labels, 0.8)
    assert f1.cf1 == pytest.approx(0.733333, abs=1e-6)
    assert f1.cf1_of_means == pytest.approx(0.740741, abs=1e-6)
    assert f1.of1 == pytest.approx(0.727273, abs=1e-6)


@settings(deadline=None)
@given(tied_scores, some_labels)
def test_average_precision_equals_that_of_scikit_learn(scores, labels):
    ap = average_precision(scores, labels)
    for k in range(SHAPE[1]):
        known = labels[:, k] >= 0
        if not (labels[:, k] == 1).any():
            assert np.isnan(ap[k])
        else:
            expected = average_precision_score(labels[known, k], scores[known, k])
            assert ap[k] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(tied_scores, some_labels)
def test_average_precision_ignores_scale_order_and_what_unknown_entries_score(scores, labels):
    ap = average_precision(scores, labels)
    np.testing.assert_array_equal(average_precision(4 * scores - 8, labels), ap)
    np.testing.assert_array_equal(average_precision(scores[::-1], labels[::-1]), ap)
    poisoned = np.where(labels < 0, np.random.default_rng(0).random(SHAPE), scores)
    np.testing.assert_array_equal(average_precision(poisoned, labels), ap)
    np.testing.assert_allclose(f1_scores(poisoned, labels, 0.4), f1_scores(scores, labels, 0.4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [1, 2, 8])
def test_average_precision_of_many_images_equals_that_of_scikit_learn(dtype, decimals):
    rng = np.random.default_rng(decimals)
    labels = (rng.random((3000, 4)) < [0.001, 0.03, 0.5, 1.0]).astype(np.int8)
    labels[0] = 1
    scores = (rng.random(labels.shape) + 0.3 * labels).round(decimals).astype(dtype)
    expected = [average_precision_score(labels[:, k], scores[:, k]) for k in range(4)]
    np.testing.assert_allclose(average_precision(scores, labels), expected, rtol=0, atol=1e-12)


def test_infinite_scores_rank_first_and_last():
    scores = column(np.inf, 1.0, 0.5, -np.inf)
    assert average_precision(scores, column(1, 0, 0, 1)) == pytest.approx([(1 + 2 / 4) / 2])


def test_all_scores_equal_gives_the_share_of_positives():
    assert average_precision(np.zeros((4, 1)), column(1, 0, 0, 0)) == pytest.approx([0.25])


def test_no_image_gives_nan_per_class():
    ap = average_precision(np.zeros((0, 2)), np.zeros((0, 2), np.int8))
    assert ap.shape == (2,)
    assert np.isnan(ap).all()


@pytest.mark.parametrize("metric", [average_precision, lambda s, y: f1_scores(s, y, 0.5), expected_calibration_error])
def test_wrong_input_is_refused(metric):
    with pytest.raises(ValueError, match="must both be"):
        metric(np.zeros((2, 3)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="1 of 2 images contain NaN"):
        metric(np.array([[NAN], [0.0]]), np.zeros((2, 1)))


def test_the_threshold_is_strict_also_in_single_precision():
    scores, labels = np.array([[0.8]], np.float32), np.array([[1]], np.int8)
    assert f1_scores(scores, labels, 0.8) == (0, 0, 0)
    assert f1_scores(np.nextafter(scores, np.float32(1)), labels, 0.8) == (1, 1, 1)


@settings(deadline=None)
@given(tied_scores, some_labels)
def test_a_threshold_per_class_is_as_good_as_moving_the_scores(scores, labels):
    thresholds = np.array([0.1, 0.25, 0.5])
    assert f1_scores(scores, labels, thresholds) == f1_scores(scores - thresholds, labels, 0.0)
    assert f1_scores(scores, labels, np.full(3, 0.25)) == f1_scores(scores, labels, 0.25)


def test_calibration_error_by_hand():
    scores, labels = np.array([[0.1, 0.3], [0.6, 0.9]]), np.array([[0, 1], [1, 1]], np.int8)
    # Below 0.5 the mean score is 0.2 and half are present; above, 0.75 and all: (2 * 0.3 + 2 * 0.25) / 4.
    assert expected_calibration_error(scores, labels, bins=2) == pytest.approx(0.275)
    # In one bin, 0.475 against 0.75.
    assert expected_calibration_error(scores, labels, bins=1) == pytest.approx(0.275)
    # Each in a bin of its own: |0.1|, |0.3 - 1|, |0.6 - 1|, |0.9 - 1|.
    assert expected_calibration_error(scores, labels) == pytest.approx((0.1 + 0.7 + 0.4 + 0.1) / 4)
    # Errors of opposite sign cancel within a bin alone.
    assert expected_calibration_error(column(0.2, 0.8), column(1, 0), bins=2) == pytest.approx(0.8)
    assert expected_calibration_error(column(0.2, 0.8), column(1, 0), bins=1) == pytest.approx(0)


def test_a_score_on_an_edge_belongs_to_the_bin_above_and_one_to_the_last():
    assert expected_calibration_error(column(0.25, 0.5), column(1, 0), bins=2) == pytest.approx((0.75 + 0.5) / 2)
    assert expected_calibration_error(column(0.5, 1.0), column(1, 0), bins=2) == pytest.approx(0.25)
    assert expected_calibration_error(column(0.0, 1.0), column(0, 1)) == 0


def test_unknown_labels_are_left_out_of_the_calibration_error():
    scores, labels = column(0.1, 0.9, 7.0), column(0, 0, -1)
    assert expected_calibration_error(scores, labels, bins=2) == pytest.approx(0.5)
    assert expected_calibration_error(scores, column(-1, -1, -1)) == 0


def test_a_class_without_a_positive_counts_in_of1_only():
    scores, labels = np.array([[0.9, 0.9]]), np.array([[1, 0]], np.int8)
    f1 = f1_scores(scores, labels, 0.5)
    assert (f1.cf1, f1.cf1_of_means) == (1, 1)
    assert f1.of1 == pytest.approx(2 / 3)


def test_f1_is_zero_where_it_is_undefined():
    assert f1_scores(np.zeros((3, 2)), np.zeros((3, 2), np.int8), 0.5) == (0, 0, 0)
    assert f1_scores(np.zeros((0, 2)), np.zeros((0, 2), np.int8), 0.5) == (0, 0, 0)
    # One class predicted rightly, one not predicted at all: its precision counts as 0.
    f1 = f1_scores(np.array([[0.9, 0.1]]), np.ones((1, 2), np.int8), 0.5)
    assert f1 == pytest.approx((0.5, 0.5, 2 / 3))


def test_forgetting_and_backward_transfer_by_hand():
    matrix = np.array(
        [
            [0.9, 0.7, 0.6],  # lost 0.3, since its own session 0.3
            [0.5, 0.8, 0.7],  # lost 0.1, but gained 0.2
            [NAN, 0.4, 0.6],  # gained 0.2: its best is now
            [NAN, NAN, 0.9],  # new
            [NAN, NAN, NAN],  # without a positive
        ]
    )
    lost = forgetting(matrix)
    np.testing.assert_allclose(lost, [-0.3, -0.1, 0, NAN, NAN], atol=1e-12)
    assert backward_transfer(matrix) == pytest.approx((-0.3 + 0.2 + 0.2) / 3)


@pytest.mark.parametrize("matrix", [np.ones((2, 1)), np.ones((0, 3)), np.full((2, 3), NAN)])
def test_without_old_classes_nothing_is_forgotten(matrix):
    assert np.isnan(forgetting(matrix)).all()
    assert backward_transfer(matrix) == 0.0
