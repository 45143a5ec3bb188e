"""Online EWC: a penalty of nothing at first, Fisher information as defined, and a running sum of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mlcil.data.loading import Batch
from mlcil.data.protocol import Session
from mlcil.models.tagger import Output


def opened(world, number=2, steps=3, name="oewc", **options):
    """A method that has learned `number` - 1 sessions and opened the next, with heads that depend on nothing else."""
    sessions = world.sessions()
    method = world.make(name, **options)
    for session in sessions[: number - 1]:
        torch.manual_seed(session.number)
        world.learn(session, steps)
    torch.manual_seed(number)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def copy_of(tensors):
    return {name: value.detach().clone() for name, value in tensors.items()}


class LinearTagger(nn.Module):
    """One head of logistic regressions on the pixels."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.head = nn.Linear(inputs, classes)
        self.sizes = [classes]

    def forward(self, images):
        points = images.flatten(1)
        return Output(self.head(points), points, points.new_zeros(len(points), 0, 0))


def linear_world(world, repeats=1, classes=1, **options):
    """A method on logistic regressions, with 20 points (each many times over) as the session's images."""
    rng = np.random.default_rng(1)
    points = torch.from_numpy(rng.normal(size=(20, 3)).astype(np.float32)).repeat(repeats, 1)
    labels = np.tile((rng.random((20, classes)) < 0.5).astype(np.int8), (repeats, 1))
    count = len(points)
    session = Session(1, 0, classes, tuple("abcdef"[:classes]), np.arange(count), labels, labels)
    method = world.make("oewc", fisher_images=count, **options)
    torch.manual_seed(4)
    method.tagger = LinearTagger(3, classes)

    def total(function, chosen):
        rows = torch.from_numpy(chosen.indices)
        return function(Batch(points[rows, :, None, None], torch.from_numpy(chosen.labels), rows))

    with torch.no_grad():
        chances = torch.sigmoid(method.tagger.head(points))
    return method, session, SimpleNamespace(total=total), points, chances


@pytest.mark.parametrize("classes", [1, 3])
def test_empirical_information_is_the_mean_of_each_images_squared_gradient(world, classes):
    method, session, infer, points, chances = linear_world(world, classes=classes)
    method.after_session(session, infer)
    errors = chances - torch.from_numpy(session.labels)  # (N, K), of the log-likelihood in the logits
    weight = torch.einsum("nk,nc->kc", errors.square(), points.square()) / len(points)
    torch.testing.assert_close(method.fisher["head.weight"], weight)
    torch.testing.assert_close(method.fisher["head.bias"], errors.square().mean(0))
    squared_mean = (errors.T @ points / len(points)).square()
    assert (method.fisher["head.weight"] > 3 * squared_mean).all()


def test_true_information_of_a_logistic_regression_is_the_mean_of_p_times_q_times_x_squared(world):
    method, session, infer, points, chances = linear_world(world, repeats=250, fisher="true")
    method.after_session(session, infer)
    variance = chances * (1 - chances)  # (N, 1)
    expected = (variance * points.square()).mean(0, keepdim=True)
    torch.testing.assert_close(method.fisher["head.weight"], expected, rtol=0.05, atol=0)
    torch.testing.assert_close(method.fisher["head.bias"], variance.mean(0), rtol=0.05, atol=0)
    errors = chances - torch.from_numpy(session.labels)
    empirical = (errors.square() * points.square()).mean(0, keepdim=True)
    assert ((empirical / expected - 1).abs() > 0.1).any()  # the labels given would not have passed


def test_unknown_labels_carry_no_information(world):
    method, session, infer, points, chances = linear_world(world, classes=2)
    session.labels[::2, 1] = -1
    method.after_session(session, infer)
    errors = chances - torch.from_numpy(session.labels).clamp(min=0)
    errors[::2, 1] = 0
    torch.testing.assert_close(method.fisher["head.bias"], errors.square().mean(0))
    assert len(points) == len(session.indices)


