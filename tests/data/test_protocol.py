from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlcil.core.errors import UserError
from mlcil.data.images import DataSet, LabelledImages
from mlcil.data.poison import poisoned
from mlcil.data.protocol import Protocol, class_order, make_protocol, parse_protocol


def data_of(train, test=None, classes=None):
    labels = np.asarray(train, dtype=np.int8)
    classes = tuple(classes or (f"c{column:02d}" for column in range(labels.shape[1])))
    held_out = labels if test is None else np.asarray(test, dtype=np.int8)
    return DataSet(
        LabelledImages(tuple(f"{row}.jpg" for row in range(len(labels))), labels, classes, "train"),
        LabelledImages(tuple(f"{row}.png" for row in range(len(held_out))), held_out, classes, "test"),
    )


@st.composite
def protocols(draw):
    """Any label matrix in which every class occurs, with any B<b>-C<c> that fits."""
    count = draw(st.integers(1, 8))
    noise = draw(arrays(np.int8, (draw(st.integers(0, 12)), count), elements=st.integers(-1, 1)))
    labels = np.concatenate([noise, np.eye(count, dtype=np.int8)])
    base = draw(st.integers(0, count - 1))
    step = draw(st.integers(1, count - base))
    order = draw(st.none() | st.integers(0, 99).map("shuffle:{}".format))
    return make_protocol(data_of(labels), f"B{base}-C{step}", order)


@pytest.mark.parametrize(
    ("text", "classes", "sizes"),
    [
        ("B0-C20", 80, [20] * 4),
        ("B0-C10", 80, [10] * 8),
        ("B40-C10", 80, [40] + [10] * 4),
        ("B40-C5", 80, [40] + [5] * 8),
        ("B0-C4", 20, [4] * 5),
        ("B10-C2", 20, [10] + [2] * 5),
        ("B0-C6", 20, [6, 6, 6, 2]),
        ("B3-C6", 20, [3, 6, 6, 5]),
        ("B19-C1", 20, [19, 1]),
        ("B0-C20", 20, [20]),
        ("joint", 20, [20]),
        (" b0-c10 ", 20, [10, 10]),
    ],
)
def test_session_sizes(text, classes, sizes):
    assert parse_protocol(text, classes) == sizes


def test_the_papers_protocols_have_these_many_sessions():
    coco = [len(parse_protocol(text, 80)) for text in ("B0-C20", "B0-C10", "B40-C10", "B40-C5")]
    voc = [len(parse_protocol(text, 20)) for text in ("B0-C4", "B10-C2")]
    assert coco + voc == [4, 8, 5, 9, 5, 6]


@pytest.mark.parametrize(
    ("text", "classes", "message"),
    [
        ("B0C10", 80, r"malformed protocol 'B0C10', expected B<base>-C<step>"),
        ("", 80, "malformed protocol ''"),
        ("B-1-C10", 80, "malformed"),
        ("B0-C1.5", 80, "malformed"),
        ("B0-C0", 80, "adds no classes per session, expected C1 or more"),
        ("B40-C41", 80, "needs at least 81 classes, the data set has 80"),
        ("B80-C1", 80, "needs at least 81 classes"),
    ],
)
def test_wrong_protocols(text, classes, message):
    with pytest.raises(UserError, match=message):
        parse_protocol(text, classes)


def test_class_orders():
    names = ("owl", "cat", "dog")
    assert class_order(names) == ["cat", "dog", "owl"]
    assert class_order(names, "owl, dog,cat") == ["owl", "dog", "cat"]
    letters = tuple("abcdefghij")
    shuffled = class_order(letters, "shuffle:3")
    assert sorted(shuffled) == list(letters)
    assert shuffled == class_order(letters[::-1], "shuffle:3") != class_order(letters, "shuffle:4")
    # Stored: the order of a seed must never change.
    assert "".join(shuffled) == "jgacbehfdi"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("cat,dog", "must name every class, it lacks: owl"),
        ("cat,dog,owl,cat", "must name a class once, it repeats: cat"),
        ("cat,dog,owll", "unknown class in the class order: 'owll', did you mean 'owl'"),
        ("shuffle:x", "expected shuffle:SEED"),
        ("shuffle:", "expected shuffle:SEED"),
        ("shuffle:-1", "expected shuffle:SEED"),
    ],
)
def test_wrong_orders(order, message):
    with pytest.raises(UserError, match=message):
        class_order(("owl", "cat", "dog"), order)


