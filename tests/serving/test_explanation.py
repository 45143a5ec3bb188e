"""Maps that are known in advance, and tags as the model gives them."""

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, TaggerNet
from mlcil.serving.explanation import class_activation, explain, relevance, window_evidence

from .made_runs import CLASSES, SIZES, a_run, picture


@pytest.fixture(scope="module")
def krt():
    return a_run("krt")


def planted():
    """A tagger of two sessions; class 0 is dimension 0 of the token, class 1 its dimension 1, and so on."""
    tagger = TaggerNet(Backbone("small_conv", 32), AttentionShape(width=8, heads=2, attend_to_query=True)).eval()
    tagger.grow(2)
    tagger.grow(1)
    block = tagger.attention
    with torch.no_grad():
        for parameter in (*block.parameters(), *tagger.heads.parameters()):
            parameter.zero_()
        for norm in (block.attention.norm, tagger.heads[0][0], tagger.heads[1][0]):
            norm.weight.fill_(1)
        block.projection.weight[:8, :8, 0, 0] = torch.eye(8)
        block.attention.value.weight.copy_(torch.eye(8))
        block.attention.project.weight.copy_(torch.eye(8))
        tagger.heads[0][1].weight[[0, 1], [0, 1]] = 1.0
        tagger.heads[1][1].weight[0, 0] = -1.0
    return tagger


def test_the_patch_that_carries_a_class_has_the_peak_of_its_map():
    features = torch.zeros(1, 128, 4, 4)
    features[0, 0, 0, 1] = 5.0  # class 0 is at row 0, column 1
    features[0, 1, 2, 3] = 5.0
    maps = relevance(planted(), features, [0, 1, 2])
    assert maps.shape == (3, 4, 4)
    assert [divmod(int(one.argmax()), 4) for one in maps[:2]] == [(0, 1), (2, 3)]
    assert (maps >= 0).all()
    assert maps[2, 0, 1] == 0  # what speaks against a class is not shown


def test_relevance_is_the_weight_times_the_derivative_of_the_logit():
    tagger = a_run("krt").method.tagger.double()
    features = torch.randn(1, 128, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weights, column, session = tagger.attention.weights(features), 4, 1

    def logit(given):
        return tagger.heads[session](tagger.attention.embed(features, given)[session])[0, column - SIZES[0]].item()

    expected, step = torch.zeros(16, dtype=torch.float64), 1e-5
    for head in range(4):
        for patch in range(16):
            above, below = weights.clone(), weights.clone()
            above[session, 0, head, patch] += step
            below[session, 0, head, patch] -= step
            slope = (logit(above) - logit(below)) / (2 * step)
            expected[patch] += max(0.0, slope * weights[session, 0, head, patch].item())
    assert expected.max() > 1e-4
    torch.testing.assert_close(relevance(tagger, features, [column])[0].flatten(), expected, rtol=1e-4, atol=1e-8)


def test_the_mean_of_a_class_activation_and_the_bias_are_the_logit():
    tagger = a_run("ft").method.tagger
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        features, logits = tagger.backbone(images), tagger(images).logits
    bias = torch.cat([head.bias for head in tagger.heads])
    maps = class_activation(tagger, features)
    assert maps.shape == (3, 7, 4, 4)
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + bias, logits, rtol=1e-4, atol=1e-4)


def test_a_map_shows_what_exceeds_the_median_of_the_evidence():
    run = a_run("ft")
    with torch.no_grad():
        maps = class_activation(run.method.tagger, run.method.tagger.backbone(run.prepare(picture()[None])))[0]
    for tag in explain(run, picture(), threshold=0.0, most=7).tags:
        own = maps[CLASSES.index(tag.name)]
        np.testing.assert_allclose(tag.map, (own - own.median()).clamp(min=0), atol=1e-5)
        assert tag.map.max() > 0


def test_tags_come_best_first_with_the_session_of_each(krt):
    tags = explain(krt, picture(), threshold=0.0, most=7).tags
    assert sorted(tag.name for tag in tags) == list(CLASSES)
    assert [tag.score for tag in tags] == sorted((tag.score for tag in tags), reverse=True)
    assert {tag.name: tag.session for tag in tags} == dict(zip(CLASSES, (1, 1, 1, 2, 2, 3, 3), strict=True))


