"""The figures of an evaluation against scikit-learn and literal loops, and what counts as a photo of a table."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from mlcil.core.errors import UserError
from mlcil.data.digits import CLASSES
from mlcil.serving import predicting
from mlcil.serving.changing import rename
from mlcil.serving.evaluating import Evaluation, label_results, overall_figures
from mlcil.serving.predicting import score_readable
from mlcil.serving.tagger import Tagger

from .conftest import write_rows

NAMES = ["digit 0", "digit 1"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLCIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tagger(digit_tagger):
    return Tagger.load(digit_tagger)


@pytest.fixture(scope="module")
def known(digit_tables):
    """The rows of c.csv: the file, and its labels."""
    with (digit_tables / "c.csv").open(newline="") as stream:
        return [(str(digit_tables / row["path"]), row["labels"].split(";")) for row in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def found(tagger, digit_tables, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return tagger.evaluate(str(digit_tables / "c.csv"))


@pytest.fixture
def table(tmp_path, digit_tables):
    """Writes a table of pictures of the folder."""
    return lambda rows, *headings: write_rows(
        tmp_path / "t.csv",
        [(str(digit_tables / f"{number}.png"), *cells) for number, *cells in rows],
        ("path", *(headings or ["labels"])),
    )


def truth_of(known):
    return np.array([[name in labels for name in NAMES] for _, labels in known])


def test_scores_and_labels_are_those_of_the_table(tagger, known, found):
    assert found.photos == tuple(path for path, _ in known)
    # How many are computed at once may change how the last bit is rounded.
    np.testing.assert_allclose(found.scores, tagger.scores([path for path, _ in known]), rtol=0, atol=1e-6)
    assert np.array_equal(found.labels, truth_of(known))
    assert found.unknown_labels == ("digit 2", "digit 3")
    assert found.other_labels == ()
    assert found.bad == ()


def test_the_figures_of_a_label_are_those_of_scikit_learn(tagger, known, found):
    truth, given_ = truth_of(known), found.scores > tagger.thresholds
    assert given_.any()
    for k, result in enumerate(found.results):
        assert result.name == NAMES[k]
        assert (result.positives, result.negatives) == (truth[:, k].sum(), (~truth[:, k]).sum())
        assert result.threshold == tagger.thresholds[k]
        assert result.ap == pytest.approx(100 * average_precision_score(truth[:, k], found.scores[:, k]))
        assert result.precision == pytest.approx(100 * precision_score(truth[:, k], given_[:, k]))
        assert result.recall == pytest.approx(100 * recall_score(truth[:, k], given_[:, k]))


def test_the_overall_figures_are_those_of_scikit_learn(tagger, known, found):
    truth, given_ = truth_of(known), found.scores > tagger.thresholds
    assert found.overall["mAP"] == pytest.approx(100 * average_precision_score(truth, found.scores, average="macro"))
    for name, figure in (("precision", precision_score), ("recall", recall_score), ("F1", f1_score)):
        assert found.overall[name] == pytest.approx(100 * figure(truth, given_, average="micro"))


def literal_calibration_error(probabilities, labels, bins=15):
    """The mean over bins, weighted by their size, of how far the mean probability is from the share of positives."""
    error, pairs = 0.0, [(p, y) for p, y in zip(probabilities.ravel(), labels.ravel(), strict=True) if y >= 0]
    for place in range(bins):
        inside = [(p, y) for p, y in pairs if min(int(p * bins), bins - 1) == place]
        if inside:
            mean, share = (sum(values) / len(inside) for values in zip(*inside, strict=True))
            error += len(inside) / len(pairs) * abs(mean - share)
    return 100 * error


def test_the_calibration_error_is_that_of_the_probabilities(tagger, found):
    expected = literal_calibration_error(tagger.probabilities(found.scores), found.labels)
    assert found.overall["ECE"] == pytest.approx(expected)


SHAPE = st.tuples(st.integers(1, 12), st.integers(1, 3))


@given(st.data(), SHAPE)
def test_figures_and_mistakes_are_those_of_literal_loops(data, shape):
    scores = data.draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])))
    labels = data.draw(arrays(np.int8, shape, elements=st.sampled_from([-1, 0, 1])))
    thresholds = data.draw(arrays(np.float64, shape[1], elements=st.sampled_from([0.1, 0.25, 0.6])))
    names = [f"label {k}" for k in range(shape[1])]
    results = label_results(names, scores, labels, thresholds)
    overall = overall_figures(scores, labels, thresholds, scores.astype(np.float64))
    hits, wrong, missed = 0, [], []
    for k in range(shape[1]):
        for row in range(shape[0]):
            is_given = scores[row, k] > thresholds[k]
            hits += is_given and labels[row, k] == 1
            wrong += [(k, row)] if is_given and labels[row, k] == 0 else []
            missed += [(k, row)] if not is_given and labels[row, k] == 1 else []
    assert [(one.wrong, one.missed) for one in results] == [
        (sum(k == column for k, _ in wrong), sum(k == column for k, _ in missed)) for column in range(shape[1])
    ]
    expected = {
        "precision": 100 * hits / (hits + len(wrong)) if hits + len(wrong) else None,
        "recall": 100 * hits / (hits + len(missed)) if hits + len(missed) else None,
        "F1": 200 * hits / (2 * hits + len(wrong) + len(missed)) if hits + len(wrong) + len(missed) else None,
    }
    assert {name: overall[name] for name in expected} == pytest.approx(expected)
    if (labels >= 0).any():
        assert overall["ECE"] == pytest.approx(literal_calibration_error(scores.astype(np.float64), labels), abs=1e-6)
    aps = [one.ap for one in results if one.ap is not None]
    assert overall["mAP"] == (pytest.approx(np.mean(aps)) if aps else None)

    photos = tuple(map(str, range(shape[0])))
    evaluation = Evaluation("t", "s", photos, photos, scores, labels, results, overall)
    shelves = evaluation.mistakes(most=2)
    assert sorted(one.result.name for one in shelves) == sorted({names[k] for k, _ in wrong + missed})
    counts = [one.result.wrong + one.result.missed for one in shelves]
    assert counts == sorted(counts, reverse=True)
    for one in shelves:
        k = names.index(one.result.name)
        highest = sorted(((-scores[row, k], row) for column, row in wrong if column == k))[:2]
        lowest = sorted(((scores[row, k], row) for column, row in missed if column == k))[:2]
        assert [(-score, row) for row, score in one.wrong] == highest
        assert [(score, row) for row, score in one.missed] == lowest


def test_a_table_without_a_label_of_the_tagger_is_one_clear_line(tagger, digit_tables):
    with pytest.raises(
        UserError, match=r"b\.csv has no label that the tagger knows: its labels are digit 2, digit 3; "
    ):
        tagger.evaluate(str(digit_tables / "b.csv"))


def test_labels_that_the_table_lacks_are_named(tagger, table):
    found = tagger.evaluate(table([(140, "digit 0"), (141, "")]))
    assert found.other_labels == ("digit 1",)
    assert [one.name for one in found.results] == ["digit 0"]
    assert found.scores.shape == (2, 1)


def test_a_denial_is_no_label_of_its_own(tagger, table):
    found = tagger.evaluate(table([(140, "digit 0"), (141, "-digit 0"), (142, "-digit 1;digit 0")]))
    assert found.unknown_labels == ()
    assert found.labels.tolist() == [[1, 0], [0, 0], [1, 0]]


def test_cells_that_are_empty_say_nothing(tagger, table):
    rows = [(140, "1", ""), (141, "0", "1"), (142, "", ""), (143, "", "0")]
    found = tagger.evaluate(table(rows, *NAMES))
    assert found.labels.tolist() == [[1, -1], [0, 1], [-1, 0]]
    assert [(one.positives, one.negatives) for one in found.results] == [(1, 1), (1, 1)]


def test_both_parts_of_a_table_count_and_each_photo_once(tagger, table):
    rows = [(140, "digit 0", "train"), (141, "", "test"), (140, "digit 1", "test")]
    found = tagger.evaluate(table(rows, "labels", "split"))
    assert found.labels.tolist() == [[1, 1], [0, 0]]


def test_photos_that_the_tagger_learned_from_are_counted(tagger, digit_tables, found):
    learned = tagger.evaluate(str(digit_tables / "a.csv"))
    assert learned.seen == len(learned.photos) == 80
    assert found.seen == 0


def test_photos_that_cannot_be_read_are_named_and_left_out(tagger, table, digit_tables, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes((digit_tables / "150.png").read_bytes()[:60])
    rows = [(140, "digit 0"), ("missing", "digit 1"), (141, "digit 1")]
    whole = table(rows)
    with open(whole, "a") as stream:
        stream.write("broken.png,digit 0\n")
    found = tagger.evaluate(whole)
    assert found.photos == tuple(str(digit_tables / f"{number}.png") for number in (140, 141))
    assert [line.split(": ")[1] for line in found.bad] == ["missing", "truncated"]
    assert found.labels.tolist() == [[1, 0], [0, 1]]
    assert np.allclose(found.scores, tagger.scores(found.photos), atol=1e-6)


def test_without_a_photo_nothing_is_measured(tagger, table):
    found = tagger.evaluate(table([("missing", "digit 0")]))
    assert found.photos == ()
    assert found.scores.shape == (0, 1)
    assert set(found.overall.values()) == {None}
    assert found.mistakes() == []
    assert "nothing measured" in repr(found)


def test_of_a_published_data_set_the_test_images_count(tagger):
    found = rename(tagger, {"digit 0": CLASSES[0]}).evaluate("digits:train=5,test=7,size=32")
    assert len(found.photos) == len(found.pictures) == 7
    assert found.pictures[0].shape == (32, 32, 3)


def test_rows_make_a_table_and_the_evaluation_says_what_it_is(found):
    assert [row["name"] for row in found.rows()] == NAMES
    assert set(found.rows()[0]) >= {"positives", "negatives", "ap", "precision", "recall", "threshold"}
    assert repr(found).startswith("Evaluation of 2 labels on 60 photos of c.csv: mAP ")


def test_photos_are_scored_in_batches_and_those_that_cannot_be_read_skipped(tagger, known, monkeypatch):
    monkeypatch.setattr(predicting, "TOGETHER", 4)
    paths = [path for path, _ in known[:10]]
    broken = [*paths[:4], "nowhere/1.png", "nowhere/2.png", "nowhere/3.png", "nowhere/4.png", *paths[4:], "gone.png"]
    progress = []
    places, scores, bad = score_readable(tagger, broken, lambda *counts: progress.append(counts))
    assert [broken[place] for place in places] == paths
    assert len(bad) == 5
    assert np.allclose(scores, tagger.scores(paths), atol=1e-6)
    assert progress == [(4, 15), (8, 15), (12, 15), (15, 15)]