ANIMALS = data_of(
    [[1, 0, 0, 1], [0, 1, -1, 0], [0, 0, 1, 0], [0, -1, 0, 0], [1, 1, 1, 1]],
    test=[[0, 0, 1, 0], [1, 0, 0, 1], [0, -1, 0, 0]],
    classes=("cat", "dog", "owl", "sea lion"),
)


def test_sessions_by_hand():
    first, second = make_protocol(ANIMALS, "B0-C2").sessions()
    assert (first.number, first.first, first.stop, first.classes) == (1, 0, 2, ("cat", "dog"))
    assert first.indices.tolist() == [0, 1, 4]
    assert first.labels.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert (second.number, second.first, second.stop) == (2, 2, 4)
    assert second.classes == ("cat", "dog", "owl", "sea lion")
    assert second.new_classes == ("owl", "sea lion")
    assert second.indices.tolist() == [0, 2, 4]
    assert second.indices.dtype == np.int64
    assert second.labels.tolist() == [[-1, -1, 0, 1], [-1, -1, 1, 0], [-1, -1, 1, 1]]
    assert second.annotate(np.array([3, 1])).tolist() == [[0, 0], [-1, 0]]
    assert "_annotations" not in repr(second)


def test_class_lists_fix_order_and_leave_out_the_rest():
    protocol = make_protocol(ANIMALS, "sea lion, cat | dog")
    assert protocol.sizes == (2, 1)
    assert protocol.classes == protocol.data.test.classes == ("sea lion", "cat", "dog")
    assert protocol.sessions()[1].indices.tolist() == [1, 4]
    assert make_protocol(ANIMALS, "owl").sizes == (1,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat|catt", "unknown class in the protocol: 'catt', did you mean 'cat'"),
        ("cat|dog,cat", "must name a class once, it repeats: cat"),
        ("cat||dog", "has an empty class name or session"),
        ("cat,|dog", "has an empty class name or session"),
        ("bird", "malformed protocol 'bird'"),
    ],
)
def test_wrong_class_lists(text, message):
    with pytest.raises(UserError, match=message):
        make_protocol(ANIMALS, text)


def test_class_lists_exclude_an_order():
    with pytest.raises(UserError, match="fixes the class order itself"):
        make_protocol(ANIMALS, "cat|dog", order="shuffle:1")


def test_classes_without_training_images_are_named():
    data = data_of([[1, 0, -1], [1, 0, 0]], classes=("cat", "dog", "owl"))
    with pytest.raises(UserError, match="has any of these classes: dog, owl;"):
        make_protocol(data, "B0-C1")
    assert make_protocol(data, "cat").sizes == (1,)


def test_test_rows():
    protocol = make_protocol(ANIMALS, "B0-C2")
    assert protocol.test_rows(2).tolist() == [1]
    assert protocol.test_rows(4).tolist() == [0, 1]


def test_a_session_holds_no_view_of_the_whole_label_matrix():
    for session in make_protocol(ANIMALS, "B0-C2").sessions():
        assert session._annotations.base is None
        assert session._annotations.shape == (5, 2)
        assert not np.shares_memory(session.labels, session._annotations)


@given(protocols())
def test_sessions_partition_the_columns(protocol):
    sessions = protocol.sessions()
    columns = [column for session in sessions for column in range(session.first, session.stop)]
    assert columns == list(range(len(protocol.classes)))
    assert tuple(name for session in sessions for name in session.new_classes) == protocol.classes
    assert [session.number for session in sessions] == list(range(1, len(sessions) + 1))


@given(protocols())
def test_a_session_has_exactly_the_images_with_a_new_class(protocol):
    truth = protocol.data.train.labels
    for session in protocol.sessions():
        has_new = (truth[:, session.first : session.stop] == 1).any(axis=1)
        assert session.indices.tolist() == np.flatnonzero(has_new).tolist()


