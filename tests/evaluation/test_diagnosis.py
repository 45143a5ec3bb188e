from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from mlcil.evaluation.diagnosis import ClosedForms, drifts, map_of, new_classes, of_images, waterfall
from mlcil.evaluation.results import evaluate
from mlcil.evaluation.scores import ScoredImages

# Class a is known first; b and c come in the second session, and with them image 4.
BEFORE = ScoredImages(
    np.array([[0.9], [0.1], [0.8], [0.2]], np.float32), np.array([[1], [0], [1], [0]], np.int8), np.arange(4), ("a",)
)
AFTER = ScoredImages(
    np.array([[0.95, 0.1, 0.9], [0.2, 0.8, 0.7], [0.3, 0.9, 0.6], [0.8, 0.2, 0.3], [0.9, 0.7, 0.1]], np.float32),
    np.array([[0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]], np.int8),
    np.array([4, 3, 2, 1, 0]),
    ("a", "b", "c"),
)


def percent(scores, labels):
    known = labels >= 0
    return 100 * average_precision_score(labels[known], scores[known])


def random_sessions(seed=0, counts=(2, 4, 7), images=120):
    """The scores after each session of a run with noise, unknown labels, and images in another order each time."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, counts[-1])) < 0.2).astype(np.int8)
    labels[rng.random(labels.shape) < 0.1] = -1
    found = []
    for count in counts:
        rows = rng.permutation(np.flatnonzero((labels[:, :count] == 1).any(axis=1)))
        scores = labels[rows, :count] + rng.normal(size=(len(rows), count))
        found.append(ScoredImages(scores.astype(np.float32), labels[rows, :count], rows, tuple("abcdefg"[:count])))
    return found


def test_what_a_session_destroys_and_what_more_images_cost_are_told_apart():
    found, total = drifts([BEFORE, AFTER])
    # On images 0 to 3, those with class a fall from ranks 1, 2 to 1, 3. Image 4 does not show it and scores highest.
    assert (found.session, found.classes) == (2, 1)
    assert found[2:5] == pytest.approx((100, 100 * (1 + 2 / 3) / 2, 100 * (1 / 2 + 2 / 4) / 2))
    assert (found.by_training, found.by_images) == pytest.approx((-100 / 6, -100 / 3))
    assert total == (0, 1, None, None, None, found.by_training, found.by_images)


def test_new_classes_are_measured_with_and_without_other_images():
    found = new_classes(2, AFTER, ("b", "c"))
    # Images 4 and 2 show c and b, and rank them right. Image 3 shows neither: its score for c is below that of image 4,
    # and for b below that of image 2, so it costs nothing.
    assert found[:4] == (2, 2, 100.0, 100.0)
    worse = AFTER._replace(scores=AFTER.scores + np.array([[0, 0, 0], [0, 0.5, 0.5], [0, 0, 0], [0, 0, 0], [0, 0, 0]]))
    found = new_classes(2, worse, ("b", "c"))  # now image 3 is first for both
    assert (found.shown, found.everywhere, found.cost) == pytest.approx((100, 50, -50))


def test_a_session_of_one_class_has_nothing_to_compare():
    assert new_classes(1, BEFORE, ("a",))[1:] == (0, None, None)
    assert new_classes(1, BEFORE, ("a",)).cost is None


def test_all_numbers_are_those_of_scikit_learn():
    sessions = random_sessions()
    found = drifts(sessions)
    for number, (before, after) in enumerate(pairwise(sessions), start=2):
        places = [after.rows.tolist().index(row) for row in before.rows]
        old = range(len(before.classes))
        means = [
            np.mean([percent(before.scores[:, k], before.labels[:, k]) for k in old]),
            np.mean([percent(after.scores[places, k], after.labels[places, k]) for k in old]),
            np.mean([percent(after.scores[:, k], after.labels[:, k]) for k in old]),
        ]
        one = found[number - 2]
        assert (one.session, one.classes) == (number, len(old))
        assert one[2:5] == pytest.approx(means)
        assert (one.by_training, one.by_images) == pytest.approx((means[1] - means[0], means[2] - means[1]))
        new = range(len(old), len(after.classes))
        shows = [row for row, labels in enumerate(after.labels) if 1 in labels[len(old) :]]
        entry = new_classes(number, after, after.classes[len(old) :])
        assert entry.shown == pytest.approx(
            np.mean([percent(after.scores[shows, k], after.labels[shows, k]) for k in new])
        )
        assert entry.everywhere == pytest.approx(
            np.mean([percent(after.scores[:, k], after.labels[:, k]) for k in new])
        )


def test_all_sessions_together_are_the_backward_transfer():
    sessions = random_sessions(3, counts=(1, 3, 5, 7))
    # All images of the first session show its only class, so it has no AP before the second.
    assert sessions[0].labels.all()
    results = []
    for scored in sessions:
        results.append(evaluate(scored, results, images=1, train_seconds=1.0, bytes_kept=0, notes={}))
    *single, total = drifts(sessions)
    assert (single[0].classes, single[0].before, single[0].by_training) == (0, None, None)
    assert total.classes == 5
    assert total.by_training + total.by_images == pytest.approx(results[-1].metrics["BWT"])


def test_one_session_has_no_drift():
    assert drifts([AFTER]) == []


def test_images_are_found_by_their_rows():
    chosen = of_images(AFTER, np.array([0, 4]))
    np.testing.assert_array_equal(chosen.scores, AFTER.scores[[4, 0]])
    with pytest.raises(KeyError):
        of_images(BEFORE, np.array([4]))


def test_the_map_is_that_of_the_results():
    for scored in random_sessions(5):
        result = evaluate(scored, [], images=1, train_seconds=1.0, bytes_kept=0, notes={})
        assert map_of(scored.scores, scored.labels) == pytest.approx(result.map, abs=1e-12)


def test_the_way_from_joint_training_to_the_run_leaves_out_what_is_unknown():
    heads = ClosedForms(80.0, 75.0, 70.0, 74.0, 60.0)
    stages = waterfall(90.0, 91.0, heads, 65.0)
    assert [one.key for one in stages] == [
        *("joint", "joint_features", "all_labels", "united", "separate", "own_session", "run"),
    ]
    assert [one.change for one in stages] == [None, 1.0, -11.0, -5.0, -5.0, -10.0, 5.0]
    stages = waterfall(None, None, heads, 65.0)
    assert (stages[0].key, stages[0].change) == ("all_labels", None)
    assert sum(one.change or 0 for one in stages) == 65.0 - 80.0
