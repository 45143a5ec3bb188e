"""Ridge regression from sums: the weights, the strength, and the meaning of scores."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlcil.models.statistics import Statistics

from mlcil.core.errors import UserError
from mlcil.models import ridge
from mlcil.models.ridge import LADDER, MOST_FREEDOM, choose_ridge, score_calibration, solve


def made(seed=0, images=60, width=9, classes=3, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(images, width, generator=generator, dtype=torch.float64)
    z[:, -1] = 1
    truth = torch.randn(width, classes, generator=generator, dtype=torch.float64)
    y = (z @ truth + noise * torch.randn(images, classes, generator=generator) > 1).double()
    names = [str(column) for column in range(classes)]
    return Statistics.empty(width).with_classes(names).with_images(z, y), z, y


def literal(z, y, ridge):
    """Ridge regression as written, and the hat matrix."""
    penalty = ridge * torch.eye(z.shape[1], dtype=torch.float64)
    penalty[-1, -1] = 0
    inverse = torch.linalg.inv(z.T @ z + penalty)
    return inverse @ z.T @ y, z @ inverse @ z.T


@given(seed=st.integers(0, 10**6), ridge=st.floats(0.1, 1e4), scale=st.sampled_from([None, 0.1, 30.0]))
@settings(max_examples=40, deadline=None)
def test_solution_freedom_and_error_are_those_of_the_images(seed, ridge, scale):
    sums, z, y = made(seed)
    w = torch.ones(len(z), dtype=torch.float64)
    if scale:  # images may weigh differently, and on any scale
        w = scale * (0.5 + torch.rand(len(z), generator=torch.Generator().manual_seed(seed)).double())
        sums = Statistics.empty(9).with_classes(sums.classes).with_images(z, y, w)
    found = solve(sums, ridge)
    root = w.sqrt()[:, None]
    weights, hat = literal(z * root, y * root, ridge)
    torch.testing.assert_close(found.weights, weights, rtol=1e-8, atol=1e-8)
    assert found.freedom == pytest.approx(float(hat.diagonal().sum()) / len(z), rel=1e-8)
    used = y.std(0) > 0
    mean = (y * w[:, None]).sum(0) / w.sum()
    squares = ((z @ weights - y) ** 2 * w[:, None]).sum(0)[used] / ((y - mean) ** 2 * w[:, None]).sum(0)[used]
    assert found.error == pytest.approx(float(squares.mean()) / (1 - found.freedom) ** 2, rel=1e-6)


@given(seed=st.integers(0, 10**6), width=st.integers(2, 24), leaf=st.integers(1, 6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_freedom_does_not_depend_on_how_the_factor_is_divided(seed, width, leaf):
    sums, z, y = made(seed, width=width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridge, "LEAF", leaf)
        found = solve(sums, 3.0)
    _, hat = literal(z, y, 3.0)
    assert found.freedom == pytest.approx(float(hat.diagonal().sum()) / len(z), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_freedom_of_many_features_is_that_of_the_hat_matrix_on_any_scale(scale):
    sums, z, y = made(6, images=200, width=2 * ridge.LEAF + 45)
    z[:, :-1] *= scale
    sums = Statistics.empty(z.shape[1]).with_classes(sums.classes).with_images(z, y)
    found = solve(sums, 20 * scale**2)
    kernel = z[:, :-1] @ z[:, :-1].T + 20 * scale**2 * torch.eye(200, dtype=torch.float64)  # the dual form
    inverse = torch.linalg.inv(kernel)
    ones = inverse.sum(0)
    residual = 20 * scale**2 * (inverse - torch.outer(ones, ones) / ones.sum())  # identity - hat
    assert found.freedom == pytest.approx(1 - float(residual.diagonal().mean()), rel=1e-6)


def test_the_chosen_strength_is_the_best_of_the_ladder():
    sums, _, _ = made(1, images=40, width=30, noise=3.0)
    best = choose_ridge(sums)
    assert all(solve(sums, best.ridge * LADDER**step).error >= best.error for step in (-1, 1))
    unit = float(sums.matrix().diagonal()[:-1].mean())
    assert np.log2(best.ridge / unit) == pytest.approx(round(np.log2(best.ridge / unit)))


def test_noise_asks_for_more_strength():
    quiet, loud = (choose_ridge(made(2, images=80, width=20, noise=noise)[0]).ridge for noise in (0.05, 8.0))
    assert loud > 4 * quiet


def test_a_class_without_positives_is_finite_and_never_present():
    sums, _, _ = made(3)
    wide = sums.with_classes([*sums.classes, "none"])
    found = choose_ridge(wide)
    slopes, offsets, thresholds = score_calibration(wide, found)
    assert torch.isfinite(found.weights).all()
    assert torch.equal(found.weights[:, 3], torch.zeros(9, dtype=torch.float64))
    assert torch.isfinite(slopes).all()
    assert torch.isfinite(offsets).all()
    assert thresholds[3] == torch.inf
    assert torch.sigmoid(offsets[3]) < 1e-9
    torch.testing.assert_close(found.weights[:, :3], solve(sums, found.ridge).weights)


def test_the_meaning_of_scores_comes_from_their_moments():
    sums, z, y = made(4, images=400, classes=2)
    found = solve(sums, 5.0)
    scores = z @ found.weights
    for column in range(2):
        present, absent = scores[y[:, column] == 1, column], scores[y[:, column] == 0, column]
        share, own = len(present) / len(z), found.freedom
        within = (present.var(unbiased=False) * len(present) + absent.var(unbiased=False) * len(absent)) / len(z)
        high, low = (present.mean() - own) / (1 - own), absent.mean() / (1 - own)
        slope = (high - low) / (within / (1 - own) ** 2)
        offset = np.log(share / (1 - share)) - slope * (high + low) / 2
        slopes, offsets, _ = score_calibration(sums, found)
        assert slopes[column] == pytest.approx(float(slope), rel=1e-8)
        assert offsets[column] == pytest.approx(float(offset), rel=1e-8)


def test_on_normal_scores_probability_is_calibrated_and_the_threshold_is_the_best():
    generator = torch.Generator().manual_seed(0)
    count, share = 200_000, 0.1
    y = (torch.rand(count, 1, generator=generator) < share).double()
    score = 0.2 * y + 0.1 * torch.randn(count, 1, generator=generator).double()
    sums = Statistics.empty(2).with_classes(["a"]).with_images(torch.cat([score, torch.ones(count, 1)], 1), y)
    fitted = solve(sums, 1e-6)
    slopes, offsets, thresholds = score_calibration(sums, fitted)
    score = torch.cat([score, torch.ones(count, 1)], 1) @ fitted.weights  # a multiple of the feature, and a constant
    probability = torch.sigmoid(slopes * score + offsets)
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        inside = (probability >= low) & (probability < low + 0.2)
        assert float(y[inside].mean()) == pytest.approx(float(probability[inside].mean()), abs=0.02)

    def f1(threshold):
        claimed = score > threshold
        return float(2 * (claimed & (y == 1)).sum() / (claimed.sum() + y.sum()))

    best = max(f1(threshold) for threshold in np.linspace(float(score.min()), float(score.max()), 400))
    middle = (score[y == 1].mean() + score[y == 0].mean()) / 2
    assert f1(thresholds[0]) > best - 0.003
    assert f1(middle) < best - 0.05  # the middle between the means is far from it


def test_nothing_seen_and_damaged_features_are_said():
    with pytest.raises(UserError, match="no image"):
        solve(Statistics.empty(3).with_classes(["a"]), 1.0)
    z = torch.tensor([[float("nan"), 1.0]])
    with pytest.raises(UserError, match="not finite"):
        solve(Statistics.empty(2).with_classes(["a"]).with_images(z, torch.ones(1, 1)), 1.0)


def test_however_little_is_known_scores_keep_their_order():
    # One positive among many images, and more features than images: what is known of the class is next to nothing.
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 60, generator=generator, dtype=torch.float64)
    z[:, -1] = 1
    y = torch.zeros(40, 2, dtype=torch.float64)
    y[0, 0], y[:20, 1] = 1, 1
    sums = Statistics.empty(60).with_classes(["rare", "noise"]).with_images(z, y)
    found = choose_ridge(sums)
    slopes, offsets, _ = score_calibration(sums, found)
    new = torch.randn(500, 60, generator=generator, dtype=torch.float64)
    new[:, -1] = 1
    scores = (new @ found.weights).float()
    probabilities = torch.sigmoid(slopes.float() * scores + offsets.float())
    for column in range(2):
        distinct = len(scores[:, column].unique())
        assert len(probabilities[:, column].unique()) > 0.95 * distinct
        assert 0 < slopes[column] < 1e6


def test_between_scores_far_apart_the_threshold_is_in_the_middle():
    z = torch.tensor([[1.0, 1.0]] * 20 + [[0.0, 1.0]] * 20, dtype=torch.float64)
    sums = Statistics.empty(2).with_classes(["a"]).with_images(z, z[:, :1])
    found = solve(sums, 1e-6)
    assert score_calibration(sums, found)[2][0] == pytest.approx(0.5, abs=0.02)


def test_of_very_many_classes_some_are_asked_whatever_their_order(monkeypatch):
    monkeypatch.setattr(ridge, "ASKED", 4)
    sums, _, _ = made(5, images=80, classes=10, noise=2.0)
    found = choose_ridge(sums)
    assert found.weights.shape == (9, 10)
    turned = choose_ridge(sums.with_classes(sums.classes[::-1]))
    assert turned.ridge == found.ridge
    torch.testing.assert_close(turned.weights.flip(1), found.weights)
    asked = sums.with_classes(sorted(sums.classes)[::3])  # every third, four of ten
    assert choose_ridge(asked).ridge == found.ridge


def test_few_images_are_not_fitted_without_an_error():
    """With fewer images than features a weak ridge fits every label, and cross-validation by sums sees no error."""
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(size=(40, 200)), np.ones((40, 1))], axis=1)
    labels = (features[:, :2] + rng.normal(size=(40, 2)) > 0.5).astype(float)
    sums = Statistics.empty(201).with_classes(["a", "b"])
    sums = sums.with_images(torch.from_numpy(features), torch.from_numpy(labels))
    assert solve(sums, 1e-6).freedom > 0.99
    assert choose_ridge(sums).freedom <= MOST_FREEDOM
