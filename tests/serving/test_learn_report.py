"""What `learn` says about the labels that a tagger knew before, and when it keeps quiet."""

from dataclasses import replace

import numpy as np
import pytest

from mlcil.serving.learn_report import FEWEST_NEW, NewPhotos, estimated_changes, unlabelled
from mlcil.serving.measuring import FEWEST, expected_quality, measured, quality
from mlcil.serving.tagger import Tagger


@pytest.fixture(scope="module")
def tagger(digit_tagger):
    return Tagger.load(digit_tagger)


def photos(tagger, count, low=0.02):
    """Scores of photos that the tagger is sure about, a third of them with each label, and nothing labelled."""
    scores = np.full((count, len(tagger.classes)), low, np.float32)
    scores[np.arange(count) % 3 == 0] = 0.98
    return NewPhotos(scores, scores.copy(), np.full(scores.shape, -1, np.int8))


def test_nothing_changes_where_scores_stay(tagger):
    changes = estimated_changes(tagger, tagger, photos(tagger, FEWEST_NEW))
    assert [one.name for one in changes] == list(tagger.classes)
    assert all(one.change == (0, 0, 0) for one in changes)
    assert all(one.before is None and one.facts is None for one in changes)


def test_few_new_photos_give_no_estimate(tagger):
    assert estimated_changes(tagger, tagger, photos(tagger, FEWEST_NEW - 1)) == []


def test_a_worse_ranking_costs_ap(tagger):
    given = photos(tagger, 90)
    turned = given._replace(after=1 - given.before)
    assert all(one.change.ap < -20 for one in estimated_changes(tagger, tagger, turned))


def test_photos_that_seem_to_show_an_old_label_are_said(tagger):
    given = photos(tagger, 300)
    (finding,) = unlabelled(tagger, given)
    assert tagger.classes[0] in finding.text
    assert "add the labels to the table" in finding.text
    assert unlabelled(tagger, given._replace(labels=np.zeros_like(given.labels))) == []  # the table says no
    assert unlabelled(tagger, photos(tagger, 6)) == []


def test_expected_quality_is_the_quality_where_probabilities_are_certain():
    random = np.random.default_rng(0)
    scores, labels = random.random((200, 3)), random.integers(0, 2, (200, 3)).astype(np.int8)
    thresholds = np.array([0.3, 0.5, 0.7])
    for found, expected in zip(
        expected_quality(scores, labels.astype(float), thresholds), quality(scores, labels, thresholds), strict=True
    ):
        np.testing.assert_allclose(found, expected)


def test_a_handful_of_photos_does_not_replace_figures(tagger):
    scores = np.random.default_rng(0).random((2 * FEWEST, len(tagger.classes))).astype(np.float32)
    labels = (np.arange(2 * FEWEST)[:, None] % 2).repeat(len(tagger.classes), axis=1).astype(np.int8)
    assert len(measured(tagger, scores, labels, "many")) == len(tagger.classes)
    assert measured(tagger, scores[:4], labels[:4], "few") == []
    unknown = replace(tagger, labels=tuple(replace(one, ap=None) for one in tagger.labels))
    assert [one.measured for one in measured(unknown, scores[:4], labels[:4], "few")] == ["few"] * len(tagger.classes)
