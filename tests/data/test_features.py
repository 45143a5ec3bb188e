"""What a frozen stem makes of an image is computed once, kept within limits, and the same as computed anew."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mlcil.core.cache import DiskCache
from mlcil.core.errors import UserError
from mlcil.data.augmentation import augment, make_augmentation, normalise
from mlcil.data.contents import Contents
from mlcil.data.decoding import BadImage
from mlcil.data.features import FeatureFeed, KeptStem, Views
from mlcil.data.images import LabelledImages
from mlcil.data.loading import PixelFeed, Preparation, sample_seeds
from mlcil.data.pixels import MemoryPixels, undecoded
from mlcil.models.backbone import Backbone
from mlcil.training.config import make_config
from mlcil.training.run import run

from ..tiny import settings

ENTRY = 6 * (4 * 4 * 64 * 2 + 4)  # bytes of the features of six images, each with a checksum


def pixels(count=6, seed=0):
    return MemoryPixels(np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8), 16)


def frozen(amount="2"):
    torch.manual_seed(0)
    backbone = Backbone("small_conv", 16)
    backbone.freeze(amount)
    return backbone


def prepare(backbone):
    return Preparation(backbone.mean, backbone.std, backbone.stem)


def opened(folder, backbone, views, store, limit=10**9):
    cache = DiskCache(folder, limit)
    stem = KeptStem(prepare(backbone), backbone.stem_digest(), 16, torch.device("cpu"), cache)
    return FeatureFeed(stem.open(store, views, lambda line: None), torch.device("cpu"))


def everything(features):
    return features[np.arange(len(features))]


def kept_files(folder):
    return sorted(folder.glob("features-*/*/*"))


def first(feed, rows, keys=None):
    parts, labels = [np.arange(len(rows))], np.zeros((len(rows), 0), np.int8)
    return next(iter(feed.batches(parts, np.array(rows), labels, keys))).images


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop", "randaugment"])
def test_each_view_is_what_the_stem_gives_for_that_view(tmp_path, augmentation):
    backbone, store, views = frozen(), pixels(), Views(augmentation, 3)
    feed = opened(tmp_path, backbone, views, store)
    assert everything(feed.features).shape[1:] == (views.count, 4, 4, 64)
    assert views.count == {"none": 1, "flip": 2}.get(augmentation, 3)
    images = torch.from_numpy(store[np.arange(6)]).permute(0, 3, 1, 2)
    transform = make_augmentation(augmentation)
    for view in range(views.count):
        seen = images
        if view:
            numbers = np.array([int.from_bytes(digest[:8], "little", signed=True) for digest in store.digests])
            seeds = sample_seeds((view,), numbers).tolist()
            seen = images.flip(3) if augmentation == "flip" else augment(images, transform, seeds)
        with torch.inference_mode():
            batch = torch.cat([seen, seen.new_zeros(26, *seen.shape[1:])])
            expected = backbone.stem(normalise(batch, backbone.mean, backbone.std))[:6].half()
        kept = everything(feed.features)[:, view]
        assert torch.equal(torch.from_numpy(kept).permute(0, 3, 1, 2), expected)
        picked = feed.features.pick(np.array([3, 1, 3]), np.full(3, view))
        assert np.array_equal(picked, kept[[3, 1, 3]])
    assert torch.equal(first(feed, [3, 1]), torch.from_numpy(everything(feed.features)[[3, 1], 0]).permute(0, 3, 1, 2))


def test_training_meets_every_view_and_inference_the_first(tmp_path):
    feed = opened(tmp_path, frozen(), Views("crop", 3), pixels(1))
    stored = [torch.from_numpy(everything(feed.features)[0, view].astype(np.float32)) for view in range(3)]

    def view_at(key):
        met = first(feed, [0], [(0, 1, key)])[0].permute(1, 2, 0)
        return next(view for view, one in enumerate(stored) if torch.equal(met, one))

    assert {view_at(key) for key in range(40)} == {0, 1, 2}
    assert torch.equal(first(feed, [0])[0].permute(1, 2, 0), stored[0])


def test_another_network_cut_view_or_image_is_another_entry(tmp_path):
    other = frozen()
    other.mean = (0.4, 0.5, 0.5)
    cases = [
        (frozen(), Views("none"), pixels()),
        (frozen("3"), Views("none"), pixels()),
        (frozen("all"), Views("none"), pixels()),
        (frozen(), Views("flip"), pixels()),
        *((frozen(), Views(name, count), pixels()) for name in ("crop", "randaugment") for count in (2, 3)),
        (frozen(), Views("none"), pixels(seed=1)),
        (other, Views("none"), pixels()),
    ]
    for count, (backbone, views, store) in enumerate(cases, start=1):
        for _ in range(2):  # the second time it is found
            opened(tmp_path, backbone, views, store)
            assert len(kept_files(tmp_path)) == count * 6


def test_one_more_image_is_computed_alone_and_leaves_the_others(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (41, 16, 16, 3), np.uint8)
    views = Views("crop", 3)
    before = everything(opened(tmp_path / "one", frozen(), views, MemoryPixels(images[:40], 16)).features)
    calls, stem = [], Backbone.stem
    monkeypatch.setattr(Backbone, "stem", lambda self, batch: calls.append(len(batch)) or stem(self, batch))
    grown = opened(tmp_path / "one", frozen(), views, MemoryPixels(images, 16)).features
    assert calls == [1, 32, 32, 32]  # the shape, then one batch per view
    assert np.array_equal(everything(grown)[:40], before)
    assert len(kept_files(tmp_path / "one")) == 41
    # The new image in front: every other one has new neighbours.
    turned = opened(tmp_path / "other", frozen(), views, MemoryPixels(images[::-1], 16)).features
    assert np.array_equal(everything(turned)[::-1], everything(grown))


def test_an_image_that_cannot_be_read_has_no_features(tmp_path, write_images, broken_files):
    good = write_images(tmp_path / "images", 2)
    paths = (good.paths[0], *map(str, broken_files), good.paths[1])
    images = LabelledImages(paths, np.zeros((7, 1), np.int8), ("a",), "train")
    features = opened(tmp_path / "features", frozen(), Views("none"), undecoded(images, 16, Contents())).features
    assert sorted(features.missing) == [1, 2, 3, 4, 5]
    assert features[np.array([6, 0])].shape == (2, 1, 4, 4, 64)
    assert len(kept_files(tmp_path / "features")) == 2
    with pytest.raises(BadImage, match="missing"):
        features[np.array([0, 1 + list(broken_files.values()).index("missing")])]


def test_an_interrupted_computation_goes_on_where_it_stopped(tmp_path, monkeypatch):
    store = pixels(70)
    expected = everything(opened(tmp_path / "whole", frozen(), Views("none"), store).features)
    calls, stem = [], Backbone.stem

    def counted(self, images):
        calls.append(len(images))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return stem(self, images)

    monkeypatch.setattr(Backbone, "stem", counted)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path / "cache", frozen(), Views("none"), store)
    assert len(kept_files(tmp_path / "cache")) == 32
    found = opened(tmp_path / "cache", frozen(), Views("none"), store).features
    assert np.array_equal(everything(found), expected)
    assert calls == [1, 32, 32, 1, 32, 32]  # the shape and two batches, of which one is lost; the shape and the rest


def test_features_that_vanish_during_a_run_are_computed_again(tmp_path):
    feed = opened(tmp_path, frozen(), Views("flip"), pixels())
    expected = everything(feed.features)
    shutil.rmtree(tmp_path)
    assert np.array_equal(feed.features.pick(np.array([4, 1, 4]), np.array([1, 0, 0])), expected[[4, 1, 4], [1, 0, 0]])
    assert len(kept_files(tmp_path)) == 2
    assert np.array_equal(everything(feed.features), expected)


def test_what_was_used_longest_ago_makes_room(tmp_path):
    stores = [pixels(seed=seed) for seed in range(4)]
    sets = []
    for store in stores[:2]:
        opened(tmp_path, frozen(), Views("none"), store, limit=2 * ENTRY)
        sets.append(set(kept_files(tmp_path)).difference(*sets))
    for file in kept_files(tmp_path):
        os.utime(file, (1000, 1000))
    used = opened(tmp_path, frozen(), Views("none"), stores[0], limit=2 * ENTRY)  # again: now the newest
    opened(tmp_path, frozen(), Views("none"), stores[2], limit=2 * ENTRY)
    left = set(kept_files(tmp_path))
    assert sets[0] < left
    assert not sets[1] & left
    for limit in (ENTRY - 1, ENTRY + 300):  # too little for any, or for one beside what is in use
        with pytest.raises(UserError, match="keep_features: .*cache_gb"):
            opened(tmp_path, frozen(), Views("none"), stores[3], limit=limit)
    assert sets[0] <= set(kept_files(tmp_path))
    assert np.isfinite(everything(used.features)).all()


def test_a_stem_is_computed_once_per_batch_and_gives_the_same_map():
    backbone, store, rows = frozen().eval(), pixels(), np.arange(6)
    with torch.no_grad():
        images = first(PixelFeed(store, Preparation(backbone.mean, backbone.std)), rows)
        expected = backbone(backbone.stem(images))
    given = first(PixelFeed(store, prepare(backbone)), rows)
    assert given.shape == (6, 64, 4, 4)
    assert not given.requires_grad
    assert not given.is_inference()
    with torch.no_grad():
        assert torch.equal(backbone(given), expected)


@pytest.mark.parametrize("augmentation", ["none", "randaugment"])
def test_teacher_and_student_share_one_stem(tmp_path, monkeypatch, augmentation):
    calls = {"stem": 0, "forward": 0}
    for name, method in (("stem", Backbone.stem), ("forward", Backbone.forward)):

        def counted(self, images, name=name, method=method):
            calls[name] += 1
            return method(self, images)

        monkeypatch.setattr(Backbone, name, counted)
    run(make_config(settings("krt", freeze="2", epochs=1, augment=augmentation)), tmp_path / "run")
    assert calls["forward"] > calls["stem"] > 0  # in sessions with a teacher two trunks take the same tensors


@pytest.mark.parametrize("method", ["ft", "krt", "podnet", "oewc", "class_queries", "analytic"])
def test_any_method_can_train_on_kept_features(tmp_path: Path, method):
    changes = {"freeze": "all", "keep_features": True, "epochs": 1, "augment": "randaugment"}
    small = {"class_queries": {"width": 16, "heads": 4}, "analytic": {"expansion": 32}}
    changes["options"] = small.get(method, settings(method)["options"])
    run(make_config(settings(method, **changes, cache=str(tmp_path / "cache"))), tmp_path / "run")
    sizes = sorted(file.stat().st_size for file in kept_files(tmp_path / "cache"))
    each = 128 * 4 if method in ("ft", "podnet", "oewc") else 2 * 2 * 128 * 2  # a mean in full precision, or a map
    assert sizes == [1 * each + 4] * 40 + [4 * each + 4] * 48


def test_a_transformer_can_be_frozen_too(tmp_path):
    changes = {"backbone": "test_vit", "image_size": 32, "freeze": "all", "keep_features": True, "epochs": 1}
    run(make_config(settings("krt", **changes, cache=str(tmp_path / "cache"))), tmp_path / "run")
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_features": True}, "keep_features: nothing is frozen that could be kept; set freeze=all"),
        ({"freeze": "9"}, "freeze: got '9', expected none, all, 0 to 4, the stages of small_conv, or"),
        ({"freeze": "all", "keep_features": True, "cache": None}, "keep_features needs a cache folder"),
    ],
)
def test_what_cannot_be_kept_is_one_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(make_config(settings("ft", **changes)), tmp_path / "run")


def test_a_method_that_works_inside_the_backbone_says_so(tmp_path):
    changes = {"backbone": "test_vit", "image_size": 160, "weights": None, "freeze": "all"}
    with pytest.raises(UserError, match="l2p works inside the backbone and freezes it itself; leave freeze at none"):
        run(make_config(settings("l2p", **changes)), tmp_path / "run")
