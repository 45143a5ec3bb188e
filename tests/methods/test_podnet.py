"""PODNet: the stages' maps, pooled over width and over height, stay near the old model's."""

import math

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.memory.buffer import Budget
from mlcil.methods.base import Task
from mlcil.methods.podnet import PODNet, PODNetConfig
from mlcil.models.backbone import Backbone


def opened(world, number=2, text="B0-C2", **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    torch.manual_seed(0)
    backbone = Backbone("small_conv", 16)
    method = world.method = PODNet(PODNetConfig(**options), backbone, Task(None, 6), Budget())
    sessions = world.sessions(text)
    for session in sessions[: number - 1]:
        world.learn(session)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def literal_maps(tagger, images):
    """The output of each block, one after another."""
    maps = []
    with torch.no_grad():
        for block in tagger.backbone.net.blocks:
            images = block(images)
            maps.append(images.clone().double().numpy())
    tagger.backbone.take_maps()
    return maps


def literal_spatial(now, before):
    """PODNet's distance, image by image and stage by stage; the mean over images, for each stage."""
    stages = []
    for ours, theirs in zip(now, before, strict=True):
        distances = []
        for pair in zip(ours, theirs, strict=True):
            profiles = [np.concatenate([(one**2).sum(2).ravel(), (one**2).sum(1).ravel()]) for one in pair]
            first, second = (one / np.linalg.norm(one) for one in profiles)
            distances.append(np.linalg.norm(first - second))
        stages.append(np.mean(distances))
    return stages


@pytest.mark.parametrize("number", [2, 3])
def test_both_distillations_start_at_zero(world, number):
    method, session = opened(world, number)
    method.tagger.eval()
    terms = method.losses(world.batch(session))
    assert set(terms) == {"classification", "feature", "spatial"}
    assert terms["feature"].item() == terms["spatial"].item() == 0
    world.train(session, 2)
    method.tagger.eval()
    terms = method.losses(world.batch(session))
    assert terms["feature"].item() > 1e-4
    assert terms["spatial"].item() > 1e-4


@pytest.mark.parametrize(("text", "number", "growth"), [("B0-C2", 2, 4 / 2), ("B0-C2", 3, 6 / 2), ("B4-C1", 2, 5)])
@pytest.mark.parametrize("weight", [5.0, 40.0])
def test_the_spatial_term_by_hand(world, text, number, growth, weight):
    method, session = opened(world, number, text, spatial_weight=weight)
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        term = method.losses(batch)["spatial"].item()
    stages = literal_spatial(literal_maps(method.tagger, batch.images), literal_maps(method.teacher, batch.images))
    assert len(stages) == 4
    assert min(stages) > 0
    assert term == pytest.approx(weight / 64 * math.sqrt(growth) * np.mean(stages), rel=1e-3)


def test_the_feature_term_is_that_of_the_kd_baseline(world):
    method, session = opened(world, feature_weight=60.0)
    world.train(session, 2)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        now, before = method.tagger(batch.images).pooled, method.teacher(batch.images).pooled
        distance = 1 - torch.cosine_similarity(now.double(), before.double()).mean().item()
        assert method.losses(batch)["feature"].item() == pytest.approx(60 / 64 * math.sqrt(2) * distance, rel=1e-3)


def test_teacher_and_student_keep_their_own_maps(world):
    method, session = opened(world)
    images = world.batch(session).images
    method.tagger.eval()
    method.tagger.backbone(images)
    assert method.teacher.backbone.take_maps() == ()
    assert len(method.tagger.backbone.take_maps()) == 4
    with torch.no_grad():
        method.teacher.backbone(images)
        assert method.tagger.backbone.take_maps() == ()
        assert len(method.teacher.backbone.take_maps()) == 4
        before = method.teacher(images).stages
        for parameter in method.tagger.backbone.parameters():
            parameter.mul_(-0.5)
        now, after = method.tagger(images).stages, method.teacher(images).stages
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(before, now, strict=True))


def test_maps_do_not_pile_up(world):
    method, session = opened(world)
    for _ in range(3):
        method.losses(world.batch(session))
        assert method.tagger.backbone.take_maps() == method.teacher.backbone.take_maps() == ()
        assert len(method.tagger(world.images).stages) == 4


def test_a_net_without_stages_is_refused_in_one_line():
    backbone = Backbone("test_vit", 32)
    backbone.net.feature_info = []
    with pytest.raises(UserError, match=r"^backbone 'test_vit' does not say what its stages are") as error:
        PODNet(PODNetConfig(), backbone, Task(None, 6), Budget())
    assert len(str(error.value).splitlines()) == 1
