"""KRT on a handful of random images: what is lost, what is frozen, what is remembered."""

import math

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.losses.cosine import cosine_distance, token_loss
from mlcil.memory.buffer import Budget
from mlcil.methods.pseudo_labels import fill_unknown, find_threshold, rate_per_image


def opened(world, number=2, budget=None, text="B0-C2", steps=3, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions(text)
    method = world.make("krt", budget, **options)
    for session in sessions[: number - 1]:
        world.learn(session, steps)
    world.passes.clear()
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def copy_of(parameters):
    return {name: value.detach().clone() for name, value in parameters}


@pytest.mark.parametrize("attend_to_kt", [True, False])
@pytest.mark.parametrize("number", [2, 3])
def test_the_token_loss_starts_at_zero(world, attend_to_kt, number):
    method, session = opened(world, number, attend_to_kt=attend_to_kt, kd=True)
    method.tagger.eval()
    terms = method.losses(world.batch(session))
    assert terms["token"].item() == 0
    assert terms["kd"].item() == 0
    world.train(session, 2)
    method.tagger.eval()
    terms = method.losses(world.batch(session))
    assert terms["token"].item() > 0
    assert terms["kd"].item() > 0


def test_old_tokens_and_heads_are_frozen_to_the_bit(world):
    method, session = opened(world, 3)
    before = copy_of(method.tagger.named_parameters())
    teacher = copy_of(method.teacher.state_dict().items())
    world.train(session, 4)
    changed = {
        name for name, value in method.tagger.named_parameters() if not torch.equal(value.detach(), before[name])
    }
    old = {"attention.kr.0", "attention.kr.1"}
    old |= {name for name in before if name.startswith(("heads.0.", "heads.1."))}
    assert len(old) == 10
    assert changed == set(before) - old
    assert {"attention.kt", "attention.kr.2", "heads.2.1.weight", "backbone.net.blocks.0.0.weight"} <= changed
    for name, value in method.teacher.state_dict().items():
        assert torch.equal(value, teacher[name])
    assert not method.teacher.training


def test_online_labels_follow_the_batch(world):
    method, session = opened(world, labels_per_image=3.0, ica=False)
    method.tagger.eval()
    batch = world.batch(session)
    noisy = type(batch)(batch.images + 0.5 * torch.ones_like(batch.images), batch.labels, batch.indices)
    for one in (batch, noisy):
        with torch.no_grad():
            scores = torch.sigmoid(method.teacher(one.images).logits)
            logits = method.tagger(one.images).logits
        expected = method.classification(logits, fill_unknown(one.labels, scores > method.threshold))
        assert torch.equal(method.losses(one)["classification"].detach(), expected)
    assert (batch.labels[:, :2] == -1).all()  # the stored labels stay unknown


def test_fixed_labels_are_set_once(world):
    method, session = opened(world, labels_per_image=3.0, ica=False, pseudo="fixed")
    full = method.training_set(session)
    with torch.no_grad():
        scores = torch.sigmoid(method.teacher(world.images[session.indices]).logits)
    assert full.labels.dtype == np.int8
    assert np.array_equal(full.labels[:, :2], (scores > method.threshold).numpy())
    assert np.array_equal(full.labels[:, 2:], session.labels[:, 2:])
    assert 0 < full.labels[:, :2].sum() < full.labels[:, :2].size
    batch = world.batch(session)
    other = type(batch)(batch.images, batch.labels.clone(), batch.indices)
    method.threshold = 0.0  # of no more consequence
    assert torch.equal(method.losses(batch)["classification"], method.losses(other)["classification"])
    method.tagger.eval()
    expected = method.classification(method.tagger(batch.images).logits, batch.labels)
    assert torch.equal(method.losses(batch)["classification"], expected)
    method.after_session(session, world.infer)
    method.before_session(world.sessions()[2], world.infer)
    assert method.training_set(world.sessions()[2]).labels.shape[1] == 6


@pytest.mark.parametrize("dpl", [True, False])
@pytest.mark.parametrize("ica", [True, False])
@pytest.mark.parametrize("kd", [True, False])
def test_each_part_can_be_left_out(world, dpl, ica, kd):
    method, session = opened(world, dpl=dpl, ica=ica, kd=kd)
    terms = {"classification"} | ({"token"} if ica else set()) | ({"kd"} if kd else set())
    assert set(method.losses(world.batch(session))) == terms
    assert (method.tagger.attention is not None) == ica
    assert bool(method.search) == dpl
    assert len(world.passes) == dpl
    assert ("threshold" in method.notes()) == dpl
    frozen = {name for name, parameter in method.tagger.named_parameters() if not parameter.requires_grad}
    assert bool(frozen) == ica
    method.after_session(session, world.infer)
    assert method.teacher is None


@pytest.mark.parametrize("pseudo", ["online", "fixed"])
def test_the_threshold_costs_one_pass(world, pseudo):
    method, session = opened(world, 3, pseudo=pseudo)
    assert world.passes == [session.indices.tolist()]
    world.train(session, 1)
    assert len(world.passes) == 1
    with torch.no_grad():
        scores = torch.sigmoid(method.teacher(world.images[session.indices]).logits).numpy()
    assert method.notes()["pseudo_labels_per_image"] == pytest.approx((scores > method.threshold).sum(1).mean())
    assert method.notes()["threshold"] == method.threshold


@pytest.mark.parametrize("carry", [True, False])
def test_the_next_search_starts_where_the_last_one_ended(world, monkeypatch, carry):
    starts = []

    def record(scores, target, start):
        starts.append(start)
        return find_threshold(scores, target, start)

    monkeypatch.setattr("mlcil.methods.krt.find_threshold", record)
    method, session = opened(world, 2, carry_threshold=carry, threshold=0.7, labels_per_image=3.0)
    found = method.threshold
    assert found != 0.7
    method.after_session(session, world.infer)
    method.before_session(world.sessions()[2], world.infer)
    assert starts == [0.7, found if carry else 0.7]


@pytest.mark.parametrize(
    ("kind", "given", "mu"),
    [("coco", None, 2.9), ("voc", None, 1.4), ("table", 2.0, 2.0), ("coco", 1.0, 1.0)],
)
@pytest.mark.parametrize("number", [2, 3])
def test_the_target(world, kind, given, mu, number):
    method, _ = opened(world, number, kind=kind, labels_per_image=given, steps=1)
    assert method.notes()["target"] == pytest.approx(mu * 2 * (number - 1) / 6)


def test_the_target_is_estimated_elsewhere(world):
    first, second, _ = world.sessions()
    rates = [rate_per_image(first.labels), rate_per_image(second.labels[:, 2:])]
    method, _ = opened(world, 3, steps=1)
    assert method.rates[:2] == rates
    assert method.notes()["target"] == pytest.approx(sum(rates))
    assert 0 < method.notes()["target"] < 4


def test_sessions_of_one_class_leave_the_threshold(world):
    method, _ = opened(world, 2, text="B0-C1", threshold=0.7, steps=1)
    assert not method.search
    assert method.threshold == 0.7
    assert method.losses(world.batch(world.sessions("B0-C1")[1]))["token"].item() >= 0


@pytest.mark.parametrize(("scaling", "factor"), [("sqrt", math.sqrt(6 / 2)), ("none", 1.0)])
def test_loss_weights_are_in_the_papers_units(world, scaling, factor):
    method, session = opened(world, 3, token_weight=300.0, kd_weight=180.0, kd=True, token_scaling=scaling)
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        terms, now, before = method.losses(batch), method.tagger(batch.images), method.teacher(batch.images)
    token, kd = token_loss(now.embeddings, before.embeddings), cosine_distance(now.pooled, before.pooled)
    assert terms["token"].item() == pytest.approx(300 * factor / 64 * token.mean().item(), rel=1e-5)
    assert terms["kd"].item() == pytest.approx(180 * factor / 64 * kd.mean().item(), rel=1e-5)


def test_known_labels_of_exemplars_beat_pseudo_labels(world):
    method, session = opened(world, 2, Budget(per_class=3), pseudo="fixed", labels_per_image=3.0)
    full = method.training_set(session)
    for index in method.buffer.indices.tolist():
        row = full.indices.tolist().index(index)
        assert full.labels[row].tolist() == world.labels[index, :4].tolist()
    assert (full.labels >= 0).all()
    assert method.notes()["exemplars"] == len(method.buffer)


def test_the_threshold_is_measured_on_the_sessions_images_alone(world, monkeypatch):
    measured = []

    def record(scores, target, start):
        measured.append(len(scores))
        return find_threshold(scores, target, start)

    monkeypatch.setattr("mlcil.methods.krt.find_threshold", record)
    method, session = opened(world, 2, Budget(per_class=8))
    assert len(method.training_set(session).indices) > len(session.indices)
    assert measured == [len(session.indices)]


def linear_layer(head):
    return next(module for module in head.modules() if isinstance(module, torch.nn.Linear))


@pytest.mark.parametrize(("first_head", "expected"), [("default", 1 / math.sqrt(3 * 384)), ("normal", 0.01)])
@pytest.mark.parametrize("name", ["krt", "class_queries"])
def test_the_authors_start_the_first_head_alone_with_small_weights(world, name, first_head, expected):
    method = world.make(name, width=384, heads=8, first_head=first_head)
    for session in world.sessions("B4-C2"):
        world.learn(session, steps=0)
    first, later = map(linear_layer, method.tagger.heads)
    assert first.weight.std().item() == pytest.approx(expected, rel=0.1)
    assert later.weight.std().item() == pytest.approx(1 / math.sqrt(3 * 384), rel=0.1)
    assert 0 < first.bias.abs().max() <= 1 / math.sqrt(384)


def test_width_must_be_a_multiple_of_heads(world):
    with pytest.raises(UserError, match=r"^krt: width 20 is not a multiple of heads 8$"):
        world.make("krt", width=20, heads=8)


def test_recall_by_class_learns_from_true_labels_then_from_accepted_ones(world):
    method, session = opened(world, 1, pseudo_label_rule="per_class", steps=2)
    world.train(session, 2)
    method.after_session(session, world.infer)
    with torch.no_grad():
        scores = method.tagger.eval()(world.images[session.indices]).logits.sigmoid()
    for column in range(2):
        own = scores[torch.from_numpy(session.labels[:, column] == 1), column]
        assert method.recall.confidence[column].item() == pytest.approx(own.mean().item(), rel=1e-5)
    later = world.sessions()[1]
    known = method.recall
    method.before_session(later, world.infer)
    accepted = torch.from_numpy(method.pseudo_labels())
    with torch.no_grad():
        old = method.teacher(world.images[later.indices]).logits.sigmoid()
    assert torch.equal(accepted, known.accepts(old))
    assert accepted.any()
    assert "target" not in method.notes()
    world.train(later, 2)
    method.after_session(later, world.infer)
    with torch.no_grad():
        now = method.tagger.eval()(world.images[later.indices]).logits.sigmoid()
    seen = accepted.any(0)
    for column in torch.arange(2)[seen]:
        expected = now[accepted[:, column], column].mean().item()
        assert method.recall.confidence[column].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(method.recall.confidence[:2][~seen], known.confidence[~seen])
    assert method.notes()["mean_threshold"] == pytest.approx(method.recall.confidence.mean().item(), rel=1e-5)


def test_online_labels_of_recall_by_class_follow_each_class(world):
    method, session = opened(world, pseudo_label_rule="per_class", ica=False, entropy_gate=False)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        scores = torch.sigmoid(method.teacher(batch.images).logits)
        expected = fill_unknown(batch.labels, scores >= method.recall.confidence)
        logits = method.tagger(batch.images).logits
    assert torch.equal(method.losses(batch)["classification"].detach(), method.classification(logits, expected))
