"""What a memory shows again: which images, how often, with which labels, and the same after an interruption."""

import numpy as np
import pytest

from mlcil.data.loading import plan_epoch
from mlcil.memory.buffer import Budget
from mlcil.methods.base import Task
from mlcil.methods.er import ER
from mlcil.models.backbone import Backbone

STREAMS = ["reservoir", "prs", "ocdm"]
SELECTIONS = ["herding", "random", *STREAMS]


def plan_of(method, session, epoch=0, batch=5):
    return plan_epoch(method.training_set(session).shown, batch, 0, session.number, epoch)


def rng_of(session, epoch=0, seed=0):
    return np.random.default_rng([seed, session.number, epoch])


def drawn(method, session, epochs=(0,), batch=5, seed=0):
    """The draws of some epochs, as the loop asks for them."""
    training = method.training_set(session)
    return [
        method.draw(training, plan_of(method, session, epoch, batch), epoch, rng_of(session, epoch, seed))
        for epoch in epochs
    ]


def opened(world, number=2, budget=None, epochs=(0,), name="er", **options):
    """A method whose memory has seen `number` - 1 sessions, and which has opened the next."""
    sessions = world.sessions()
    method = world.make(name, budget or Budget(per_class=3), **options)
    for session in sessions[: number - 1]:
        method.before_session(session, world.infer)
        drawn(method, session, epochs)
        method.after_session(session, world.infer)
    world.passes.clear()
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def as_lists(draws):
    return [[[one.tolist() for one in step] for step in epoch] for epoch in draws]


@pytest.mark.parametrize("selection", ["herding", "random"])
@pytest.mark.parametrize("batch", [1, 3, 5, 40])
def test_draws_are_distinct_images_of_the_memory_as_many_as_the_batch_has(world, selection, batch):
    method, session = opened(world, selection=selection)
    memory, training = set(method.buffer.indices.tolist()), method.training_set(session)
    plan, (draws,) = plan_of(method, session, batch=batch), drawn(method, session, batch=batch)
    assert 1 < len(memory) < len(session.indices)
    assert len(draws) == len(plan)
    for positions, (rows,) in zip(plan, draws, strict=True):
        shown = training.indices[rows].tolist()
        assert set(shown) <= memory
        assert len(set(shown)) == len(shown) == min(len(positions), len(memory))


@pytest.mark.parametrize("selection", STREAMS)
@pytest.mark.parametrize("budget", [Budget(per_class=2), Budget(total=5)])
def test_a_step_draws_from_the_memory_as_it_stood_before_it(world, selection, budget):
    method, session = opened(world, budget=budget, selection=selection)
    training, plan, rng = method.training_set(session), plan_of(method, session), rng_of(session)
    memories, draws = [], []
    for positions in plan:
        memories.append(set(method.buffer.present().tolist()))
        (step,) = method.draw(training, [positions], 0, rng)
        draws.append(step)
    for memory, positions, (rows,) in zip(memories, plan, draws, strict=True):
        assert set(training.indices[rows].tolist()) <= memory
        assert len(set(rows.tolist())) == len(rows) == min(len(positions), len(memory))
    assert len({frozenset(memory) for memory in memories}) > 1  # it changes on the way
    again, session = opened(world, budget=budget, selection=selection)
    assert as_lists(drawn(again, session)) == as_lists([draws])


@pytest.mark.parametrize("selection", STREAMS)
def test_a_stream_is_drawn_from_in_the_first_session_already(world, selection):
    method, session = opened(world, 1, selection=selection)
    (draws,) = drawn(method, session, batch=2)
    assert draws[0] == ()
    assert all(len(step) == 1 for step in draws[1:])


