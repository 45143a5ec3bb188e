"""LwF: the old model's softened probabilities hold the old columns, and nothing else changes."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from mlcil.losses.asymmetric import asymmetric_loss


def opened(world, number=2, steps=3, name="lwf", **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make(name, **options)
    for session in sessions[: number - 1]:
        world.learn(session, steps)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def entropy(logits):
    return torch.distributions.Bernoulli(logits=logits.double()).entropy().sum(dim=1).mean().item()


def gradient_of(term, method):
    """The largest entry of the term's gradient over all parameters."""
    gradients = torch.autograd.grad(term, list(method.tagger.parameters()), allow_unused=True)
    return max(one.abs().max().item() for one in gradients if one is not None)


def literal(now, before, temperature):
    """The mean over images of each old class's cross-entropy, element by element."""
    total = 0.0
    for ours, theirs in zip(now.tolist(), before.tolist(), strict=True):
        for z, old in zip(ours, theirs, strict=False):
            p, q = (1 / (1 + math.exp(-value / temperature)) for value in (z, old))
            total -= q * math.log(p) + (1 - q) * math.log(1 - p)
    return total / len(now)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_starts_at_the_teachers_entropy_with_no_gradient(world, number, temperature):
    method, session = opened(world, number, temperature=temperature, weight=3.0)
    method.tagger.eval()
    batch = world.batch(session)
    before = method.teacher(batch.images).logits
    assert before.shape[1] == 2 * (number - 1)
    term = method.losses(batch)["distillation"]
    assert term.item() == pytest.approx(3 * entropy(before / temperature), rel=1e-5)
    assert gradient_of(term, method) < 1e-6
    world.train(session, 2)
    method.tagger.eval()
    term = method.losses(batch)["distillation"]
    assert term.item() > 3 * entropy(before / temperature)
    assert gradient_of(term, method) > 1e-2


@pytest.mark.parametrize(("weight", "temperature"), [(1.0, 2.0), (0.5, 1.0), (3.0, 4.0)])
def test_the_old_columns_are_summed_without_a_factor_of_the_temperature(world, weight, temperature):
    method, session = opened(world, 3, weight=weight, temperature=temperature)
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        term = method.losses(batch)["distillation"].item()
        now, before = method.tagger(batch.images).logits, method.teacher(batch.images).logits
    assert now.shape[1] == 6
    assert term == pytest.approx(weight * literal(now, before, temperature), rel=1e-5)


def test_the_teacher_sees_the_images_of_the_batch(world):
    method, session = opened(world)
    method.tagger.eval()
    batch = world.batch(session)
    noisy = replace(batch, images=batch.images.flip(3) + 0.3)
    for one in (batch, noisy):
        # Student and teacher agree on whatever they are shown, so each sits at its own floor.
        expected = entropy(method.teacher(one.images).logits / 2)
        assert method.losses(one)["distillation"].item() == pytest.approx(expected, rel=1e-5)
    assert method.losses(batch)["distillation"].item() != method.losses(noisy)["distillation"].item()


def test_unknown_labels_count_as_absent_or_leave_the_new_columns_alone(world):
    for missing in ("negative", "ignore"):
        method, session = opened(world, missing=missing)
        method.tagger.eval()
        with torch.no_grad():
            method.tagger.heads[0].bias.fill_(1.0)  # old classes that the model believes in
            batch = world.batch(session)
            logits, terms = method.tagger(batch.images).logits, method.losses(batch)
        everything = asymmetric_loss(logits, batch.labels.clamp(min=0)).mean()
        new = asymmetric_loss(logits[:, 2:], batch.labels[:, 2:]).mean()
        expected, other = (everything, new) if missing == "negative" else (new, everything)
        assert terms["classification"].item() == pytest.approx(expected.item(), rel=1e-6)
        assert terms["classification"].item() != pytest.approx(other.item(), rel=1e-2)


def descend(world, method, session, rate, steps):
    """Gradient descent in evaluation mode, so that the teacher's scores can be met exactly."""
    method.tagger.eval()
    batch = world.batch(session)
    optimiser = torch.optim.SGD(method.tagger.parameters(), rate)
    for _ in range(steps):
        optimiser.zero_grad()
        sum(method.losses(batch).values()).backward()
        optimiser.step()


def test_a_large_weight_holds_the_old_scores_while_new_ones_learn(world):
    method, session = opened(world, weight=100.0)
    free = copy.deepcopy(method)
    free.student, free.teacher = free.tagger, None
    batch = world.batch(session)

    @torch.no_grad()
    def measured(one):
        """How far the old scores are from the teacher's, and the loss of the new classes."""
        logits = one.tagger.eval()(batch.images).logits
        drift = torch.sigmoid(logits[:, :2]) - torch.sigmoid(method.teacher(batch.images).logits)
        return drift.abs().mean().item(), asymmetric_loss(logits[:, 2:], batch.labels[:, 2:]).mean().item()

    _, start = measured(method)
    for one in (method, free):
        descend(world, one, session, 4e-3, 30)
    (held, learned), (drifted, _) = measured(method), measured(free)
    assert held < 0.1 * drifted
    assert learned < 0.8 * start
