"""Ridge regression from sums: the weights and their strength."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.core.errors import UserError
from mlcil.models import ridge
from mlcil.models.ridge import LADDER, MOST_FREEDOM, choose_ridge, solve, weights_at
from mlcil.models.sums import Sums

from .images import least_squares

few = settings(max_examples=30, deadline=None, derandomize=True)


def made(seed=0, images=60, width=9, classes=3, noise=1.0):
    """Features with a constant last, on scales and around means of their own, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(images, width - 1))
    truth = rng.normal(size=(width - 1, classes))
    y = (x @ truth + noise * rng.normal(size=(images, classes)) > 1).astype(float)
    x = x * rng.uniform(0.5, 2, width - 1) + rng.normal(size=width - 1)
    return np.concatenate([x, np.ones((images, 1))], 1), y


def sums_of(z, y):
    return Sums.of(torch.from_numpy(z), y > 0, lambda described: described, z.shape[1])


def chosen(z, y):
    return choose_ridge(sums_of(z, y), tuple(str(column) for column in range(y.shape[1])))


def hat_matrix(z, strength):
    """(n, n), which makes scores of labels."""
    return z @ least_squares(z[:, :-1], np.eye(len(z)), strength)


@given(seed=st.integers(0, 10**6), strength=st.floats(0.1, 1e4))
@few
def test_solution_freedom_and_error_are_those_of_the_images(seed, strength):
    z, y = made(seed)
    found = solve(sums_of(z, y), strength)
    weights = least_squares(z[:, :-1], y, strength)
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-7, atol=1e-9)
    hat = hat_matrix(z, strength)
    np.testing.assert_allclose(hat @ y, z @ weights, atol=1e-8)
    assert found.freedom == pytest.approx(np.trace(hat) / len(z), rel=1e-8)
    used = y.std(0) > 0
    error = ((z @ weights - y) ** 2).mean(0)[used] / y.var(0)[used] / (1 - np.trace(hat) / len(z)) ** 2
    assert found.error == pytest.approx(error.mean(), rel=1e-6)
    spread = ((z @ weights - y.mean(0)) ** 2).sum(0)
    np.testing.assert_allclose(found.squares.numpy(), spread, rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 10**6), scales=st.lists(st.floats(0.5, 2), min_size=8, max_size=8), shift=st.floats(-9, 9))
@few
def test_neither_scale_nor_shift_of_a_feature_changes_a_score(seed, scales, shift):
    z, y = made(seed)
    moved = z * np.array([*scales, 1.0]) * 1e3
    moved[:, :-1] += 1e3 * shift
    moved[:, -1] = 1
    one, other = chosen(z, y), chosen(moved, y)
    assert one.ridge == other.ridge
    np.testing.assert_allclose(moved @ other.weights.numpy(), z @ one.weights.numpy(), atol=1e-7)
    assert other.freedom == pytest.approx(one.freedom, rel=1e-7)
    assert other.error == pytest.approx(one.error, rel=1e-7)


@given(seed=st.integers(0, 10**6), data=st.data())
@few
def test_the_order_of_images_features_and_classes_does_not_matter(seed, data):
    z, y = made(seed, images=30)
    rows = data.draw(st.permutations(range(30)))
    features = [*data.draw(st.permutations(range(8))), 8]
    classes = data.draw(st.permutations(range(3)))
    one, other = solve(sums_of(z, y), 2.0), solve(sums_of(z[rows][:, features], y[rows][:, classes]), 2.0)
    np.testing.assert_allclose(other.weights.numpy(), one.weights.numpy()[features][:, classes], atol=1e-9)


def test_a_feature_that_hardly_changes_is_not_blown_up():
    z, y = made(7)
    z[:, 0] *= 1e-3
    z[:, 1] = 5.0  # which says nothing at all
    found = solve(sums_of(z, y), 2.0).weights.numpy()
    np.testing.assert_allclose(found, least_squares(z[:, :-1], y, 2.0), atol=1e-9)
    strong = np.abs(found[0]).max() * z[:, 0].std()  # how far it moves a score
    assert strong < 0.1 * np.abs(found[2:-1]).max()
    np.testing.assert_allclose(found[1], 0, atol=1e-9)