@given(protocols())
def test_only_new_columns_are_known(protocol):
    truth = protocol.data.train.labels
    for session in protocol.sessions():
        assert (session.labels[:, : session.first] == -1).all()
        new = truth[:, session.first : session.stop]
        np.testing.assert_array_equal(session.labels[:, session.first :], new[session.indices])
        np.testing.assert_array_equal(session.annotate(np.arange(len(truth))), new)


@given(protocols(), st.integers(0, 2**32 - 1))
def test_hidden_labels_change_nothing(protocol, seed):
    train = protocol.data.train
    for number, session in enumerate(protocol.sessions()):
        poison = np.random.default_rng(seed).integers(-1, 2, size=train.labels.shape).astype(np.int8)
        poison[:, session.first : session.stop] = train.labels[:, session.first : session.stop]
        poisoned = LabelledImages(train.paths, poison, train.classes, train.split)
        other = Protocol(DataSet(poisoned, protocol.data.test), protocol.sizes).sessions()[number]
        np.testing.assert_array_equal(session.indices, other.indices)
        np.testing.assert_array_equal(session.labels, other.labels)
        np.testing.assert_array_equal(session._annotations, other._annotations)


parts = st.sampled_from([0.1, 0.3, 0.5])


def same_session(one, other):
    for name in ("indices", "labels", "_annotations"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for ours, theirs in zip(one.validation, other.validation, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@given(protocols(), st.integers(0, 99))
def test_without_a_part_nothing_is_set_aside(protocol, seed):
    for session, other in zip(protocol.sessions(), protocol.sessions(0.0, seed), strict=True):
        same_session(session, other)
        assert session.validation.indices.dtype == np.int64
        assert session.validation.labels.shape == (0, session.stop)
        assert session.validation.labels.dtype == np.int8


@given(protocols(), parts, st.integers(0, 99))
def test_what_is_set_aside_and_what_is_trained_on_are_together_the_session(protocol, part, seed):
    for session, whole in zip(protocol.sessions(part, seed), protocol.sessions(), strict=True):
        indices = np.concatenate([session.indices, session.validation.indices])
        labels = np.concatenate([session.labels, session.validation.labels])
        order = np.argsort(indices)
        np.testing.assert_array_equal(indices[order], whole.indices)
        np.testing.assert_array_equal(labels[order], whole.labels)
        assert (np.diff(session.indices) > 0).all()
        assert (np.diff(session.validation.indices) > 0).all()


@given(protocols(), parts, st.integers(0, 99))
def test_no_image_is_set_aside_that_was_trained_on_before(protocol, part, seed):
    trained = set()
    for session in protocol.sessions(part, seed):
        trained |= set(session.indices.tolist())
        assert not trained & set(session.validation.indices.tolist())


@given(protocols(), parts, st.integers(0, 99))
def test_every_new_class_keeps_an_image_to_train_on(protocol, part, seed):
    for session in protocol.sessions(part, seed):
        assert (session.labels[:, session.first :] == 1).any(axis=0).all()


@given(protocols(), parts, st.integers(0, 99))
def test_labels_that_a_session_may_not_see_do_not_decide_what_is_set_aside(protocol, part, seed):
    for session, other in zip(protocol.sessions(part, seed), poisoned(protocol).sessions(part, seed), strict=True):
        same_session(session, other)


def many_images(classes=4, images=600):
    rng = np.random.default_rng(0)
    labels = (rng.random((images, classes)) < 0.5).astype(np.int8)
    return make_protocol(data_of(labels), "B0-C2")


def test_the_same_images_are_set_aside_in_every_session_they_occur_in():
    first, second = many_images().sessions(0.25, 7)
    assert len(first.validation.indices) == pytest.approx(0.25 * 600 * 0.75, rel=0.3)
    aside, trained = (
        {row for session in (first, second) for row in rows(session).tolist()}
        for rows in (lambda session: session.validation.indices, lambda session: session.indices)
    )
    assert not aside & trained
    assert set(first.validation.indices.tolist()) & set(second.validation.indices.tolist())


def test_the_seed_and_the_row_alone_decide():
    protocol = many_images()
    rows = [set(protocol.sessions(0.25, seed)[0].validation.indices.tolist()) for seed in (0, 1)]
    assert rows[0] != rows[1]
    assert rows[0] < set(protocol.sessions(0.4, 0)[0].validation.indices.tolist())
    train = protocol.data.train
    shorter = LabelledImages(train.paths[:300], train.labels[:300], train.classes, "train")
    half = Protocol(DataSet(shorter, protocol.data.test), protocol.sizes).sessions(0.25, 0)[0]
    assert set(half.validation.indices.tolist()) == {row for row in rows[0] if row < 300}
    # Stored: what is set aside by a seed must never change.
    assert sorted(rows[0])[:5] == [0, 5, 11, 17, 18]


def test_images_go_back_to_training_where_a_class_would_have_none():
    # All images are alike but the last, which alone has the class "b", and "c" of a later session.
    labels = np.array([[1, 0, 0]] * 11 + [[0, 1, 1]] + [[0, 0, 1]] * 9, np.int8)
    protocol = make_protocol(data_of(labels, classes=("a", "b", "c")), "B2-C1")
    seed = next(seed for seed in range(99) if 11 in without_guard(protocol, 0.3, seed))
    first, second = protocol.sessions(0.3, seed)
    assert 11 in first.indices
    assert len(first.validation.indices)
    assert 11 in second.indices  # trained on once, so of no use for validation


def without_guard(protocol, part, seed):
    """The rows set aside if every class had them all: in one session over a class that all images show."""
    everywhere = data_of(np.ones((len(protocol.data.train.labels), 1)))
    return make_protocol(everywhere, "joint").sessions(part, seed)[0].validation.indices


def test_what_is_set_aside_holds_no_view_of_the_labels():
    session = many_images().sessions(0.25)[1]
    assert not np.shares_memory(session.validation.labels, session._annotations)
    assert (session.validation.labels[:, : session.first] == -1).all()


@given(protocols())
def test_test_rows_grow_with_the_sessions(protocol):
    truth = protocol.data.test.labels
    for session in protocol.sessions():
        rows = protocol.test_rows(session.stop)
        assert rows.tolist() == [row for row in range(len(truth)) if 1 in truth[row, : session.stop]]


# Negatives ------------------------------------------------------------------------------------------

LABELS = [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1], [1, 1, 0]]  # cat, dog, owl


def with_negatives(train, text="cat|dog", arrivals=None, is_joint=False, has_lists=True):
    data = data_of(train, None, ("cat", "dog", "owl"))
    given = {"arrivals": None if arrivals is None else np.array(arrivals, np.int16), "has_lists": has_lists}
    data = data._replace(train=replace(data.train, **given), test=replace(data.test, **given))
    return make_protocol(data, text, has_negatives=True, is_joint=is_joint)


def test_an_image_on_which_nothing_was_found_is_a_negative_in_every_session():
    cat, dog = with_negatives(LABELS).sessions()
    assert cat.indices.tolist() == [0, 2, 4]
    assert cat.labels.tolist() == [[1], [0], [1]]
    assert dog.indices.tolist() == [1, 2, 4]
    # Its older column stays known; that of an image with a label is hidden.
    assert dog.labels.tolist() == [[-1, 1], [0, 0], [-1, 1]]


def test_negatives_are_tested_on_in_every_session():
    protocol = with_negatives(LABELS)
    assert protocol.test_rows(1).tolist() == [0, 2, 4]
    assert protocol.test_rows(2).tolist() == [0, 1, 2, 4]


def test_an_image_of_a_class_that_is_left_out_was_not_found_empty():
    for session in with_negatives(LABELS).sessions():
        assert 3 not in session.indices


def test_unknown_labels_are_no_negatives():
    cat, dog = with_negatives([[1, -1, -1], [-1, 1, -1], [-1, -1, -1], [-1, 0, 0]]).sessions()
    assert cat.indices.tolist() == [0]
    assert dog.indices.tolist() == [1, 3]
    assert dog.labels.tolist() == [[-1, 1], [-1, 0]]


def test_the_images_of_a_session_are_negatives_of_its_classes_alone():
    # The third column belongs to the second session, too.
    cat, others = with_negatives(LABELS, "cat|dog,owl", arrivals=[1, 1, 2, 2, 0]).sessions()
    assert cat.indices.tolist() == [0, 1, 4]
    assert cat.labels.tolist() == [[1], [0], [1]]
    assert others.indices.tolist() == [2, 3, 4]
    assert others.labels.tolist() == [[-1, 0, 0], [-1, 0, 1], [-1, 1, 0]]


def test_nothing_is_known_about_the_classes_of_other_sessions_in_testing():
    protocol = with_negatives(LABELS, "cat|dog,owl", arrivals=[1, 1, 2, 2, 0])
    assert protocol.test_rows(1).tolist() == [0, 1, 4]
    assert protocol.test_rows(3).tolist() == [0, 1, 2, 3, 4]
    assert protocol.data.test.labels.tolist() == [[1, -1, -1], [0, -1, -1], [-1, 0, 0], [-1, 0, 1], [1, 1, 0]]


def test_labels_in_columns_of_their_own_are_known_whatever_the_session():
    protocol = with_negatives(LABELS, "cat|dog,owl", arrivals=[1, 1, 2, 2, 0], has_lists=False)
    assert protocol.data.test.labels.tolist() == LABELS
    assert protocol.sessions()[1].labels.tolist() == [[-1, 0, 0], [-1, 0, 1], [-1, 1, 0]]


def test_a_session_that_the_protocol_does_not_have_is_named():
    with pytest.raises(UserError, match=r"2\.jpg: its session is 3, but the protocol has 2 sessions"):
        with_negatives(LABELS, arrivals=[1, 1, 3, 2, 0])


def test_joint_training_takes_the_images_and_labels_of_all_sessions():
    (both,) = with_negatives(LABELS, arrivals=[1, 1, 2, 2, 0], is_joint=True).sessions()
    assert both.indices.tolist() == [0, 1, 2, 3, 4]
    assert both.labels.tolist() == [[1, -1], [0, 1], [-1, 0], [-1, 0], [1, 1]]


@pytest.mark.parametrize("has_lists", [True, False])
def test_a_class_that_no_image_of_its_session_shows_is_named(has_lists):
    with pytest.raises(UserError, match="no training image of its session has any of these classes: dog;"):
        with_negatives([[1, 0, 0], [0, 1, 0], [0, 0, 0]], arrivals=[1, 1, 2], has_lists=has_lists)


@given(protocols(), st.data())
def test_without_negatives_arrivals_change_nothing(protocol, data):
    """The published protocol is what it was, whatever a session column says."""
    arrivals = data.draw(arrays(np.int16, len(protocol.data.train), elements=st.integers(0, 5)))
    given = protocol.data._replace(train=replace(protocol.data.train, arrivals=arrivals))
    again = make_protocol(given, "|".join(",".join(one.new_classes) for one in protocol.sessions()))
    for one, other in zip(protocol.sessions(), again.sessions(), strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.labels, other.labels)


@given(st.data())
def test_noise_in_hidden_labels_changes_no_session_with_negatives(data):
    labels = data.draw(arrays(np.int8, (14, 4), elements=st.integers(-1, 1)))
    labels = np.concatenate([labels, np.eye(4, dtype=np.int8), np.zeros((2, 4), np.int8)])
    arrivals = data.draw(arrays(np.int16, len(labels), elements=st.integers(0, 2)))
    arrivals[14:18] = 0  # every class has an image in its session
    made = data_of(labels)
    made = made._replace(train=replace(made.train, arrivals=arrivals))
    protocol = make_protocol(made, "B0-C2", has_negatives=True)
    for truth, noisy in zip(protocol.sessions(0.2), poisoned(protocol).sessions(0.2), strict=True):
        for name in ("indices", "labels"):
            np.testing.assert_array_equal(getattr(truth, name), getattr(noisy, name))
            np.testing.assert_array_equal(getattr(truth.validation, name), getattr(noisy.validation, name))
