import numpy as np
import pytest
from tests.literal_ridge import mean_ap, ridge_scores

from mlcil.data.protocol import Session
from mlcil.evaluation.closed_form import ClosedFormHeads, arrivals
from mlcil.evaluation.scores import ScoredImages

# Two sessions of two classes each. Rows 2 and 3 have the same content, as far as their fingerprints say.
TRUTH = (np.random.default_rng(0).random((60, 4)) < 0.4).astype(np.int8)
TRUTH[2:4] = [[1, 0, 1, 0], [1, 0, 1, 0]]
PRINTS = np.where(np.arange(60) == 3, 2, np.arange(60)).astype(np.int64)


def the_sessions():
    found = []
    for number, first in enumerate((0, 2), start=1):
        shown = TRUTH[:, first : first + 2]
        indices = np.flatnonzero(shown.any(axis=1))
        labels = np.full((len(indices), first + 2), -1, np.int8)
        labels[:, first:] = shown[indices]
        classes = tuple("abcd"[: first + 2])
        found.append(Session(number, first, first + 2, classes, indices, labels, shown, all_fingerprints=PRINTS))
    return found


def noisy(labels, seed):
    rng = np.random.default_rng(seed)
    return (labels @ rng.normal(size=(4, 9)) + rng.normal(size=(len(labels), 9))).astype(np.float32)


FEATURES, TEST = noisy(TRUTH, 1), (np.random.default_rng(2).random((50, 4)) < 0.4).astype(np.int8)
TEST_FEATURES = noisy(TEST, 1)


def literal_map(rows, present):
    return mean_ap(ridge_scores(FEATURES[rows], present, TEST_FEATURES), TEST)


@pytest.fixture
def heads():
    images = arrivals(the_sessions(), TRUTH)
    tested = ScoredImages(np.zeros(TEST.shape, np.float32), TEST, np.arange(50), tuple("abcd"))
    return ClosedFormHeads(images, FEATURES[images.rows], tested, TEST_FEATURES)


def test_every_row_is_a_literal_ridge_regression(heads):
    pseudo = np.random.default_rng(4).random((len(heads.images.rows), 4)) < 0.5
    found = heads.all_forms(pseudo)
    once = [row for row in range(60) if TRUTH[row].any() and row != 3]
    assert found.all_labels == pytest.approx(literal_map(once, TRUTH[once]))
    # As published, a session has every image that shows one of its classes: together they give all labels.
    assert found.united == pytest.approx(found.all_labels, abs=1e-9)
    first, second = ([row for row in range(60) if TRUTH[row, part].any()] for part in (slice(2), slice(2, 4)))
    none = np.zeros((60, 2), np.int8)
    early, late = np.hstack([TRUTH[:, :2], none])[first], np.hstack([none, TRUTH[:, 2:]])[second]
    assert found.separate == pytest.approx(literal_map(first + second, np.vstack([early, late])))
    late[:, :2] = pseudo[np.searchsorted(heads.images.rows, second), :2]
    assert found.restored == pytest.approx(literal_map(first + second, np.vstack([early, late])))
    own = [
        ridge_scores(FEATURES[rows], TRUTH[rows][:, part], TEST_FEATURES)
        for rows, part in ((first, slice(2)), (second, slice(2, 4)))
    ]
    assert found.own_session == pytest.approx(mean_ap(np.hstack(own), TEST))
    assert len({round(value, 3) for value in found}) == 4  # all but the two that are the same are different


def test_labels_that_no_session_gives_are_missed():
    sessions = the_sessions()[:1]  # the second has not come yet, but its labels are known to the data set
    images = arrivals(sessions, TRUTH)
    assert images.truth.shape == images.labels.shape == (len(sessions[0].indices), 2)
    hidden = sessions[0].labels.copy()
    hidden[::2, 0] = -1
    tested = ScoredImages(np.zeros((50, 2), np.float32), TEST[:, :2], np.arange(50), tuple("ab"))
    heads = ClosedFormHeads(images._replace(labels=hidden), FEATURES[images.rows], tested, TEST_FEATURES)
    found = heads.all_forms()
    assert found.restored is None
    assert found.united != pytest.approx(found.all_labels)
