"""What is expected of a label: probabilities rise with scores, marks narrow the bounds, and no photo flatters it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.teaching.expectation import Expectation


def photos(seed, share=0.05, gap=3.0, count=3000):
    """Scores of photos, and which of them show the label."""
    rng = np.random.default_rng(seed)
    shown = rng.random(count) < share
    return (rng.normal(size=count) + gap * shown).astype(np.float32), shown


def expected(scores, shown, marked, asked=True):
    values = np.asarray(scores[marked], np.float64)
    return Expectation(scores, values, shown[marked].astype(float), np.full(len(marked), asked))


@given(seed=st.integers(0, 1000), marks=st.integers(0, 30))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_probabilities_rise_with_scores_and_figures_lie_within_their_bounds(seed, marks):
    scores, shown = photos(seed, count=400)
    found = expected(scores, shown, np.argsort(-scores)[:marks])
    ladder = np.linspace(float(scores.min()) - 1, float(scores.max()) + 1, 50)
    probabilities = found.probabilities(ladder)
    assert (np.diff(probabilities) >= 0).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    for figure in found.at(found.best_threshold()):
        assert 0 <= figure.low <= figure.value <= figure.high <= 1


def test_what_marks_promise_comes_true_however_photos_were_chosen_by_score():
    errors = []
    for seed in range(12):
        scores, shown = photos(seed)
        ranked = np.argsort(-scores)
        marked = np.concatenate([ranked[:30], ranked[100:400:10]])  # the best, and some further down
        found = expected(scores, shown, marked)
        threshold = found.best_threshold()
        tagged = scores > threshold
        precision, recall = found.at(threshold)
        errors.append([precision.value - shown[tagged].mean(), recall.value - shown[tagged].sum() / shown.sum()])
    precision, recall = np.abs(np.mean(errors, axis=0))
    assert precision < 0.1
    assert recall < 0.2


def test_more_marks_narrow_the_bounds():
    scores, shown = photos(0)
    ranked = np.argsort(-scores)
    threshold = expected(scores, shown, ranked[:20]).best_threshold()
    few, many = (expected(scores, shown, ranked[:marks]).at(threshold)[1] for marks in (20, 400))
    assert many.high - many.low < few.high - few.low


def test_photos_that_somebody_looked_for_do_not_make_a_label_look_more_common():
    scores, shown = photos(0)
    picked = np.flatnonzero(shown)[:10]
    asked, told = expected(scores, shown, picked), expected(scores, shown, picked, asked=False)
    nothing = expected(scores, shown, picked[:0])
    middle = np.array([2.0])
    assert told.probabilities(middle) == nothing.probabilities(middle)
    assert asked.probabilities(middle) > told.probabilities(middle)
