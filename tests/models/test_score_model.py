"""What scores mean: probabilities, thresholds and the quality to expect, against scores drawn by chance."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.evaluation.metrics import average_precision
from mlcil.models.ridge import choose_ridge, solve
from mlcil.models.score_model import SMALLEST_GAP, ScoreModel, score_model

from .test_ridge import made, sums_of

few = settings(max_examples=15, deadline=None, derandomize=True)
MODELS = st.builds(
    lambda low, gap, deviation, share: model((low + gap * deviation, low, deviation, share)),
    st.floats(-1, 1),
    st.floats(0.5, 3),
    st.floats(0.05, 2),
    st.floats(0.15, 0.6),
)


def model(*classes, seen=None):
    """From the mean with a class, without it, the deviation and the share of each class."""
    columns = torch.tensor(classes, dtype=torch.float64).T
    return ScoreModel(*columns, torch.tensor([True] * len(classes) if seen is None else seen))


def drawn(one, count=100_000, seed=0):
    """Labels and scores (n, K) as a model expects them."""
    rng = np.random.default_rng(seed)
    y = rng.random((count, len(one.share))) < one.share.numpy()
    means = np.where(y, one.high.numpy(), one.low.numpy())
    return y, means + one.deviation.numpy() * rng.normal(size=y.shape)


@given(one=MODELS, place=st.floats(-1, 1))
@few
def test_recall_precision_and_average_precision_are_as_expected(one, place):
    y, scores = drawn(one)
    threshold = (one.high + one.low) / 2 + place * one.deviation
    recall, precision = one.expected(threshold)
    tagged = scores > threshold.numpy()
    assert tagged[y].mean() == pytest.approx(float(recall), abs=0.01)
    assert y[tagged].mean() == pytest.approx(float(precision), abs=0.015)
    found = average_precision(scores.astype(np.float32), y.astype(np.int8))[0]
    assert found == pytest.approx(float(one.expected_ap()), abs=0.015)


def test_average_precision_is_given_in_parts_of_one():
    perfect, blind = model((100, 0, 1, 0.3)), model((0.001, 0, 1, 0.3))
    assert float(perfect.expected_ap()) == pytest.approx(1, abs=1e-3)
    assert float(blind.expected_ap()) == pytest.approx(0.3, abs=1e-3)


@given(one=MODELS, precision=st.floats(0.3, 0.95))
@few
def test_the_threshold_for_a_precision_is_the_lowest_that_gives_it(one, precision):
    found = one.thresholds_for(precision)
    if torch.isinf(found):
        assert float(one.expected(one.high + 4 * one.deviation)[1]) < precision
        return
    y, scores = drawn(one)
    tagged = scores > found.numpy()
    if tagged.sum() > 5000:
        assert y[tagged].mean() > precision - 0.015
    assert float(one.expected(found)[1]) >= precision
    rung = (one.high - one.low + 8 * one.deviation) / 800
    lower = found - 1.001 * rung
    assert float(one.expected(lower)[1]) < precision or float(lower) < float(one.low - 4 * one.deviation)


def test_a_precision_that_cannot_be_had_and_classes_never_seen():
    one = model((1.0, 0.0, 0.2, 0.3), (0.1, 0.0, 1.0, 0.001), (0.0, 0.0, 1.0, 0.5), seen=[True, True, False])
    assert torch.isinf(one.thresholds_for(0.99)).tolist() == [False, True, True]
    assert torch.isinf(one.best_thresholds()).tolist() == [False, False, True]
    assert torch.isnan(one.expected_ap()).tolist() == [False, False, True]
    assert torch.sigmoid(one.slope * 1e3 + one.offset)[:2].tolist() == pytest.approx([1, 1])
    assert float(torch.sigmoid(one.slope * 1.0 + one.offset)[2]) < 1e-9
    assert len(ScoreModel.empty().best_thresholds()) == len(ScoreModel.empty().slope) == 0


@given(one=MODELS)
@few
def test_probabilities_are_calibrated_and_thresholds_the_best(one):
    y, scores = drawn(one)
    probability = torch.sigmoid(one.slope * torch.from_numpy(scores) + one.offset).numpy()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (probability >= low) & (probability < low + 0.2)
        if inside.sum() > 5000:
            assert y[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.03)

    def f1(threshold):
        claimed = scores > threshold
        return 2 * (claimed & y).sum() / (claimed.sum() + y.sum())

    best = max(f1(threshold) for threshold in np.linspace(scores.min(), scores.max(), 100))
    assert f1(float(one.best_thresholds())) > best - 0.006


def test_the_best_threshold_of_a_rare_class_is_far_from_the_middle():
    z, y = made(4, images=2000, classes=1)
    rare = np.arange(2000) % 10 == 0
    z, y = z[(y[:, 0] == 0) | rare], y[(y[:, 0] == 0) | rare]
    sums = sums_of(z, y)
    one = score_model(sums, solve(sums, 1.0))
    assert float(one.best_thresholds()) > float((one.high + one.low) / 2) + 0.5 * float(one.deviation)


def test_the_model_comes_from_the_moments_of_scores():
    z, y = made(4, images=400, classes=2)
    sums = sums_of(z, y)
    found = solve(sums, 5.0)
    one, scores, own = score_model(sums, found), z @ found.weights.numpy(), found.freedom
    for column in range(2):
        present, absent = scores[y[:, column] == 1, column], scores[y[:, column] == 0, column]
        within = (present.var() * len(present) + absent.var() * len(absent)) / len(z)
        assert float(one.share[column]) == pytest.approx(len(present) / len(z))
        assert float(one.high[column]) == pytest.approx((present.mean() - own) / (1 - own), rel=1e-8)
        assert float(one.low[column]) == pytest.approx(absent.mean() / (1 - own), rel=1e-8)
        assert float(one.deviation[column]) == pytest.approx(within**0.5 / (1 - own), rel=1e-8)
        slope = (one.high - one.low) / one.deviation**2
        offset = torch.log(one.share / (1 - one.share)) - slope * (one.high + one.low) / 2
        torch.testing.assert_close(one.slope, slope)
        torch.testing.assert_close(one.offset, offset)


def test_a_class_without_positives_or_without_negatives_is_finite():
    z, y = made(3)
    wide = np.concatenate([y, np.zeros((60, 1)), np.ones((60, 1))], 1)
    sums = sums_of(z, wide)
    one = score_model(sums, solve(sums, 2.0))
    assert torch.isfinite(one.slope).all()
    assert torch.isfinite(one.offset).all()
    assert one.seen.tolist() == [True, True, True, False, True]
    assert one.best_thresholds()[3] == torch.inf
    assert torch.sigmoid(one.offset[3]) < 1e-9
    assert torch.sigmoid(one.slope + one.offset)[4] > 0.999  # every image scores 1


def test_however_little_is_known_scores_keep_their_order():
    # One positive among many images, and more features than images: what is known of the class is next to nothing.
    rng = np.random.default_rng(0)
    z, new = (np.concatenate([rng.normal(size=(n, 59)), np.ones((n, 1))], 1) for n in (40, 500))
    y = np.zeros((40, 2))
    y[0, 0], y[:20, 1] = 1, 1
    sums = sums_of(z, y)
    found = choose_ridge(sums, ("rare", "noise"))
    one = score_model(sums, found)
    assert (one.high - one.low >= 0.999 * SMALLEST_GAP * one.deviation).all()
    scores = torch.from_numpy(new @ found.weights.numpy()).float()
    probabilities = torch.sigmoid(one.slope.float() * scores + one.offset.float())
    for column in range(2):
        assert len(probabilities[:, column].unique()) > 0.95 * len(scores[:, column].unique())
        assert 0 < one.slope[column] < 1e6


def test_between_scores_far_apart_the_threshold_is_in_the_middle():
    z = np.array([[1.0, 1.0]] * 20 + [[0.0, 1.0]] * 20)
    sums = sums_of(z, z[:, :1])
    assert float(score_model(sums, solve(sums, 1e-6)).best_thresholds()) == pytest.approx(0.5, abs=0.02)
