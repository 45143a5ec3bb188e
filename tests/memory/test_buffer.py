"""The rehearsal buffer: never more than its budget, never a label that nobody gave."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.core.errors import UserError
from mlcil.data.images import DataSet, LabelledImages
from mlcil.data.protocol import make_protocol
from mlcil.memory.buffer import Budget, ExemplarBuffer


def sessions(labels, text):
    labels = np.asarray(labels, np.int8)
    classes = tuple(f"class{column:02}" for column in range(labels.shape[1]))
    part = LabelledImages(tuple(f"image{row}" for row in range(len(labels))), labels, classes, "train")
    return make_protocol(DataSet(part, part), text).sessions()


def random_labels(seed, images, classes):
    labels = (np.random.default_rng(seed).random((images, classes)) < 0.3).astype(np.int8)
    labels[np.arange(classes), np.arange(classes)] = 1  # every class has an image
    return labels


def features_of(rows):
    """The same made-up feature for the same image, always."""
    table = np.random.default_rng(7).normal(size=(1000, 8)).astype(np.float32)
    return table[rows]


def run(buffer, all_sessions):
    for session in all_sessions:
        buffer.open_session(session)
        buffer.close_session(session, features_of, np.random.default_rng(0))
    return buffer


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("20", Budget(per_class=20)),
        ("total:1000", Budget(total=1000)),
        ("0", Budget()),
        ("total:0", Budget()),
    ],
)
def test_parse(text, budget):
    assert Budget.parse(text) == budget
    assert bool(budget) == (text not in ("0", "total:0"))


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "total:", "total:x", "all:5", ":5", "5:total", "²", "total:²"])
def test_parse_errors(text):
    with pytest.raises(UserError, match="expected a number per class such as 20, or total:1000") as error:
        Budget.parse(text)
    assert repr(text) in str(error.value)


@given(total=st.integers(1, 3000), classes=st.integers(1, 100))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_quotas_spend_the_whole_total_and_no_more(total, classes):
    quotas = Budget(total=total).quotas(classes)
    assert sum(quotas) == total
    assert len(quotas) == classes
    assert max(quotas) - min(quotas) <= 1
    assert quotas == sorted(quotas, reverse=True)  # the remainder goes to the oldest classes
    later = Budget(total=total).quotas(classes + 1)
    assert all(new <= old for new, old in zip(later, quotas, strict=False))


def test_quotas_per_class():
    assert Budget(per_class=5).quotas(3) == [5, 5, 5]
    assert Budget(total=1000).quotas(80) == [13] * 40 + [12] * 40


@given(
    seed=st.integers(0, 2**31),
    images=st.integers(10, 60),
    classes=st.integers(2, 8),
    step=st.integers(1, 4),
    budget=st.one_of(st.builds(Budget, per_class=st.integers(1, 6)), st.builds(Budget, total=st.integers(1, 30))),
    onwards=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_budget_and_labels_over_sessions(seed, images, classes, step, budget, onwards):
    labels = random_labels(seed, images, classes)
    buffer = ExemplarBuffer(budget, onwards)
    for session in sessions(labels, f"B0-C{min(step, classes)}"):
        buffer.open_session(session)
        assert buffer.labels.shape == (len(buffer), session.stop)
        buffer.close_session(session, features_of, np.random.default_rng(0))
        assert len(buffer) <= (budget.total or budget.per_class * session.stop)
        assert len(set(buffer.indices.tolist())) == len(buffer)
        assert buffer.labels.shape == (len(buffer), session.stop)
        # What is known is true, and every exemplar was stored for a reason.
        known = buffer.labels != -1
        assert (buffer.labels[known] == labels[buffer.indices, : session.stop][known]).all()
        assert (buffer.labels == 1).any(axis=1).all()
        quotas = budget.quotas(session.stop)
        for column, (chosen, quota) in enumerate(zip(buffer.chosen, quotas, strict=True)):
            assert len(chosen) <= quota
            assert (labels[chosen, column] == 1).all()
            if quota:
                assert len(chosen)


# Image 0 has classes of sessions 1 and 2; with one exemplar per class it is chosen twice.


def test_an_image_chosen_for_two_classes_is_kept_once():
    buffer = run(ExemplarBuffer(Budget(per_class=5)), sessions([[1, 1], [1, 0], [0, 1]], "joint"))
    assert sorted(buffer.indices.tolist()) == [0, 1, 2]
    assert len(buffer) == 3


def known_columns(buffer):
    order = np.argsort(buffer.indices)
    return [np.flatnonzero(row != -1).tolist() for row in buffer.labels[order]]


LATE = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 0], [0, 1, 1, 0]]


def test_labels_from_the_storing_session_onwards():
    first, second = sessions(LATE, "B2-C1")[:2]
    buffer = ExemplarBuffer(Budget(per_class=9), label_onwards=True)
    run(buffer, [first])
    assert sorted(buffer.indices.tolist()) == [0, 1, 4]
    assert known_columns(buffer) == [[0, 1]] * 3
    run(buffer, [second])
    assert sorted(buffer.indices.tolist()) == [0, 1, 2, 3, 4]
    # Images 0, 1 and 4 carry on from session 1; images 2 and 3 came with session 2 and lack what was before.
    assert known_columns(buffer) == [[0, 1, 2], [0, 1, 2], [2], [2], [0, 1, 2]]


def test_labels_of_the_storing_session_only():
    all_sessions = sessions(LATE, "B2-C1")
    buffer = run(ExemplarBuffer(Budget(per_class=9), label_onwards=False), all_sessions)
    # Images 0 and 4 are chosen again in session 2, image 1 in session 3, and gain those columns alone.
    assert known_columns(buffer) == [[0, 1, 2], [0, 1, 3], [2, 3], [2], [0, 1, 2]]


def test_an_image_that_returns_unchosen_gains_no_label():
    labels = np.zeros((12, 2), np.int8)
    labels[0], labels[1:, 1] = (1, 1), 1
    buffer = ExemplarBuffer(Budget(per_class=1), label_onwards=False)

    def far_from_image_0(rows):
        return np.where(rows[:, None] == 0, [[1.0, -1.0]], [[1.0, 1.0]]).astype(np.float32)

    for session in sessions(labels, "B0-C1"):
        buffer.open_session(session)
        buffer.close_session(session, far_from_image_0, np.random.default_rng(0))
    assert buffer.indices.tolist()[0] == 0
    assert buffer.labels[0].tolist() == [1, -1]
    assert buffer.labels[1].tolist() == [-1, 1]


def test_a_total_budget_trims_old_classes():
    labels = np.repeat(np.eye(4, dtype=np.int8), 10, axis=0)
    buffer, lists = ExemplarBuffer(Budget(total=10)), []
    for session in sessions(labels, "B0-C1"):
        run(buffer, [session])
        assert len(buffer) == 10
        lists.append([one.tolist() for one in buffer.chosen])
    assert [[len(one) for one in chosen] for chosen in lists] == [[10], [5, 5], [4, 3, 3], [3, 3, 2, 2]]
    for before, after in pairwise(lists):
        for old, kept in zip(before, after, strict=False):
            assert kept == old[: len(kept)]  # the first of the herding order stay


def test_features_are_asked_once_for_the_session_alone():
    asked = []

    def features(rows):
        asked.append(rows.tolist())
        return features_of(rows)

    buffer = ExemplarBuffer(Budget(per_class=2))
    for session in sessions(LATE, "B2-C2"):
        buffer.open_session(session)
        buffer.close_session(session, features, np.random.default_rng(0))
    assert asked == [[0, 1, 4], [0, 1, 2, 3, 4]]
