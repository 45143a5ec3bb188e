"""A memory that fills while a session trains: what it keeps, what it saves, and how it is made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.core.state import state_of
from mlcil.data.images import DataSet, LabelledImages
from mlcil.data.protocol import make_protocol
from mlcil.memory.buffer import SELECTIONS, Budget, ExemplarBuffer, StreamBuffer, make_memory
from mlcil.memory.ocdm import balanced
from mlcil.memory.prs import partitioning_reservoir
from mlcil.memory.stream import StreamMemory, reservoir

STREAMS = {"reservoir": reservoir, "prs": partitioning_reservoir, "ocdm": balanced}


def sessions(labels, text="B0-C2"):
    labels = np.asarray(labels, np.int8)
    classes = tuple(f"class{column:02}" for column in range(labels.shape[1]))
    part = LabelledImages(tuple(f"image{row}" for row in range(len(labels))), labels, classes, "train")
    return make_protocol(DataSet(part, part), text).sessions()


def random_labels(seed=0, images=40, classes=6):
    labels = (np.random.default_rng(seed).random((images, classes)) < 0.3).astype(np.int8)
    labels[np.arange(classes), np.arange(classes)] = 1  # every class has an image
    return labels


def no_features(rows):
    raise AssertionError("a stream looks at labels alone")


def batches(session, size=4):
    return np.array_split(np.arange(len(session.indices)), -(-len(session.indices) // size))


def stream(memory, session, rng, parts=slice(None)):
    """Show some of a session's batches."""
    for rows in batches(session)[parts]:
        memory.observe(session.indices[rows], session.labels[rows], rng)


def learn(memory, session, rng):
    memory.open_session(session)
    stream(memory, session, rng)
    memory.close_session(session, no_features, rng)


def everything(memory):
    tensors, values = state_of(memory)
    return {key: value.tolist() for key, value in tensors.items()} | {"seen": values["seen"]}


def test_every_way_to_choose_has_its_memory():
    assert set(SELECTIONS) == {"herding", "random", *STREAMS}
    for selection in SELECTIONS:
        memory = make_memory(selection, Budget(total=5), label_onwards=True)
        assert isinstance(memory, StreamBuffer if selection in STREAMS else ExemplarBuffer)
        assert memory.is_streaming == (selection in STREAMS)
        assert memory.budget == Budget(total=5)
        assert len(memory) == 0
        assert memory.label_onwards
        assert not make_memory(selection, Budget(total=5), label_onwards=False).label_onwards


@pytest.mark.parametrize(("selection", "asks"), [("herding", True), ("random", False)])
def test_only_herding_asks_for_features(selection, asks):
    asked = []

    def features(rows):
        asked.append(rows.tolist())
        return np.random.default_rng(0).normal(size=(len(rows), 3)).astype(np.float32)

    memory, session = make_memory(selection, Budget(per_class=2), True), sessions(random_labels())[0]
    memory.open_session(session)
    memory.close_session(session, features, np.random.default_rng(0))
    assert len(memory) > 2
    assert asked == [session.indices.tolist()] * asks


def test_a_memory_that_chooses_at_the_end_takes_nothing_on_the_way():
    memory, session = make_memory("herding", Budget(per_class=2), True), sessions(random_labels())[0]
    memory.open_session(session)
    assert memory.observe(session.indices, session.labels, np.random.default_rng(0)).tolist() == []
    assert memory.present().tolist() == memory.indices.tolist() == []