def test_the_threshold_leaves_at_least_the_best_tag_and_most_limits_them(krt):
    every = explain(krt, picture(), threshold=0.0, most=7).tags
    between = (every[2].score + every[3].score) / 2
    assert [tag.name for tag in explain(krt, picture(), between, 7).tags] == [tag.name for tag in every[:3]]
    assert [tag.name for tag in explain(krt, picture(), 1.0, 7).tags] == [every[0].name]
    assert [tag.name for tag in explain(krt, picture(), 0.0, 2).tags] == [tag.name for tag in every[:2]]


def test_a_model_that_scores_otherwise_has_no_maps():
    class Another(TaggerNet):
        def forward(self, images):
            return super().forward(images.flip(3))

    run = a_run("ft")
    run.method.tagger = Another(Backbone("small_conv", 32))
    with pytest.raises(UserError, match=r"run run: method ft has no maps"):
        explain(run, picture())
    by_means = a_run("ft")
    by_means.method.means = torch.zeros(7, 128)
    with pytest.raises(UserError, match="by class means"):
        explain(by_means, picture())


def test_without_a_tag_the_one_nearest_to_its_threshold_is_shown(krt, monkeypatch):
    every = explain(krt, picture(), threshold=0.0, most=7).tags
    assert all(tag.is_present and tag.threshold == 0 for tag in every)
    thresholds = np.ones(7)
    thresholds[CLASSES.index(every[4].name)] = every[4].score + 0.001
    monkeypatch.setattr(krt.method, "thresholds", lambda: thresholds)
    (nearest,) = explain(krt, picture()).tags
    assert (nearest.name, nearest.is_present) == (every[4].name, False)
    assert nearest.threshold == pytest.approx(every[4].score + 0.001)
    thresholds[CLASSES.index(every[4].name)] = every[4].score - 0.001
    assert [(tag.name, tag.is_present) for tag in explain(krt, picture()).tags] == [(every[4].name, True)]


@pytest.mark.parametrize(("method", "channels"), [("analytic", 128), ("adaptive", 256)])
def test_window_evidence_is_the_score_of_the_window_around_each_place(method, channels):
    tagger = a_run(method, options={"expansion": 20}).method.tagger
    features = torch.randn(1, channels, 8, 8, generator=torch.Generator().manual_seed(5))
    evidence = window_evidence(tagger, features, tagger.weights)
    assert evidence.shape == (1, 7, 8, 8)
    for (row, column), window in {
        (3, 4): features[0, :, 2:5, 3:6],  # 3 of 8 is nearest to 0.4 among the odd ones
        (0, 7): features[0, :, :2, 6:],  # cut at the corner
    }.items():
        pooled = window.mean((1, 2))
        expected = tagger.expand(pooled.sign() * pooled.abs() ** tagger.power) @ tagger.weights
        torch.testing.assert_close(evidence[0, :, row, column], expected, rtol=1e-3, atol=1e-3)


def test_evidence_belongs_to_the_labels_that_are_left():
    tagger = a_run("analytic", options={"expansion": 20}).method.tagger
    features = torch.randn(1, 128, 8, 8, generator=torch.Generator().manual_seed(5))
    before = window_evidence(tagger, features, tagger.weights[:, tagger.columns])
    tagger.keep([4, 2])
    left = window_evidence(tagger, features, tagger.weights[:, tagger.columns])
    torch.testing.assert_close(left, before[:, [4, 2]])  # a product of another width rounds differently on some CPUs


def test_a_closed_form_head_looks_at_the_quarters_of_the_photo_too():
    run, photo = a_run("analytic"), picture(0, (96, 64, 3))
    explanation = explain(run, picture(1), threshold=0.0, photo=photo)
    assert explanation.pixels is photo
    assert all(tag.map.shape == (8, 8) for tag in explanation.tags)  # twice the backbone's 4 x 4
    changed = photo.copy()
    changed[48:, 32:] = 255  # only the lower right quarter
    other = explain(run, picture(1), threshold=0.0, photo=changed)
    before, after = (one.tags[0] for one in (explanation, other))
    assert before.score == after.score
    assert not np.allclose(before.map, after.map)
