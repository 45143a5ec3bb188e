"""DER++: stored logits of their time, two independent draws, and the original's reservoir."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mlcil.data.loading import Batch
from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget


def opened(world, number=2, budget=None, steps=3, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make("derpp", budget or Budget(per_class=3), **options)
    for session in sessions[: number - 1]:
        torch.manual_seed(session.number)
        world.learn(session, steps)
    torch.manual_seed(number)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def places(method, session):
    """Where in the training set the exemplars are."""
    return np.flatnonzero(np.isin(method.training_set(session).indices, method.buffer.indices))


def stored_of(method, index, classes=6):
    """The logits stored of one image, in their own width."""
    logits, known = method.logits.get(torch.tensor([index]), classes)
    return logits[known].tolist()


def replayed(world, method, session):
    """A batch beside which every exemplar is drawn twice."""
    rows = places(method, session)
    return world.batch(session, draws=(rows, rows))


# Logits of the session's end ---------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_when_a_session_has_ended_the_model_says_what_is_stored(world, selection):
    method = world.make("derpp", Budget(per_class=3), selection=selection)
    first = world.sessions()[0]
    world.learn(first)
    method.tagger.eval()
    with torch.no_grad():
        assert method.losses(replayed(world, method, first))["logits"].item() < 1e-10
        said = method.tagger(world.images).logits
    for index in method.buffer.indices.tolist():
        assert stored_of(method, index) == pytest.approx(said[index].tolist(), abs=1e-4)


def test_old_exemplars_keep_their_old_logits_in_the_old_width(world):
    method, session = opened(world)
    before = {index: stored_of(method, index) for index in method.buffer.indices.tolist()}
    world.train(session, 3)
    method.after_session(session, world.infer)
    later = set(method.buffer.indices.tolist()) - set(before)
    assert before
    assert later
    assert {index: stored_of(method, index) for index in before} == before
    assert {len(row) for row in before.values()} == {2}
    assert {len(stored_of(method, index)) for index in later} == {4}
    with torch.no_grad():
        said = method.tagger.eval()(world.images).logits
    assert any(before[index] != pytest.approx(said[index, :2].tolist(), abs=1e-3) for index in before)
    for index in later:
        assert stored_of(method, index) == pytest.approx(said[index].tolist(), abs=1e-4)


def test_logits_of_exemplars_that_leave_are_forgotten(world):
    method, ever = world.make("derpp", Budget(total=6)), set()
    for session in world.sessions():
        ever |= set(method.buffer.indices.tolist())
        world.learn(session, 1)
        held = set(method.buffer.indices.tolist())
        assert {index for index in range(24) if index in method.logits} == held
    assert ever - held


# The terms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["stored_onwards", "stored_only"])
@pytest.mark.parametrize("missing", ["negative", "ignore"])
def test_each_draw_has_its_own_term(world, labels, missing):
    options = {"exemplar_labels": labels, "missing": missing, "alpha": 0.2, "beta": 0.7}
    method, session = opened(world, budget=Budget(per_class=8), **options)
    rows = places(method, session)
    dark, labelled = rows[:3], rows[-4:]
    batch = world.batch(session, draws=(dark, labelled))
    world.train(session, 1)
    method.tagger.eval()
    with torch.no_grad():
        terms = method.losses(batch)
        logits = [method.tagger(one.images).logits for one in (batch, *batch.replay)]
    assert set(terms) == {"classification", "logits", "replay"}
    full = method.training_set(session)
    known = torch.from_numpy(full.labels[labelled])
    assert bool((known[:, 2:] == -1).any()) == (labels == "stored_only")

    def classification(said, truth):
        truth = truth.clamp(min=0) if missing == "negative" else truth
        return asymmetric_loss(said, truth).mean().item()

    assert terms["classification"].item() == pytest.approx(classification(logits[0], batch.labels), rel=1e-5)
    assert terms["replay"].item() == pytest.approx(0.7 * classification(logits[2], known), rel=1e-5)
    stored = torch.tensor([stored_of(method, index) for index in full.indices[dark].tolist()])
    expected = (logits[1][:, :2] - stored).square().mean().item()
    assert terms["logits"].item() == pytest.approx(0.2 * expected, rel=1e-4)


def test_the_first_draw_is_not_classified_and_the_second_not_held_to_logits(world):
    method, session = opened(world, budget=Budget(per_class=8))
    method.tagger.eval()
    batch = replayed(world, method, session)
    dark, labelled = batch.replay
    other = replace(dark, labels=1 - dark.labels.clamp(min=0))
    unknown = replace(labelled, indices=torch.full_like(labelled.indices, 99))
    with torch.no_grad():
        ours = method.losses(batch)
        assert method.losses(replace(batch, replay=(other, labelled))) == ours
        assert method.losses(replace(batch, replay=(dark, unknown))) == ours
        assert method.losses(replace(batch, replay=(dark, other)))["replay"] != ours["replay"]


# The draws ---------------------------------------------------------------------------------------


# The original: a reservoir, and the logits of the step -------------------------------------------


class Stream:
    """Trains a method with a reservoir by hand and keeps a record of what it must have stored."""

    def __init__(self, world, method):
        self.world, self.method = world, method
        self.expected = {}  # by image, the logits of the step at which it was last taken
        self.said = {}  # by image, every row of logits that it was ever given
        self.drawn = set()

    def batch(self, full, rows, draws):
        def part(positions):
            indices = torch.from_numpy(full.indices[positions])
            return Batch(self.world.images[indices], torch.from_numpy(full.labels[positions]), indices)

        return replace(part(rows), replay=tuple(part(one) for one in draws))

    def epoch(self, session, epoch, size=4):
        method, full, taken = self.method, self.method.training_set(session), []
        observe = method.buffer.observe

        def recorded(indices, labels, rng):
            taken.append(observe(indices, labels, rng).tolist())
            return np.array(taken[-1], np.int64)

        method.buffer.observe = recorded
        rng = np.random.default_rng([session.number, epoch])
        order = rng.permutation(full.shown)
        plan = [order[start : start + size] for start in range(0, full.shown, size)]
        draws = method.draw(full, plan, epoch, rng)
        method.buffer.observe = observe
        assert len(taken) == len(plan)
        for rows, drawn, accepted in zip(plan, draws, taken, strict=True):
            self.step(self.batch(full, rows, drawn), accepted)

    def step(self, batch, accepted):
        """One update; every drawn image must have logits before it."""
        outputs = []

        def student(images):
            outputs.append(self.method.tagger(images))
            return outputs[-1]

        for one in batch.replay:
            self.drawn |= set(one.indices.tolist())
            assert set(one.indices.tolist()) <= set(self.expected)
            assert all(index in self.method.logits for index in one.indices.tolist())
        self.method.student = student
        terms = self.method.losses(batch)
        for index, row in zip(batch.indices.tolist(), outputs[0].logits.tolist(), strict=True):
            self.said.setdefault(index, []).append(row)
            if index in accepted:
                self.expected[index] = row
        optimiser = torch.optim.SGD(self.method.tagger.parameters(), 0.05)
        optimiser.zero_grad()
        sum(terms.values()).backward()
        optimiser.step()
        self.method.student = self.method.tagger


def streamed(world, sessions=1, epochs=2, budget=None, **options):
    method = world.make("derpp", budget or Budget(total=6), selection="reservoir", **options)
    stream = Stream(world, method)
    for session in world.sessions()[:sessions]:
        method.before_session(session, world.infer)
        for epoch in range(epochs):
            stream.epoch(session, epoch)
            assert {index: stored_of(method, index) for index in stream.expected} == stream.expected
        method.after_session(session, world.infer)
        # What was dropped is forgotten, so that a later return starts anew.
        held = set(method.buffer.indices.tolist())
        stream.expected = {index: row for index, row in stream.expected.items() if index in held}
    return method, stream


@pytest.mark.parametrize("budget", [Budget(total=6), Budget(per_class=2)])
def test_a_reservoir_stores_the_logits_of_the_step_that_took_the_image(world, budget):
    method, stream = streamed(world, sessions=3, budget=budget)
    held = method.buffer.indices.tolist()
    assert len(held) == (budget.total or budget.per_class * 6)
    assert {index: stored_of(method, index) for index in held} == stream.expected
    assert {len(row) for row in stream.expected.values()} > {6}  # of several sessions
    assert stream.drawn
    # They are not those of another step: the model has moved on in between.
    for index, row in stream.expected.items():
        assert stream.said[index].count(row) == 1
    assert any(len(stream.said[index]) > 1 for index in held)


def test_with_a_reservoir_no_pass_over_exemplars_is_made(world):
    streamed(world, sessions=2)
    assert world.passes == []


def test_what_a_reservoir_drops_is_forgotten_when_the_session_ends(world):
    method = world.make("derpp", Budget(total=3), selection="reservoir")
    first, stream = world.sessions()[0], Stream(world, method)
    method.before_session(first, world.infer)
    for epoch in range(2):
        stream.epoch(first, epoch)
    assert len(stream.expected) > 3
    assert all(index in method.logits for index in stream.expected)
    method.after_session(first, world.infer)
    held = set(method.buffer.indices.tolist())
    assert len(held) == 3
    assert {index for index in range(24) if index in method.logits} == held


def test_images_that_a_reservoir_passes_over_are_not_stored(world):
    method = world.make("derpp", Budget(total=2), selection="reservoir")
    first, stream = world.sessions()[0], Stream(world, method)
    method.before_session(first, world.infer)
    stream.epoch(first, 0)
    passed_over = set(stream.said) - set(stream.expected)
    assert passed_over
    assert not any(index in method.logits for index in passed_over)


def test_logits_that_other_processes_compute_are_stored_as_well(world):
    method = world.make("derpp", Budget(total=24), selection="reservoir")
    first = world.sessions()[0]
    method.before_session(first, world.infer)
    full = method.training_set(first)
    plan = [np.arange(4), np.arange(4, 8)]
    method.draw(full, plan, 0, np.random.default_rng(0))
    theirs = {1: torch.tensor([77]), 2: torch.tensor([[0.25, -8.0]])}  # by dimensions: an image and its logits
    method.gather = lambda rows: torch.cat([rows, theirs[rows.ndim]])
    batch = world.batch(first, 4)
    method.losses(batch)
    assert stored_of(method, 77) == [0.25, -8.0]
    assert all(index in method.logits for index in batch.indices.tolist())
    theirs[1] = torch.tensor([78])
    foreign = replace(batch, indices=batch.indices + 100)  # none of this process's images is taken
    method.losses(foreign)
    assert stored_of(method, 78) == [0.25, -8.0]
    assert not any(index in method.logits for index in foreign.indices.tolist())


def test_the_logits_of_a_step_carry_no_gradient(world):
    method = world.make("derpp", Budget(total=24), selection="reservoir")
    first = world.sessions()[0]
    method.before_session(first, world.infer)
    full = method.training_set(first)
    method.draw(full, [np.arange(full.shown)], 0, np.random.default_rng(0))
    method.losses(world.batch(first))
    logits, known = method.logits.get(torch.from_numpy(first.indices), 2)
    assert known.all()
    assert not logits.requires_grad


def test_an_image_taken_again_is_replayed_with_what_was_said_before(world):
    method = world.make("derpp", Budget(total=24), selection="reservoir", alpha=1.0)
    (session,) = world.sessions("joint")
    method.before_session(session, world.infer)
    training, rng = method.training_set(session), np.random.default_rng(0)
    every = np.arange(training.shown)
    method.tagger.eval()
    with torch.no_grad():
        method.draw(training, [every], 0, rng)
        method.losses(world.batch(session))
        method.tagger.heads[0].bias += 2
        method.draw(training, [every], 1, rng)
        term = method.losses(world.batch(session, draws=[every, every]))["logits"]
    assert term.item() == pytest.approx(4.0, rel=1e-4)
