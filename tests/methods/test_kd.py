"""The KD baseline: the pooled feature is held to its old direction, in the published units."""

import math

import numpy as np
import pytest
import torch

from mlcil.memory.buffer import Budget


def opened(world, number=2, budget=None, text="B0-C2", **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions(text)
    method = world.make("kd", budget, **options)
    for session in sessions[: number - 1]:
        world.learn(session)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def literal_distance(now, before):
    """The mean of 1 - cos over rows, in double precision."""
    now, before = now.double().numpy(), before.double().numpy()
    lengths = np.linalg.norm(now, axis=1) * np.linalg.norm(before, axis=1)
    return float(np.mean(1 - (now * before).sum(1) / lengths))


@pytest.mark.parametrize("number", [2, 3])
def test_the_distillation_starts_at_its_minimum(world, number):
    method, session = opened(world, number)
    method.tagger.eval()
    batch = world.batch(session)
    terms = method.losses(batch)
    assert set(terms) == {"classification", "feature"}
    assert terms["feature"].item() == 0
    method.tagger.zero_grad()
    terms["feature"].backward()
    gradients = [one.grad.abs().max().item() for one in method.tagger.backbone.parameters()]
    assert max(gradients) < 1e-4
    world.train(session, 2)
    method.tagger.eval()
    assert method.losses(batch)["feature"].item() > 1e-4


@pytest.mark.parametrize(
    ("text", "number", "seen", "new"), [("B0-C2", 2, 4, 2), ("B0-C2", 3, 6, 2), ("B4-C1", 2, 5, 1), ("B2-C4", 2, 6, 4)]
)
@pytest.mark.parametrize("weight", [180.0, 7.0])
def test_weight_and_growth_by_hand(world, text, number, seen, new, weight):
    method, session = opened(world, number, text=text, feature_weight=weight)
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        term, now, before = (
            method.losses(batch)["feature"],
            method.tagger(batch.images).pooled,
            method.teacher(batch.images).pooled,
        )
    distance = literal_distance(now, before)
    assert distance > 1e-3
    assert term.item() == pytest.approx(weight / 64 * math.sqrt(seen / new) * distance, rel=1e-3)


def test_drawn_exemplars_are_distilled_too(world):
    method, session = opened(world, budget=Budget(per_class=3), replay="paired")
    world.train(session, 2)
    method.tagger.eval()
    training = method.training_set(session)
    rows = np.flatnonzero(np.isin(training.indices, method.buffer.indices))[:4]
    batch = world.batch(session, 4, draws=[rows])
    images = world.images[training.indices[np.concatenate([np.arange(4), rows])]]
    with torch.no_grad():
        term, distance = (
            method.losses(batch)["feature"],
            literal_distance(method.tagger(images).pooled, method.teacher(images).pooled),
        )
    assert term.item() == pytest.approx(180 / 64 * math.sqrt(2) * distance, rel=1e-3)


def test_the_teacher_is_the_model_of_before_and_leaves_with_the_session(world):
    method, session = opened(world)
    with torch.no_grad():
        before = method.tagger.eval()(world.images).logits[:, :2]
    world.train(session, 3)
    with torch.no_grad():
        assert torch.equal(method.teacher(world.images).logits, before)
        assert not torch.equal(method.tagger.eval()(world.images).logits[:, :2], before)
    method.after_session(session, world.infer)
    assert method.teacher is None
