"""TPCIL: exemplars are the vertices of a graph, and the similarities among them stay as they were."""

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.losses.topology import topology_loss
from mlcil.memory.buffer import Budget
from mlcil.memory.topology import grow_graph


def opened(world, number=2, budget=None, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make("tpcil", budget or Budget(per_class=4), **options)
    for session in sessions[: number - 1]:
        world.learn(session)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def pool_of(method, session):
    """Where the exemplars are in the training set."""
    return np.flatnonzero(np.isin(method.training_set(session).indices, method.buffer.indices))


def features(world, method, indices):
    was_training = method.tagger.training
    with torch.no_grad():
        pooled = method.tagger.eval()(world.images[indices]).pooled
    method.tagger.train(was_training)
    return pooled


def literal_edges(method):
    """Joined exemplars, as ordered pairs of their rows in the training set."""
    pairs = set()
    for chosen, edges in zip(method.buffer.chosen, method.edges, strict=True):
        held = [(chosen[a], chosen[b]) for a, b in edges.tolist() if a < len(chosen) and b < len(chosen)]
        pairs |= {(int(a), int(b)) for a, b in held} | {(int(b), int(a)) for a, b in held}
    return pairs


def joined(method, indices):
    """`_pairs` of a draw as a set of pairs of rows of the training set."""
    mask = method._pairs(method._rows(torch.from_numpy(indices)), torch.device("cpu"))
    assert mask.dtype == torch.bool
    assert torch.equal(mask, mask.T)
    return {(int(indices[a]), int(indices[b])) for a, b in mask.nonzero().tolist()}


def anchors(method):
    return torch.from_numpy(method.anchors)


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("pairs", ["all", "hebbian"])
def test_the_topology_term_starts_at_zero(world, number, pairs):
    method, session = opened(world, number, pairs=pairs)
    method.tagger.eval()
    batch = world.batch(session, 6, draws=[pool_of(method, session)])
    terms = method.losses(batch)
    assert set(terms) == {"classification", "topology"}
    assert terms["topology"].item() == pytest.approx(0, abs=1e-4)
    world.train(session, 3)
    method.tagger.eval()
    assert method.losses(batch)["topology"].item() > 1e-3


@pytest.mark.parametrize("weight", [10.0, 3.0])
def test_the_term_by_hand(world, weight):
    method, session = opened(world, weight=weight)
    world.train(session, 3)
    method.tagger.eval()
    rows = pool_of(method, session)[[3, 0, 4, 1]]
    indices = method.training_set(session).indices[rows]
    kept = {index: row for row, index in enumerate(method.buffer.indices.tolist())}
    similarities = []
    for values in (features(world, method, indices), anchors(method)[[kept[index] for index in indices.tolist()]]):
        unit = values.double().numpy() / np.linalg.norm(values.double().numpy(), axis=1, keepdims=True)
        similarities.append((unit @ unit.T)[np.triu_indices(4, 1)])
    correlation = np.corrcoef(*similarities)[0, 1]
    with torch.no_grad():
        terms = method.losses(world.batch(session, 5, draws=[rows]))
        shown = np.concatenate([np.arange(5), rows])
        full = method.training_set(session)
        logits = method.tagger(world.images[full.indices[shown]]).logits
        expected = method.classification(logits, torch.from_numpy(full.labels[shown]))
    assert correlation < 0.999
    assert terms["topology"].item() == pytest.approx(weight * (1 - correlation), rel=1e-3)
    assert terms["classification"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_hebbian_term_correlates_joined_pairs_alone(world):
    method, session = opened(world, 3, pairs="hebbian", budget=Budget(per_class=5))
    world.train(session, 3)
    method.tagger.eval()
    rows = pool_of(method, session)
    indices = method.training_set(session).indices[rows]
    edges = literal_edges(method)
    mask = torch.tensor([[(a, b) in edges for b in indices.tolist()] for a in indices.tolist()])
    assert 4 <= mask.sum() < mask.numel() - len(mask)
    before = anchors(method)[method._rows(torch.from_numpy(indices))]
    expected = method.config.weight * topology_loss(features(world, method, indices), before, mask)
    with torch.no_grad():
        terms = method.losses(world.batch(session, 4, draws=[rows]))
    assert terms["topology"].item() == pytest.approx(expected.item(), rel=1e-3)
    assert terms["topology"].item() > 1e-3


def test_anchors_are_taken_anew_from_the_model_that_a_session_leaves(world):
    method = world.make("tpcil", Budget(per_class=3))
    former = {}
    for session in world.sessions():
        world.passes.clear()
        world.learn(session)
        assert world.passes == [session.indices.tolist(), method.buffer.indices.tolist()]
        torch.testing.assert_close(anchors(method), features(world, method, method.buffer.indices))
        now = dict(zip(method.buffer.indices.tolist(), anchors(method), strict=True))
        assert set(former) <= set(now)
        assert not any(torch.allclose(former[index], now[index], atol=1e-3) for index in former)
        former = now
    assert len(former) > 6


@pytest.mark.parametrize("budget", [Budget(per_class=3), Budget(total=7), Budget(total=2)])
def test_exemplars_are_vertices_and_within_the_budget(world, monkeypatch, budget):
    graphs = []

    def record(points, count, rng):
        graphs.append((len(points), count, grow_graph(points, count, rng)))
        return graphs[-1][2]

    monkeypatch.setattr("mlcil.methods.tpcil.grow_graph", record)
    method = world.make("tpcil", budget)
    for session in world.sessions():
        world.learn(session, steps=1)
        quotas = budget.quotas(session.stop)
        assert len(graphs) == len(method.edges) == session.stop
        assert len(method.buffer) <= (budget.total or budget.per_class * session.stop)
        assert set(method.buffer.indices.tolist()) == set(np.concatenate(method.buffer.chosen).tolist())
        for column, (images, count, graph) in enumerate(graphs):
            of_class = np.flatnonzero(world.labels[:, column] == 1)
            assert (images, len(graph.members)) == (len(of_class), min(images, count))
            vertices = of_class[graph.members].tolist()
            assert method.buffer.chosen[column].tolist() == vertices[: quotas[column]]
            assert method.edges[column].tolist() == graph.edges.tolist()


def test_hebbian_pairs_are_the_edges_of_the_classes(world):
    method, _ = opened(world, 3, pairs="hebbian")
    every = method.buffer.indices
    edges = literal_edges(method)
    assert edges
    assert joined(method, every) == edges
    assert len(edges) < len(every) * (len(every) - 1)
    assert not any(a == b for a, b in edges)
    some = every[[4, 0, 2]]
    assert joined(method, some) == {(a, b) for a, b in edges if {a, b} <= set(some.tolist())}


def test_a_total_budget_takes_the_edges_of_those_that_left(world):
    method, session = opened(world, 3, Budget(total=8), pairs="hebbian")
    lengths = [len(chosen) for chosen in method.buffer.chosen]
    assert lengths == [2, 2, 2, 2]
    assert any((edges >= 2).any() for edges in method.edges)  # of the four vertices that a class had at first
    every = method.buffer.indices
    assert joined(method, every) == literal_edges(method)
    method.tagger.eval()
    term = method.losses(world.batch(session, draws=[pool_of(method, session)]))["topology"]
    assert term.item() == pytest.approx(0, abs=1e-4)


def test_without_weight_or_draw_there_is_no_topology_term(world):
    method, session = opened(world, weight=0.0)
    assert list(method.losses(world.batch(session, draws=[pool_of(method, session)]))) == ["classification"]
    method, session = opened(world)
    assert list(method.losses(world.batch(session))) == ["classification"]


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_other_exemplars_can_be_anchored_too(world, selection):
    method, session = opened(world, selection=selection)
    method.tagger.eval()
    batch = world.batch(session, draws=[pool_of(method, session)])
    assert method.losses(batch)["topology"].item() == pytest.approx(0, abs=1e-4)
    world.train(session, 3)
    method.tagger.eval()
    assert method.losses(batch)["topology"].item() > 1e-3
    assert method.edges == []


def test_hebbian_pairs_need_the_graph(world):
    with pytest.raises(UserError, match="pairs hebbian needs selection graph, got herding"):
        world.make("tpcil", Budget(per_class=2), pairs="hebbian", selection="herding")
