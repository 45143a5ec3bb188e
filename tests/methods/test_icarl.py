"""iCaRL: old columns follow the old model, new ones the labels; means of exemplars as scores."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget


def opened(world, number=2, budget=None, steps=3, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make("icarl", budget or Budget(per_class=3), **options)
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


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("scope", ["all", "new"])
def test_the_loss_starts_at_classification_and_the_teachers_entropy(world, number, scope):
    method, session = opened(world, number, cls_scope=scope)
    method.tagger.eval()
    batch = world.batch(session)
    logits, before = method.tagger(batch.images).logits, method.teacher(batch.images).logits
    first = {"all": 0, "new": 2 * (number - 1)}[scope]
    assert before.shape[1] == session.first == 2 * (number - 1)
    terms = method.losses(batch)
    assert set(terms) == {"classification", "distillation"}
    expected = asymmetric_loss(logits[:, first:], batch.labels[:, first:].clamp(min=0)).mean()
    assert terms["classification"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert terms["distillation"].item() == pytest.approx(entropy(before), rel=1e-5)  # without temperature
    assert gradient_of(terms["distillation"], method) < 1e-6
    world.train(session, 2)
    method.tagger.eval()
    moved = method.losses(batch)["distillation"]
    assert moved.item() > entropy(before)
    assert gradient_of(moved, method) > 1e-2


def test_labels_of_old_columns_matter_in_the_scope_of_all_alone(world):
    for scope, matters in (("all", True), ("new", False)):
        method, session = opened(world, cls_scope=scope)
        method.tagger.eval()
        batch = world.batch(session)
        other = type(batch)(batch.images, batch.labels.clone(), batch.indices)
        other.labels[:, :2] = 1
        ours, theirs = method.losses(batch), method.losses(other)
        assert (ours["classification"].item() != theirs["classification"].item()) == matters
        assert torch.equal(ours["distillation"], theirs["distillation"])


@pytest.mark.parametrize("scope", ["all", "new"])
def test_exemplars_are_distilled_as_well(world, scope):
    method, session = opened(world, budget=Budget(per_class=8), cls_scope=scope)
    full = method.training_set(session)
    assert len(full.indices) > len(session.indices)
    assert full.shown == len(full.indices)  # each once an epoch
    method.tagger.eval()
    everything, own = world.batch(session), world.batch(session, len(session.indices))
    for batch in (everything, own):
        expected = entropy(method.teacher(batch.images).logits)
        assert method.losses(batch)["distillation"].item() == pytest.approx(expected, rel=1e-5)
    assert entropy(method.teacher(everything.images).logits) != entropy(method.teacher(own.images).logits)


@pytest.mark.parametrize("scope", ["all", "new"])
def test_unknown_new_columns_of_exemplars_are_not_overwritten(world, scope):
    method, session = opened(
        world, budget=Budget(per_class=8), cls_scope=scope, missing="ignore", exemplar_labels="stored_only"
    )
    full = method.training_set(session)
    staying = np.arange(len(session.indices), len(full.indices))
    assert len(staying)
    assert (full.labels[staying, 2:] == -1).all()
    assert (full.labels[staying, :2] >= 0).all()
    method.tagger.eval()
    with torch.no_grad():
        method.tagger.heads[1].bias.fill_(2.0)  # an absent label would cost much
    indices = torch.from_numpy(full.indices[staying])
    batch = type(world.batch(session))(world.images[indices], torch.from_numpy(full.labels[staying]), indices)
    term = method.losses(batch)["classification"]
    logits = method.tagger(batch.images).logits.detach()
    expected = {"all": asymmetric_loss(logits[:, :2], batch.labels[:, :2]).mean().item(), "new": 0.0}[scope]
    assert term.item() == pytest.approx(expected, rel=1e-6)
    _, new = torch.autograd.grad(term, [head.weight for head in method.tagger.heads], allow_unused=True)
    assert new is None or (new == 0).all()
    absent = type(batch)(batch.images, batch.labels.clamp(min=0), batch.indices)
    assert method.losses(absent)["classification"].item() > term.item() + 0.1


@torch.no_grad()
def literal_means(world, method):
    """(K, C) from the present model, class by class and exemplar by exemplar."""
    method.tagger.eval()
    means = []
    for column in range(method.buffer.labels.shape[1]):
        points = []
        for index, labels in zip(method.buffer.indices, method.buffer.labels, strict=True):
            if labels[column] == 1:
                for image in (world.images[index], world.images[index].flip(2)):  # mirrored left and right
                    feature = method.tagger(image[None]).pooled[0].double()
                    points.append(feature / feature.norm())
        mean = torch.stack(points).mean(0)
        means.append(mean / mean.norm())
    return torch.stack(means)


def test_scores_are_cosines_to_the_means_of_exemplars(world):
    method = world.make("icarl", Budget(per_class=3), scores="nme")
    world.learn(world.sessions()[0])
    expected = literal_means(world, method)
    assert method.means.shape == (2, 128)
    torch.testing.assert_close(method.means.double(), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        said, scores = method.tagger(world.images), method.predict(world.images)
    features = normalize(said.pooled.double(), dim=1)
    torch.testing.assert_close(2 * scores.double() - 1, features @ expected.T, rtol=1e-4, atol=1e-5)
    assert scores.dtype == torch.float32
    assert ((scores >= 0) & (scores <= 1)).all()
    assert not torch.allclose(scores, torch.sigmoid(said.logits), atol=1e-3)
    # Exemplars are nearer to their class's mean than images are on average.
    for column in range(2):
        held = method.buffer.indices[method.buffer.labels[:, column] == 1]
        assert scores[held, column].mean() > scores[:, column].mean()


def test_means_are_recomputed_with_the_model_of_each_session(world):
    method = world.make("icarl", Budget(per_class=3), scores="nme")
    first, second = world.sessions()[:2]
    world.learn(first)
    before = method.means.clone()
    world.learn(second)
    assert method.means.shape == (4, 128)
    torch.testing.assert_close(method.means.double(), literal_means(world, method), rtol=1e-4, atol=1e-5)
    method.tagger.eval()
    with torch.no_grad():
        assert method.predict(world.images).shape == (24, 4)
    assert not torch.allclose(method.means[:2], before, atol=1e-3)  # of the same exemplars


def test_a_class_without_an_exemplar_ranks_nothing(world):
    method = world.make("icarl", Budget(total=1), scores="nme")
    world.learn(world.sessions()[0])
    assert len(method.buffer) == 1
    lacking = [column for column in range(2) if method.buffer.labels[0, column] != 1]
    assert lacking
    with torch.no_grad():
        assert (method.predict(world.images)[:, lacking] == 0.5).all()
