"""The adaptive learner: features that go on learning beside features that stay, under one solution."""

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.data.images import UNKNOWN
from mlcil.methods import adaptive
from mlcil.models.moving import Move

SMALL = {"expansion": 8, "window": 0.5}


def learn(world, name="adaptive", steps=3, text="B0-C2", **options):
    method = world.make(name, **(SMALL | options))
    for session in world.sessions(text):
        method.before_session(session, world.infer)
        if method.trains(session) and steps:
            world.train(session, steps)
        method.after_session(session, world.infer)
    return method


def weights_of(backbone):
    return {name: value.clone() for name, value in backbone.state_dict().items()}


def test_the_backbone_learns_in_every_session_and_its_copy_never(world):
    method = world.make("adaptive", **SMALL)
    still, last = weights_of(method.tagger.still), weights_of(method.tagger.backbone)
    for session in world.sessions():
        world.learn(session)
        now = weights_of(method.tagger.backbone)
        assert any(not torch.equal(now[name], value) for name, value in last.items())
        last = now
    assert all(torch.equal(method.tagger.still.state_dict()[name], value) for name, value in still.items())
    assert method.predict(world.images).shape == (24, 6)
    assert 0 < method.notes()["explained"] < 1


def test_the_sums_of_what_stays_are_those_of_the_analytic_learner(world):
    moving, analytic = (learn(world, name, expansion=0, remember="fingerprints") for name in ("adaptive", "analytic"))
    whole, fixed = moving.ledger.sums(), analytic.ledger.sums()
    kept = [*range(analytic.tagger.backbone.channels, whole.width)]  # all but what the backbone has learned
    torch.testing.assert_close(whole.matrix()[kept][:, kept], fixed.matrix(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole.cross[kept], fixed.cross, rtol=1e-9, atol=1e-9)


def test_a_backbone_that_does_not_move_gives_the_solution_of_all_labels_at_once(world):
    one, joint = (learn(world, steps=0, text=text, ridge=2.0, expansion=0).solution for text in ("B0-C2", "joint"))
    torch.testing.assert_close(one.weights, joint.weights, rtol=0, atol=1e-6)


def test_moved_sums_are_closer_to_the_truth_than_sums_left_behind(world, monkeypatch):
    def error():
        method = learn(world, steps=6, expansion=0)
        with torch.no_grad():
            z = method.tagger.expand(method.tagger.eval().describe(world.images)).double()
        rows = sorted({row for session in world.sessions() for row in session.indices})
        return (method.ledger.sums().matrix() - (z[rows].T @ z[rows]).tril()).norm()

    moved = error()

    def stay(before, after):
        size = after.shape[1]
        nothing = torch.zeros(before.shape[1] + 1, size, dtype=torch.float64)
        return Move(nothing, nothing[:size].clone(), 1.0)

    monkeypatch.setattr(adaptive, "fit_move", stay)
    assert moved < 0.9 * error()


def test_what_was_said_about_an_image_is_known_when_it_comes_back(world):
    method = world.make("adaptive", **SMALL)
    first, second, third = world.sessions()
    for session in (first, second):
        world.learn(session)
    method.before_session(third, world.infer)
    known = method.training_set(third).labels
    assert (third.labels[:, : third.first] == UNKNOWN).all()
    for row, index in enumerate(third.indices):
        for session in (first, second):
            columns = slice(session.first, session.stop)
            seen = np.flatnonzero(session.indices == index)
            expected = world.labels[index, columns] if len(seen) else UNKNOWN
            assert (known[row, columns] == expected).all()
    assert np.array_equal(known[:, third.first :], third.labels[:, third.first :])


def test_a_backbone_without_anything_to_train_is_refused(world):
    method = world.make("analytic")
    with pytest.raises(UserError, match="all of it is frozen; set freeze to a number of stages"):
        world.make("adaptive").make_tagger(method.tagger.backbone)
