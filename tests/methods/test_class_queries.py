"""KRT with a query per class: what is lost, what is frozen, what is remembered."""

import pytest
import torch

from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.losses.cosine import token_loss
from mlcil.losses.reweighting import reweighted_loss
from mlcil.methods.base import Method
from mlcil.methods.class_queries import absent_mixture
from mlcil.methods.pseudo_labels import fill_unknown

SMALL = {"width": 16, "heads": 4, "reweight": True, "token_weight": 0.0}  # as in the papers


def make(world, budget=None, **options):
    return world.make("class_queries", budget, **SMALL | options)


def opened(world, number=2, budget=None, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = make(world, budget, **options)
    for session in sessions[: number - 1]:
        world.learn(session)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def test_old_queries_and_heads_are_frozen_to_the_bit(world):
    method, session = opened(world, 3, layers=2)
    before = {name: value.detach().clone() for name, value in method.tagger.named_parameters()}
    world.train(session, 4)
    now = dict(method.tagger.named_parameters())
    same = {name for name, value in before.items() if torch.equal(value, now[name])}
    heads = {name for name in before if name.startswith(("heads.0.", "heads.1."))}
    assert same == heads | {"attention.queries.0", "attention.queries.1"}


@pytest.mark.parametrize("number", [2, 3])
def test_the_token_loss_compares_the_old_classes_and_starts_at_zero(world, number):
    method, session = opened(world, number, token_weight=20.0, token_scaling="none")
    method.tagger.eval()
    assert method.losses(world.batch(session))["token"].item() == 0
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        now, before = method.tagger(batch.images), method.teacher(batch.images)
        term = method.losses(batch)["token"]
    assert before.embeddings.shape[1:] == (2 * (number - 1), 16)
    expected = token_loss(now.embeddings[:, : 2 * (number - 1)], before.embeddings).mean()
    assert term.item() == pytest.approx(20 / 64 * expected.item(), rel=1e-5)
    assert term.item() > 0


@pytest.mark.parametrize("missing", ["negative", "ignore"])
def test_old_classes_are_weighted_on_restored_labels(world, missing):
    method, session = opened(world, 3, missing=missing)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        terms = method.losses(batch)
        scores = torch.sigmoid(method.teacher(batch.images).logits)
        labels = fill_unknown(batch.labels, method.recall.accepts(scores))
        logits = method.tagger(batch.images).logits
    assert list(terms) == ["classification"]
    assert torch.equal(terms["classification"], reweighted_loss(logits, labels, [2, 2, 2]).mean())
    assert terms["classification"] != Method.classification(method, logits, labels)


@pytest.mark.parametrize("missing", ["negative", "ignore"])
def test_labels_that_stay_unknown_follow_the_missing_policy(world, missing):
    method, session = opened(world, dpl=False, missing=missing)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        logits, loss = method.tagger(batch.images).logits, method.losses(batch)["classification"]
    labels = batch.labels.clamp(min=0) if missing == "negative" else batch.labels
    assert torch.equal(loss, reweighted_loss(logits, labels, [2, 2]).mean())
    assert (batch.labels[:, :2] == -1).any()


def literal_mixture(embeddings, labels, draws):
    """One image (K, d), (K,), (K,): class by class."""
    present, absent = ([k for k, label in enumerate(labels.tolist()) if label == sign] for sign in (1, 0))
    cosines = torch.cosine_similarity(embeddings[:, None], embeddings[None], dim=2)
    alike = {a: max(sum(cosines[a, p].item() for p in present) / max(len(present), 1), 0.0) for a in absent}
    weights = {a: (alike[a] if any(alike.values()) else 1.0) * max(draws[a].item(), 1e-6) for a in absent}
    return sum(weight / sum(weights.values()) * embeddings[a] for a, weight in weights.items())


def mixtures(labels, seed=0):
    """Random embeddings, their mixtures, and the draws that went into them."""
    embeddings = torch.randn(*labels.shape, 6, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    mixed, exists = absent_mixture(embeddings, labels)
    torch.manual_seed(seed)
    return embeddings, mixed, exists, torch.distributions.Beta(0.2, 0.2).sample(labels.shape)


def test_a_mixture_favours_absent_classes_that_are_like_the_present_ones():
    labels = torch.randint(-1, 2, (20, 7), generator=torch.Generator().manual_seed(3))
    labels[:, 0], labels[0] = 0, torch.tensor([0, 0, 0, -1, -1, 0, 0])  # the first image has no present class
    embeddings, mixed, exists, draws = mixtures(labels)
    assert exists.all()
    expected = [literal_mixture(*one) for one in zip(embeddings, labels, draws, strict=True)]
    torch.testing.assert_close(mixed, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_where_no_absent_class_is_like_a_present_one_the_draw_decides():
    embeddings = torch.tensor([[[1.0, 0.0], [-1.0, 0.5], [-1.0, -0.5]]])
    torch.manual_seed(0)
    mixed, _ = absent_mixture(embeddings, torch.tensor([[1, 0, 0]]))
    torch.manual_seed(0)
    draws = torch.distributions.Beta(0.2, 0.2).sample((1, 3))[0, 1:].clamp(min=1e-6)
    torch.testing.assert_close(mixed[0], (draws / draws.sum()) @ embeddings[0, 1:])


def test_an_image_without_an_absent_class_has_no_mixture():
    _, mixed, exists, _ = mixtures(torch.tensor([[1, 1, -1], [1, 0, -1]]))
    assert exists.tolist() == [False, True]
    assert (mixed[0] == 0).all()


@pytest.mark.parametrize("number", [1, 2])
def test_the_unknown_class_is_present_in_mixtures_and_absent_in_present_classes(world, number):
    method, session = opened(world, number, unknown=0.5, dpl=False)
    method.tagger.eval()
    batch = world.batch(session)
    labels = batch.labels.clamp(min=0)
    torch.manual_seed(4)
    terms = method.losses(batch)
    torch.manual_seed(4)
    embeddings = method.tagger(batch.images).embeddings
    mixed, exists = absent_mixture(embeddings, labels)
    norm, rows = method.tagger.unknown.norm, method.tagger.unknown.rows
    total = sum(asymmetric_loss(rows(norm(one)), torch.ones(1, 1)).item() for one in mixed[exists][:, None])
    total += sum(asymmetric_loss(rows(norm(one))[None], torch.zeros(1, 1)).item() for one in embeddings[labels == 1])
    assert terms["unknown"].item() == pytest.approx(0.5 * total / len(labels), rel=1e-4)
    terms["unknown"].backward()
    assert rows.weight.grad.abs().max() > 0
    assert method.tagger.attention.queries[-1].grad.abs().max() > 0


def test_the_output_of_the_unknown_class_starts_anew_each_session_and_scores_nothing(world):
    method, session = opened(world, 1, unknown=1.0)
    world.train(session, 3)
    trained = method.tagger.unknown.rows.weight.detach().clone()
    method.after_session(session, world.infer)
    method.before_session(world.sessions()[1], world.infer)
    assert not torch.equal(method.tagger.unknown.rows.weight, trained)
    assert (method.tagger.unknown.norm.weight == 1).all()
    assert method.predict(world.images).shape[1] == 4
    assert not method.base_is_finetuning
    assert make(world).base_is_finetuning
    assert "unknown" not in dict(make(world, unknown=1.0, ica=False).tagger.named_children())
