"""Probes: nothing that a session has learned is touched by another."""

import pytest
import torch

from mlcil.losses.asymmetric import asymmetric_loss


def opened(world, number=2, steps=3):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make("probes")
    for session in sessions[: number - 1]:
        world.learn(session, steps)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def copied(tensors):
    return {name: value.detach().clone() for name, value in tensors.items()}


def test_backbone_statistics_and_old_heads_are_bit_identical(world):
    method = world.make("probes")
    former = copied(method.tagger.state_dict())
    assert any("running_mean" in name for name in former)
    for session in world.sessions():
        world.learn(session)
        now = method.tagger.state_dict()
        assert all(torch.equal(now[name], value) for name, value in former.items())
        former = copied(now)
    assert len(method.tagger.heads) == 3


def test_a_sessions_loss_does_not_depend_on_other_columns(world):
    method, session = opened(world)
    batch, found = world.batch(session), []
    for shift in (0.0, 4.0, -9.0):
        with torch.no_grad():
            method.tagger.heads[0].bias += shift
            method.tagger.heads[0].weight *= 1 + shift
        method.tagger.zero_grad()
        terms = method.losses(batch)
        assert list(terms) == ["classification"]
        terms["classification"].backward()
        found.append((terms["classification"].item(), method.tagger.heads[1].weight.grad.clone()))
    assert found[0][0] == found[1][0] == found[2][0] > 0
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][1], found[2][1])
    with torch.no_grad():
        logits = method.tagger(batch.images).logits[:, 2:]
    expected = asymmetric_loss(logits, batch.labels[:, 2:]).mean().item()
    assert found[0][0] == pytest.approx(expected, rel=1e-6)


def test_a_head_does_not_know_what_went_before(world):
    heads = []
    for steps in (0, 3):
        method = world.make("probes")
        first, second = world.sessions()[:2]
        world.learn(first, steps)
        torch.manual_seed(1)
        world.learn(second, 3)
        heads.append(copied(method.tagger.heads.state_dict()))
    assert not torch.equal(heads[0]["0.weight"], heads[1]["0.weight"])
    assert torch.equal(heads[0]["1.weight"], heads[1]["1.weight"])
    assert torch.equal(heads[0]["1.bias"], heads[1]["1.bias"])
