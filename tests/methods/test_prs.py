"""PRS and OCDM: one pass over a stream, and a memory that chooses by labels alone."""

import math

import numpy as np
import pytest
import torch

from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget
from mlcil.memory.ocdm import balanced
from mlcil.memory.prs import partitioning_reservoir
from mlcil.memory.stream import StreamMemory

NAMES = ["prs", "ocdm"]


def steps_of(session, size=3):
    return [np.arange(start, min(start + size, len(session.indices))) for start in range(0, len(session.indices), size)]


def stream(world, method, session, rng, epoch=0):
    """Draw a whole epoch, step by step; yields the memory after each."""
    training = method.training_set(session)
    for positions in steps_of(session):
        method.draw(training, [positions], epoch, rng)
        yield set(method.buffer.present().tolist())


def snapshot(method):
    stock = method.buffer._stock()
    return stock.indices.tolist(), stock.labels.tolist(), stock.counts.tolist(), stock.seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [Budget(per_class=1), Budget(per_class=3), Budget(total=1), Budget(total=7)])
def test_the_memory_is_within_its_budget_at_every_step(world, name, budget):
    method, rng, shown = world.make(name, budget), np.random.default_rng(0), set()
    for session in world.sessions():
        method.before_session(session, world.infer)
        most = budget.total or budget.per_class * session.stop
        for step, memory in enumerate(stream(world, method, session, rng)):
            shown |= set(session.indices[steps_of(session)[step]].tolist())
            assert len(memory) <= most
            assert memory <= shown
        assert len(memory) == most
        method.after_session(session, world.infer)
        assert set(method.buffer.indices.tolist()) == memory
        assert method.buffer.labels.shape == (most, session.stop)
    assert world.passes == []


@pytest.mark.parametrize("name", NAMES)
def test_only_the_first_epoch_is_a_stream(world, name):
    method, rng = world.make(name, Budget(total=6)), np.random.default_rng(0)
    for session in world.sessions():
        method.before_session(session, world.infer)
        start = snapshot(method)
        list(stream(world, method, session, rng))
        left = snapshot(method)
        assert left != start
        training = method.training_set(session)
        for epoch in (1, 2):
            draws = method.draw(training, steps_of(session), epoch, rng)
            assert snapshot(method) == left
            assert set(training.indices[np.concatenate([rows for (rows,) in draws])].tolist()) <= set(left[0])
        method.after_session(session, world.infer)


def test_a_reservoir_of_another_method_looks_at_every_epoch(world):
    session = world.sessions()[0]
    method, rng = world.make("er", Budget(total=6), selection="reservoir"), np.random.default_rng(0)
    method.before_session(session, world.infer)
    for epoch in range(3):
        method.draw(method.training_set(session), steps_of(session), epoch, rng)
        assert method.buffer._stock().seen == (epoch + 1) * len(session.indices)


@pytest.mark.parametrize(
    ("name", "policy", "rho"),
    [
        ("prs", partitioning_reservoir, -0.03),
        ("prs", partitioning_reservoir, 1.0),
        ("ocdm", balanced, 0.0),
        ("ocdm", balanced, 1.0),
    ],
)
def test_the_memory_is_the_policys(world, name, policy, rho):
    method, rng = world.make(name, Budget(total=6), rho=rho), np.random.default_rng(0)
    session = world.sessions("B4-C2")[0]
    method.before_session(session, world.infer)
    training, other = method.training_set(session), np.random.default_rng(0)
    stock = StreamMemory(np.empty(0, np.int64), np.empty((0, 4), np.int8), np.zeros(4, np.int64), 0)
    for positions in steps_of(session):
        held = np.flatnonzero(np.isin(session.indices, stock.indices))
        (draw,) = method.draw(training, [positions], 0, rng)
        expected = other.choice(held, min(len(positions), len(held)), replace=False) if len(held) else None
        policy(stock, session.indices[positions], session.labels[positions], 6, other, rho=rho)
        assert [rows.tolist() for rows in draw] == ([] if expected is None else [expected.tolist()])
        assert method.buffer.present().tolist() == stock.indices.tolist()
    assert snapshot(method)[2:] == (stock.counts.tolist(), len(session.indices))


@pytest.mark.parametrize("name", NAMES)
def test_labels_stay_as_they_were_when_the_image_passed(world, name):
    method, rng = world.make(name, Budget(total=12)), np.random.default_rng(0)
    assert method.config.exemplar_labels == "stored_only"
    for session in world.sessions():
        method.before_session(session, world.infer)
        assert (method.buffer.labels[:, session.first :] == -1).all()  # nobody annotates the new classes
        list(stream(world, method, session, rng))
        method.after_session(session, world.infer)
    labels, indices = method.buffer.labels, method.buffer.indices
    assert (labels[labels != -1] == world.labels[indices][labels != -1]).all()
    for session in world.sessions():
        passed = np.isin(indices, session.indices)
        assert (labels[~passed, session.first : session.stop] == -1).all()
    assert (labels == -1).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["negative", "ignore"])
def test_cross_entropy_by_hand(world, name, missing):
    method = world.make(name, loss="bce", missing=missing)
    logits, labels = [[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], [[1, 0, -1], [-1, 1, 0]]
    terms = []
    for logit, label in zip(np.ravel(logits), np.ravel(labels), strict=True):
        probability = 1 / (1 + math.exp(-logit))
        counts = label != -1 or missing == "negative"
        terms.append(-math.log(probability if label == 1 else 1 - probability) if counts else 0.0)
    given = torch.tensor(logits, requires_grad=True)
    loss = method.classification(given, torch.tensor(labels, dtype=torch.int8))
    assert loss.item() == pytest.approx(sum(terms) / 6, rel=1e-6)  # a mean over images and classes
    loss.backward()
    assert (given.grad[[0, 1], [2, 0]] == 0).all() == (missing == "ignore")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", ["asymmetric", "bce"])
def test_the_loss_is_over_batch_and_draw(world, name, loss):
    first, second = world.sessions()[:2]
    method, rng = world.make(name, Budget(total=8), loss=loss), np.random.default_rng(0)
    method.before_session(first, world.infer)
    list(stream(world, method, first, rng))
    method.after_session(first, world.infer)
    method.before_session(second, world.infer)
    training = method.training_set(second)
    ((rows,),) = method.draw(training, [np.arange(5)], 0, rng)
    method.tagger.eval()
    batch = world.batch(second, 5, draws=[rows])
    shown = np.concatenate([np.arange(5), rows])
    with torch.no_grad():
        terms, logits = method.losses(batch), method.tagger(world.images[training.indices[shown]]).logits
    labels = torch.from_numpy(training.labels[shown]).clamp(min=0)
    softplus = torch.nn.functional.softplus
    literal = {
        "asymmetric": asymmetric_loss(logits, labels).mean(),
        "bce": torch.where(labels == 1, softplus(-logits), softplus(logits)).mean(),
    }
    assert list(terms) == ["classification"]
    assert terms["classification"].item() == pytest.approx(literal[loss].item(), rel=1e-5)