@pytest.mark.parametrize("number", [2, 3])
def test_the_penalty_starts_at_zero_with_no_gradient(world, number):
    method, session = opened(world, number)
    parameters = list(method.tagger.parameters())
    term = method.losses(world.batch(session))["penalty"]
    assert term.item() == 0
    gradients = torch.autograd.grad(term, parameters, allow_unused=True)
    assert all(one is None or (one == 0).all() for one in gradients)
    world.train(session, 1)
    term = method.losses(world.batch(session))["penalty"]
    assert term.item() > 0
    assert any(one is not None and one.any() for one in torch.autograd.grad(term, parameters, allow_unused=True))


def test_the_penalty_is_weighted_and_has_no_half(world):
    values = {}
    for weight in (1.0, 10.0):
        method, session = opened(world, weight=weight)
        with torch.no_grad():
            for parameter in method.tagger.parameters():
                parameter.add_(0.1)
        values[weight] = method.losses(world.batch(session))["penalty"].item()
    information = sum(one.double().sum().item() for one in method.fisher.values())
    assert information > 0
    assert values[1.0] == pytest.approx(0.01 * information, rel=1e-4)
    assert values[10.0] == pytest.approx(10 * values[1.0], rel=1e-6)


def test_new_heads_are_free_until_their_session_ends(world):
    method, session = opened(world)
    assert not [name for name in method.fisher if name.startswith("heads.1.")]
    with torch.no_grad():
        for head in method.tagger.heads:
            head.weight.add_(1.0)
    heads = [head.weight for head in method.tagger.heads]
    old, new = torch.autograd.grad(method.losses(world.batch(session))["penalty"], heads, allow_unused=True)
    assert old.abs().max() > 0
    assert new is None
    method.after_session(session, world.infer)
    assert method.fisher["heads.1.weight"].shape == (2, 128)
    assert method.fisher["heads.1.weight"].max() > 0
    assert method.losses(world.batch(session))["penalty"].item() == 0  # held to where they are now


def test_only_parameters_are_held(world):
    method, _ = opened(world)
    held = {name for name, _ in method.tagger.named_parameters() if not name.startswith("heads.1.")}
    assert set(method.fisher) == set(method.anchors) == held
    assert not any("running" in name for name in held)
    assert all((one >= 0).all() for one in method.fisher.values())


@pytest.mark.parametrize(("gamma", "factor"), [(1.0, 2.0), (0.5, 1.5), (0.0, 1.0)])
def test_consolidating_twice_on_the_same_data(world, gamma, factor):
    first = world.sessions()[0]
    method = world.make("oewc", gamma=gamma)
    world.learn(first)
    once = copy_of(method.fisher)
    method.after_session(first, world.infer)
    assert any(one.max() > 0 for one in once.values())
    for name, value in method.fisher.items():
        torch.testing.assert_close(value, factor * once[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_session_informs_about_its_own_classes_alone(world, gamma):
    method, session = opened(world, gamma=gamma)
    once = copy_of(method.fisher)
    world.train(session, 2)
    method.after_session(session, world.infer)
    assert torch.equal(method.fisher["heads.0.weight"], gamma * once["heads.0.weight"])
    name = "backbone.net.blocks.0.0.weight"
    assert (method.fisher[name] > gamma * once[name]).any()


def test_anchors_are_the_parameters_at_the_end_of_the_session_and_stay_there(world):
    method, session = opened(world)
    parameters = dict(method.tagger.named_parameters())
    assert all(torch.equal(value, parameters[name]) for name, value in method.anchors.items())
    anchors = copy_of(method.anchors)
    world.train(session, 2)
    assert all(torch.equal(value, anchors[name]) for name, value in method.anchors.items())
    assert not torch.equal(method.anchors["heads.0.weight"], parameters["heads.0.weight"])


@pytest.mark.parametrize("most", [1, 5, 2000])
def test_information_comes_from_a_subset_of_the_sessions_images(world, most):
    first = world.sessions()[0]
    method = world.make("oewc", fisher_images=most)
    world.learn(first, steps=1)
    (rows,) = world.passes
    assert len(rows) == len(set(rows)) == min(most, len(first.indices))
    assert set(rows) <= set(first.indices.tolist())
    assert method.teacher is None