@pytest.mark.parametrize("selection", STREAMS)
@pytest.mark.parametrize("budget", [Budget(total=7), Budget(per_class=2)])
def test_it_does_what_its_policy_does(selection, budget):
    labels, policy = random_labels(), STREAMS[selection]
    memory = make_memory(selection, budget, label_onwards=True)
    stock = StreamMemory(np.empty(0, np.int64), np.empty((0, 0), np.int8), np.zeros(0, np.int64), 0)
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    for session in sessions(labels):
        memory.open_session(session)
        stock.labels = np.append(stock.labels, labels[stock.indices, session.first : session.stop], axis=1)
        stock.counts = np.append(stock.counts, np.zeros(session.stop - session.first, np.int64))
        for rows in batches(session):
            indices, known = session.indices[rows], session.labels[rows]
            taken = memory.observe(indices, known, ours)
            expected = policy(stock, indices, known, budget.total or budget.per_class * session.stop, theirs)
            assert taken.tolist() == expected.tolist()
            assert memory.present().tolist() == stock.indices.tolist()
        memory.close_session(session, no_features, ours)
        assert everything(memory) == {
            "indices": stock.indices.tolist(),
            "labels": stock.labels.tolist(),
            "counts": stock.counts.tolist(),
            "seen": stock.seen,
        }


@given(
    seed=st.integers(0, 2**31),
    selection=st.sampled_from(sorted(STREAMS)),
    budget=st.one_of(st.builds(Budget, per_class=st.integers(1, 5)), st.builds(Budget, total=st.integers(1, 20))),
    onwards=st.booleans(),
    step=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_budget_and_labels_over_sessions(seed, selection, budget, onwards, step):
    labels = random_labels(seed)
    memory, rng = make_memory(selection, budget, onwards), np.random.default_rng(seed)
    shown = set()
    for session in sessions(labels, f"B0-C{step}"):
        memory.open_session(session)
        for rows in batches(session):
            shown |= set(session.indices[rows].tolist())
            memory.observe(session.indices[rows], session.labels[rows], rng)
            held = memory.present().tolist()
            assert len(set(held)) == len(held) <= (budget.total or budget.per_class * session.stop)
            assert set(held) <= shown
        memory.close_session(session, no_features, rng)
        assert memory.labels.shape == (len(memory), session.stop)
        known = memory.labels != -1
        assert (memory.labels[known] == labels[memory.indices, : session.stop][known]).all()
        assert (memory.labels == 1).any(axis=1).all()
    assert (memory.counts == [(labels[:, column] == 1).sum() for column in range(6)]).all()


@pytest.mark.parametrize("selection", STREAMS)
def test_labels_of_sessions_that_an_image_did_not_come_with_are_unknown(selection):
    memory, rng = make_memory(selection, Budget(total=12), label_onwards=False), np.random.default_rng(0)
    for session in sessions(random_labels()):
        learn(memory, session, rng)
    for session in sessions(random_labels()):
        absent = ~np.isin(memory.indices, session.indices)
        assert absent.any()
        assert (memory.labels[absent, session.first : session.stop] == -1).all()


@pytest.mark.parametrize("selection", STREAMS)
def test_a_held_image_that_passes_again_gains_what_the_session_knows(selection):
    first, second = sessions([[1, 0, 1, 1], [0, 1, 0, 0]])
    memory, rng = make_memory(selection, Budget(total=5), label_onwards=False), np.random.default_rng(0)
    learn(memory, first, rng)
    learn(memory, second, rng)
    assert sorted(memory.indices.tolist()) == [0, 1]
    found = dict(zip(memory.indices.tolist(), memory.labels.tolist(), strict=True))
    assert found == {0: [1, 0, 1, 1], 1: [0, 1, -1, -1]}


@pytest.mark.parametrize("selection", STREAMS)
def test_within_a_session_the_state_is_that_of_its_start(selection):
    first, second = sessions(random_labels())[:2]
    memory, rng = make_memory(selection, Budget(total=7), False), np.random.default_rng(0)
    learn(memory, first, rng)
    memory.open_session(second)
    start = everything(memory)
    stream(memory, second, rng)
    assert everything(memory) == start
    assert memory.present().tolist() != start["indices"]
    left = memory.present().tolist()
    memory.close_session(second, no_features, rng)
    assert memory.indices.tolist() == memory.present().tolist() == left
    assert everything(memory)["seen"] == start["seen"] + len(second.indices)