def test_an_exemplar_is_shown_as_often_as_images_per_exemplar(world):
    method, session = opened(world)
    images, exemplars, batch, epochs = len(session.indices), len(method.buffer), 5, 300
    assert exemplars >= batch  # else a step shows less than a batch of them
    counts = np.zeros((epochs, len(method.training_set(session).indices)), np.int64)
    steps = len(plan_of(method, session))
    for epoch in range(epochs):
        (draws,) = drawn(method, session, [epoch], batch)
        for (rows,) in draws:
            counts[epoch, rows] += 1
    counts = counts[:, np.isin(method.training_set(session).indices, method.buffer.indices)]
    assert counts.shape[1] == exemplars
    assert (counts.sum(axis=1) == images).all()  # on average over exemplars: exactly |D^t| / buffer size
    assert counts.max() <= steps
    # A step of b images shows an exemplar with probability b / n, independently of the other steps.
    chances = np.array([len(one) for one in plan_of(method, session)]) / exemplars
    assert chances.sum() == pytest.approx(images / exemplars)
    error = np.sqrt((chances * (1 - chances)).sum() / epochs)
    assert np.abs(counts.mean(axis=0) - images / exemplars).max() < 4.5 * error


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_mixed_in_every_exemplar_stands_once_in_an_epoch(world, selection):
    method, session = opened(world, replay="concat", selection=selection)
    training = method.training_set(session)
    assert training.epoch_size is None
    assert training.shown == len(training.indices)
    plan = plan_of(method, session)
    shown = training.indices[np.concatenate(plan)].tolist()
    assert sorted(shown) == sorted(set(session.indices.tolist()) | set(method.buffer.indices.tolist()))
    assert len(shown) > len(session.indices)
    assert drawn(method, session) == [[()] * len(plan)]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_paired_an_epoch_goes_over_the_sessions_images_alone(world, selection):
    method, session = opened(world, selection=selection)
    training = method.training_set(session)
    assert training.shown == len(session.indices) < len(training.indices)
    assert training.indices[: training.shown].tolist() == session.indices.tolist()
    positions = np.concatenate(plan_of(method, session))
    assert sorted(training.indices[positions].tolist()) == session.indices.tolist()


@pytest.mark.parametrize("replay", ["concat", "paired"])
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("labels", ["stored_onwards", "stored_only"])
def test_an_exemplar_that_returns_stands_once_with_all_that_is_known(world, replay, selection, labels):
    method, session = opened(
        world, budget=Budget(per_class=8), replay=replay, selection=selection, exemplar_labels=labels
    )
    training = method.training_set(session)
    place = {index: row for row, index in enumerate(training.indices.tolist())}
    assert len(place) == len(training.indices)
    memory, images = set(method.buffer.indices.tolist()), set(session.indices.tolist())
    assert set(place) == memory | images
    assert memory & images
    assert memory - images
    later = slice(2, 4)
    for index in memory & images:
        assert training.labels[place[index]].tolist() == world.labels[index, :4].tolist()
    for index in memory - images:
        annotated = world.labels[index, later].tolist() if labels == "stored_onwards" else [-1, -1]
        assert training.labels[place[index]].tolist() == [*world.labels[index, :2].tolist(), *annotated]
    for index in images - memory:
        assert training.labels[place[index]].tolist() == [-1, -1, *world.labels[index, later].tolist()]
    assert (session.labels[:, :2] == -1).all()  # the session itself is not written to


def test_two_draws_are_independent(world):
    class Twice(ER):
        draws = 2

    method, session = opened(world)
    twice = Twice(method.config, Backbone("small_conv", 16), Task(None, 6), method.budget)
    twice.load_state(method.state())
    (draws,) = drawn(twice, session)
    assert [[len(one) for one in step] for step in draws] == [[len(one)] * 2 for one in plan_of(method, session)]
    assert any(set(first.tolist()) != set(second.tolist()) for first, second in draws)
    assert any(set(first.tolist()) & set(second.tolist()) for first, second in draws)


def streamed(world, name="er", sessions=3, **options):
    method, rng = world.make(name, Budget(total=8), **options), np.random.default_rng(0)
    for session in world.sessions()[:sessions]:
        method.before_session(session, world.infer)
        training = method.training_set(session)
        method.draw(training, np.array_split(np.arange(training.shown), 4), 0, rng)
        method.after_session(session, world.infer)
    return method


@pytest.mark.parametrize("replay", ["concat", "paired"])
@pytest.mark.parametrize("selection", ["reservoir", "prs", "ocdm"])
def test_the_stream_shows_each_session_once_with_its_own_labels(world, selection, replay):
    memory = streamed(world, selection=selection, replay=replay).buffer
    assert memory.seen == sum(len(session.indices) for session in world.sessions())
    assert memory.counts.tolist() == (world.labels == 1).sum(axis=0).tolist()


def test_fixed_pseudo_labels_never_enter_the_memory(world):
    options = {"selection": "reservoir", "pseudo": "fixed", "replay": "paired", "labels_per_image": 3.0}
    memory = streamed(world, "krt", 2, **options).buffer
    known = memory.labels != -1
    assert (memory.labels[known] == world.labels[memory.indices, :4][known]).all()
