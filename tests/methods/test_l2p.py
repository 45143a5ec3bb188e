"""L2P: the transformer never changes, old heads learn from exemplars alone, and keys from new images alone."""

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget
from mlcil.methods.base import Task
from mlcil.methods.l2p import L2P, L2PConfig
from mlcil.models.backbone import Backbone
from mlcil.training.config import make_config
from mlcil.training.optimiser import make_optimiser

SHAPE = {"pool": 5, "length": 2, "chosen": 2}
SOME = Budget(per_class=3)


@pytest.fixture
def world(world):
    world.images = torch.nn.functional.interpolate(world.images, 32)  # as the transformer wants them
    return world


def opened(world, number=2, budget=None, **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions()
    method = world.make("l2p", budget, **SHAPE, **options)
    for session in sessions[: number - 1]:
        world.learn(session, steps=2)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def copied(tensors):
    return {name: value.detach().clone() for name, value in tensors.items()}


def changed(method, before):
    return {name for name, value in method.tagger.state_dict().items() if not torch.equal(value, before[name])}


def exemplars(method, session):
    """Where the exemplars that are not the session's own are in the training set."""
    return np.arange(method.training_set(session).shown, len(method.training_set(session).indices))


def step(method, batch):
    method.tagger.train()
    optimiser = make_optimiser(method.tagger, 1e-2, 1e-4)
    sum(method.losses(batch).values()).backward()
    optimiser.step()


def test_without_exemplars_old_heads_stay_to_the_bit(world):
    method, session = opened(world, 3)
    before = copied(method.tagger.state_dict())
    method.tagger.zero_grad()
    world.train(session, 3)
    assert changed(method, before) == {"keys", "prompts", "heads.2.weight", "heads.2.bias"}
    assert all(one.grad is None for head in method.tagger.heads[:2] for one in head.parameters())


def test_unknown_columns_are_ignored(world):
    method, session = opened(world)
    method.tagger.eval()
    batch = world.batch(session)
    assert (batch.labels[:, :2] == -1).all()
    with torch.no_grad():
        loss = method.losses(batch)["classification"]
        logits = method.tagger(batch.images).logits
        expected = asymmetric_loss(logits[:, 2:], batch.labels[:, 2:]).mean()
        method.tagger.heads[0].bias += 5
        assert method.losses(batch)["classification"] == loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_with_exemplars_replay_teaches_old_heads(world):
    method, session = opened(world, budget=SOME)
    rows = exemplars(method, session)
    assert len(rows)
    before = copied(method.tagger.state_dict())
    step(method, world.batch(session, 6, draws=[rows]))
    assert changed(method, before) == {
        *("keys", "prompts"),
        *(f"heads.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")),
    }
    gradient = method.tagger.heads[0].weight.grad
    assert gradient.abs().max() > 0


def test_the_replay_loss_is_over_all_that_is_known(world):
    method, session = opened(world, budget=SOME, exemplar_labels="stored_only")
    method.tagger.eval()
    full, rows = method.training_set(session), exemplars(method, session)
    assert (full.labels[rows, :2] >= 0).all()
    assert (full.labels[rows, 2:] == -1).all()
    fresh = np.flatnonzero((full.labels[: full.shown, :2] == -1).all(axis=1))[:1]  # an image that does not return
    shown = np.concatenate([np.arange(3), rows])
    with torch.no_grad():
        logits = method.tagger(world.images[full.indices[shown]]).logits
        loss = method.losses(world.batch(session, 3, draws=[rows]))["classification"]
    labels = torch.from_numpy(full.labels[shown])
    by_image = [
        asymmetric_loss(one[known >= 0][None], known[known >= 0][None]).item()
        for one, known in zip(logits, labels, strict=True)
    ]
    assert len(fresh)
    assert loss.item() == pytest.approx(sum(by_image) / len(shown), rel=1e-4)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_pull_comes_from_new_images_alone(world, weight):
    method, session = opened(world, budget=SOME, pull_weight=weight, batchwise=False)
    rows = exemplars(method, session)
    gradients, pulls = [], []
    for draws in ([rows], []):
        method.tagger.zero_grad()
        terms = method.losses(world.batch(session, 6, draws=draws))
        assert set(terms) == {"classification", "pull"}
        sum(terms.values()).backward()
        gradients.append(method.tagger.keys.grad.clone())
        pulls.append(terms["pull"].item())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)
    with torch.no_grad():
        match = method.tagger(world.batch(session, 6).images).match
        exemplar_match = method.tagger(world.images[method.training_set(session).indices[rows]]).match
    assert pulls == pytest.approx([-weight * match.mean().item()] * 2, rel=1e-4)
    assert match.mean().item() != pytest.approx(torch.cat([match, exemplar_match]).mean().item(), rel=1e-4)


def test_the_recipe_arrives_and_can_be_changed():
    settings = make_config({"method": "l2p"}).settings
    assert settings.backbone == "vit_base_patch16_224.augreg_in21k"
    assert (settings.weights, settings.schedule, settings.epochs) == ("pretrained", "constant", 5)
    assert (settings.base_lr, settings.lr, settings.weight_decay, settings.clip_norm) == (0.0075, 0.0075, 0.0, 64.0)
    given = make_config({"method": "l2p", "backbone": "test_vit", "weights": None}, {"epochs": "20"}).settings
    assert (given.backbone, given.weights, given.epochs, given.lr) == ("test_vit", None, 20, 0.0075)


def test_a_convolutional_backbone_is_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"^backbone 'small_conv' cannot take prompts: its net is a SmallConvNet"
    ) as error:
        L2P(L2PConfig(), Backbone("small_conv", 32), Task(None, 6), Budget())
    assert len(str(error.value).splitlines()) == 1
