"""A label solved for after marks is the one that learning the same marks as a table gives."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.models.ridge import factored, solve
from mlcil.models.sums import Sums
from mlcil.teaching.columns import Marks, System, solve_column

WIDTH, RIDGE = 6, 0.8


def made(seed, images):
    """Features (n, d), the last of which is 1."""
    drawn = np.random.default_rng(seed).normal(size=(images, WIDTH - 1))
    return np.concatenate([drawn, np.ones((images, 1))], axis=1)


def sums_of(features, labels):
    return Sums.of(torch.from_numpy(features), labels[:, None], lambda z: z, WIDTH)


def literal(penalty, features, labels):
    """The weights of all photos at once, by the normal equations."""
    return np.linalg.solve(features.T @ features + penalty, features.T @ labels)


@given(seed=st.integers(0, 10**6), learned=st.integers(8, 30), marked=st.integers(0, 9), known=st.integers(0, 4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_marks_are_solved_for_as_a_table_would_be(seed, learned, marked, known):
    draw = np.random.default_rng(seed)
    old, new = made(seed, learned), made(seed + 1, marked)
    before = draw.integers(0, 2, learned).astype(float)
    sums = sums_of(old, before)
    system = System.of(sums, RIDGE)
    penalty = (system.factor @ system.factor.T).numpy() - old.T @ old
    places = draw.permutation(learned)[:known]  # photos that the tagger has learned from, marked once more
    present = draw.integers(0, 2, known + marked).astype(float)
    features = np.concatenate([old[places], new])
    is_in_sums = np.arange(known + marked) < known
    marks = Marks(features, present, np.concatenate([before[places], np.zeros(marked)]), is_in_sums)
    start = literal(penalty, old, before)

    column = solve_column(start, marks, system.directions(features))

    labels = before.copy()
    labels[places] = present[:known]
    everything, all_labels = np.concatenate([old, new]), np.concatenate([labels, present[known:]])
    np.testing.assert_allclose(column.weights, literal(penalty, everything, all_labels), atol=1e-9)
    rows = [*places, *range(learned, learned + marked)]
    for place, row in enumerate(rows):
        others = np.delete(np.arange(len(everything)), row)
        expected = everything[row] @ literal(penalty, everything[others], all_labels[others])
        np.testing.assert_allclose(column.left_out[place], expected, atol=1e-7)


def test_the_factor_solves_as_ridge_regression_does():
    features, labels = made(3, 40), np.random.default_rng(4).integers(0, 2, 40).astype(float)
    sums = sums_of(features, labels)
    weights = torch.cholesky_solve(sums.cross, factored(sums, RIDGE))
    torch.testing.assert_close(weights, solve(sums, RIDGE).weights)
