"""The analytic tagger: what an image becomes, and how scores become probabilities."""

import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.models.analytic import CERTAIN, AnalyticTagger, tempered
from mlcil.models.backbone import Backbone

IMAGES = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def made(is_trained=False, **shape):
    torch.manual_seed(0)
    with torch.enable_grad():
        backbone, still = Backbone("small_conv", 16), Backbone("small_conv", 16)
    still.stop_training()
    values = {"expansion": 20, "power": 0.5, "window": 0.0, "window_weight": 0.5} | shape
    if is_trained:
        return AnalyticTagger(backbone, **values, still=still).eval()
    backbone.stop_training()
    return AnalyticTagger(backbone, **values).eval()


def solved(tagger, classes=3):
    generator = torch.Generator().manual_seed(1)
    tagger.grow(classes)
    weights = torch.randn(tagger.width, classes, generator=generator)
    tagger.set_solution(
        weights, torch.rand(classes, generator=generator) + 0.5, torch.randn(classes, generator=generator)
    )
    return tagger


@torch.no_grad()
def test_features_are_random_ones_the_standardised_ones_and_a_constant():
    tagger = made()
    described = tagger.describe(IMAGES)
    pooled = tagger.backbone(IMAGES).mean(dim=(2, 3))
    torch.testing.assert_close(described, pooled.sign() * pooled.abs().sqrt())
    tagger.standardise(described)
    x = tagger.expand(described)[:, 20:-1]
    moving = described.std(0) > 1e-6
    torch.testing.assert_close(x.mean(0), torch.zeros(x.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(0, unbiased=False)[moving], torch.ones(int(moving.sum())), atol=1e-3, rtol=0)
    assert (x[:, ~moving] == 0).all()  # what never changes says nothing, and is not blown up
    torch.testing.assert_close(tagger.expand(described)[:, :20], torch.relu(x @ tagger.projection))
    assert (tagger.expand(described)[:, -1] == 1).all()
    assert tagger.expand(described).shape[1] == tagger.width


@torch.no_grad()
def test_the_best_window_counts_besides_the_whole_image():
    tagger = solved(made(window=0.5, window_weight=0.3))
    features = tagger.backbone(IMAGES)
    side = round(features.shape[-1] * 0.5)
    last = features.shape[-1] - side

    def score(part):
        pooled = part.mean((2, 3))
        return tagger.expand(pooled.sign() * pooled.abs().sqrt()) @ tagger.weights

    places = [(row, column) for row in range(last + 1) for column in range(last + 1)]
    windows = [score(features[:, :, row : row + side, column : column + side]) for row, column in places]
    expected = score(features) + 0.3 * torch.stack(windows).amax(0)
    whole, both = tagger.scores(IMAGES).unbind(1)
    torch.testing.assert_close(whole, score(features))
    torch.testing.assert_close(both, expected)
    assert not torch.equal(whole, both)
    logits = tempered(tagger.slope * expected + tagger.offset)
    torch.testing.assert_close(tagger(IMAGES).logits, logits)


@torch.no_grad()
def test_windows_as_large_as_the_image_add_nothing():
    tagger = solved(made(window=1.0))
    whole, both = tagger.scores(IMAGES).unbind(1)
    assert torch.equal(whole, both)


def test_growing_keeps_old_scores_and_says_absent_of_new_classes():
    tagger = solved(made())
    with torch.no_grad():
        before = tagger(IMAGES).logits
        tagger.grow(2)
        after = tagger(IMAGES).logits
    assert torch.equal(after[:, :3], before)
    assert (torch.sigmoid(after[:, 3:]) < 1e-3).all()


def test_far_logits_keep_their_order_as_probabilities():
    logits = torch.cat([torch.linspace(-5.9, 5.9, 50), torch.linspace(6, 80, 200), -torch.linspace(6, 80, 200)])
    ordered = logits.sort().values
    probabilities = torch.sigmoid(tempered(ordered))
    assert (probabilities.diff() > 0).all()
    inside = ordered.abs() <= CERTAIN
    assert torch.equal(tempered(ordered)[inside], ordered[inside])
    assert (torch.sigmoid(ordered).diff() == 0).any()  # which plain float32 does not


@torch.no_grad()
def test_state_fits_a_tagger_of_any_number_of_classes():
    tagger, kept = solved(made(), 4), solved(made(), 4)
    kept.keep([3, 1])
    for each in (tagger, kept):
        other = made()
        other.grow(len(each.slope))
        other.load_state_dict(each.state_dict())
        assert torch.equal(other(IMAGES).logits, each(IMAGES).logits)


@torch.no_grad()
@pytest.mark.parametrize("columns", [[5], [0, 1], [4, 2, 0], [5, 4, 3, 2, 1, 0]])
@pytest.mark.parametrize("window", [0.0, 0.5])
def test_classes_that_are_kept_have_the_same_logits_to_the_bit(columns, window):
    tagger = solved(made(window=window), 6)
    before = tagger(IMAGES).logits
    tagger.keep(columns)
    assert torch.equal(tagger(IMAGES).logits, before[:, columns])
    gone = [column for column in range(6) if column not in columns]
    assert not tagger.weights[:, gone].any()  # nothing is left of the others
    tagger.grow(2)
    torch.testing.assert_close(tagger(IMAGES).logits[:, : len(columns)], before[:, columns])
    assert (torch.sigmoid(tagger(IMAGES).logits[:, len(columns) :]) < 1e-3).all()
    tagger.keep([len(columns)])
    assert tagger(IMAGES).logits.shape == (5, 1)
    solved(tagger, 2)
    assert tagger(IMAGES).logits.shape == (5, 2)


def test_a_fingerprint_tells_features_apart():
    first = made().fingerprint()
    assert first == made().fingerprint()
    moved = made()
    moved.standardise(torch.randn(9, moved.projection.shape[0]))
    changed = made()
    with torch.no_grad():
        next(changed.backbone.parameters()).add_(1e-3)
    others = [made(power=1.0), made(expansion=21), moved, changed]
    assert len({first, *(one.fingerprint() for one in others)}) == 5


@torch.no_grad()
def test_a_trained_backbone_is_joined_by_one_that_stays():
    tagger = made(is_trained=True, window=0.5)
    tagger.grow(3)
    both = [net(IMAGES).mean(dim=(2, 3)) for net in (tagger.backbone, tagger.still)]
    described = tagger.describe(IMAGES)
    torch.testing.assert_close(described, torch.cat([one.sign() * one.abs().sqrt() for one in both], dim=1))
    random = torch.relu(described[:, -128:] @ tagger.projection)  # of what stays alone
    torch.testing.assert_close(tagger.expand(described)[:, :20], random)
    tagger.set_solution(torch.randn(tagger.width, 3), torch.ones(3), torch.zeros(3))
    whole, combined = tagger.scores(IMAGES).unbind(1)
    torch.testing.assert_close(whole, tagger.expand(described) @ tagger.weights)
    torch.testing.assert_close(tagger(IMAGES).logits, tempered(combined))
    assert not torch.equal(whole, combined)
    trained = tagger.train()(IMAGES)
    torch.testing.assert_close(trained.logits, tagger.heads[0](trained.pooled))
    assert not any(module.training for module in tagger.still.modules())


def test_a_first_session_of_hardly_any_images():
    tagger = made()
    size = tagger.projection.shape[0]
    with pytest.raises(UserError, match=r"1 image\(s\) all look the same"):
        tagger.standardise(torch.randn(1, size))
    generator = torch.Generator().manual_seed(0)
    for count in (2, 3):
        tagger.standardise(torch.randn(count, size, generator=generator))
        later = (torch.randn(100, size, generator=generator) - tagger.mean) / tagger.deviation
        assert later.abs().max() < 100
