import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import precision_score, recall_score

from mlcil.evaluation.pseudo_label_quality import pseudo_label_quality

SHAPE = (7, 3)


def test_a_case_by_hand():
    pseudo = np.array([[True, True], [False, True]])
    truth = np.array([[1, 0], [1, 1]], np.int8)
    found = pseudo_label_quality(pseudo, truth)
    assert found == {"images": 2, "per_image": 1.5, "true_per_image": 1.5, "precision": 200 / 3, "recall": 200 / 3}


@given(arrays(bool, SHAPE), arrays(np.int8, SHAPE, elements=st.integers(0, 1)))
def test_precision_and_recall_are_those_of_scikit_learn(pseudo, truth):
    found = pseudo_label_quality(pseudo, truth)
    flat = truth.ravel(), pseudo.ravel()
    assert (found["precision"] or 0) == pytest.approx(100 * precision_score(*flat, zero_division=0))
    assert (found["recall"] or 0) == pytest.approx(100 * recall_score(*flat, zero_division=0))


def test_an_unknown_truth_counts_for_neither():
    pseudo = np.array([[True, True, False]])
    truth = np.array([[1, -1, -1]], np.int8)
    found = pseudo_label_quality(pseudo, truth)
    assert (found["precision"], found["recall"]) == (100, 100)
    assert (found["per_image"], found["true_per_image"]) == (2, 1)


def test_nothing_claimed_and_nothing_there_have_no_ratio():
    nothing = pseudo_label_quality(np.zeros((2, 2), bool), np.zeros((2, 2), np.int8))
    assert nothing["precision"] is None
    assert nothing["recall"] is None