@given(seed=st.integers(0, 10**6), width=st.integers(2, 24), leaf=st.integers(1, 6))
@few
def test_freedom_does_not_depend_on_how_the_factor_is_divided(seed, width, leaf):
    z, y = made(seed, width=width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridge, "LEAF", leaf)
        found = solve(sums_of(z, y), 3.0)
    assert found.freedom == pytest.approx(np.trace(hat_matrix(z, 3.0)) / len(z), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_freedom_of_many_features_is_that_of_the_hat_matrix_on_any_scale(scale):
    z, y = made(6, images=200, width=2 * ridge.LEAF + 45)
    z[:, :-1] *= scale
    found = solve(sums_of(z, y), 20)
    x = (z[:, :-1] - z[:, :-1].mean(0)) / z[:, :-1].std(0)
    residual = 20 * np.linalg.inv(x @ x.T + 20 * np.eye(200)) - 1 / 200  # identity - hat, in the dual form
    assert found.freedom == pytest.approx(1 - np.diagonal(residual).mean(), rel=1e-6)


def test_the_chosen_strength_is_the_best_of_the_ladder():
    z, y = made(1, images=40, width=30, noise=3.0)
    best = chosen(z, y)
    sums = sums_of(z, y)
    assert all(solve(sums, best.ridge * LADDER**step).error >= best.error for step in (-1, 1))
    rung = np.log2(best.ridge / len(z)) / np.log2(LADDER)
    assert rung == pytest.approx(round(rung))


@given(seed=st.integers(0, 10**6), images=st.integers(3, 90), width=st.integers(2, 60), noise=st.floats(0, 9))
@few
def test_a_search_in_float32_finds_the_strength_of_one_in_float64(seed, images, width, noise):
    z, y = made(seed, images, width, noise=noise)
    if width > 20:  # features that say the same thing, and hardly anything else
        z[:, 10:-1] = z[:, :1] + 1e-4 * z[:, 10:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridge, "CLOSE", np.inf)  # every comparison is too close for float32
        exact = chosen(z, y)
    assert chosen(z, y).ridge == exact.ridge


@pytest.mark.parametrize("shared", [0.0, 0.99])
def test_a_fit_in_float32_errs_by_far_less_than_what_it_may_decide(shared):
    z, y = made(4, images=300, width=200)
    z[:, :-1] += 50 * shared * z[:, :1]  # one feature in all others, so that the matrix is nearly singular
    sums = sums_of(z, y)
    standard = ridge._standardise(sums)
    for rung in range(ridge.WEAKEST_ROUGH, 6):
        rough = ridge._Tridiagonal(standard, sums.images).fit(sums.images * LADDER**rung)
        exact = ridge._fit(standard, sums.images * LADDER**rung, sums.images)
        assert rough.error == pytest.approx(exact.error, rel=ridge.CLOSE / 5)
        assert rough.freedom == pytest.approx(exact.freedom, abs=ridge.CLOSE / 5)


@given(seed=st.integers(0, 10**6), strength=st.floats(0.1, 1e4))
@few
def test_weights_alone_are_those_of_the_solution(seed, strength):
    sums = sums_of(*made(seed))
    torch.testing.assert_close(weights_at(sums, strength), solve(sums, strength).weights, rtol=0, atol=0)


def test_noise_asks_for_more_strength():
    quiet, loud = (chosen(*made(2, images=80, width=20, noise=noise)).ridge for noise in (0.05, 8.0))
    assert loud > 4 * quiet


def test_a_class_without_positives_or_without_negatives_has_no_weights():
    z, y = made(3)
    wide = np.concatenate([y, np.zeros((60, 1)), np.ones((60, 1))], 1)
    found = chosen(z, wide)
    assert torch.isfinite(found.weights).all()
    np.testing.assert_allclose(found.weights[:, 3:].numpy(), [[0, 0]] * 8 + [[0, 1]], atol=1e-12)
    np.testing.assert_allclose(found.weights[:, :3].numpy(), solve(sums_of(z, y), found.ridge).weights.numpy())
    assert found.error == pytest.approx(chosen(z, y).error)
    assert choose_ridge(Sums.empty(9) + sums_of(z, y[:, :0]), ()).weights.shape == (9, 0)


def test_nothing_seen_and_damaged_features_are_said():
    with pytest.raises(UserError, match="no image"):
        solve(Sums.empty(3, 1), 1.0)
    for damaged in (np.nan, np.inf):
        with pytest.raises(UserError, match="not finite"):
            solve(sums_of(np.array([[damaged, 1.0], [0.0, 1.0]]), np.ones((2, 1))), 1.0)
    with pytest.raises(UserError, match=r"3 image\(s\) all look the same"):
        solve(sums_of(np.array([[0.3, 7.1, 1.0]] * 3), np.ones((3, 1))), 1.0)
    z, y = made(0)
    with pytest.raises(UserError, match="more was taken away than added"):
        solve(sums_of(z, y) - sums_of(5 * z[:50], y[:50]) + sums_of(z * 0 + np.eye(9)[-1], y), 1e-6)


def test_of_very_many_classes_some_are_asked_whatever_their_order(monkeypatch):
    monkeypatch.setattr(ridge, "ASKED", 4)
    z, y = made(5, images=80, classes=10, noise=2.0)
    found = chosen(z, y)
    assert found.weights.shape == (9, 10)
    turned = choose_ridge(sums_of(z, y[:, ::-1]), tuple("9876543210"))
    assert turned.ridge == found.ridge
    torch.testing.assert_close(turned.weights.flip(1), found.weights)
    assert choose_ridge(sums_of(z, y[:, ::3]), tuple("0369")).ridge == found.ridge  # every third, four of ten


def test_few_images_are_not_fitted_without_an_error():
    """With fewer images than features a weak ridge fits every label, and cross-validation by sums sees no error."""
    z, y = made(0, images=40, width=201, classes=2)
    assert solve(sums_of(z, y), 1e-6).freedom > 0.99
    assert chosen(z, y).freedom <= MOST_FREEDOM
