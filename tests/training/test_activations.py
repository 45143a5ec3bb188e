"""What a frozen part makes of an image is computed once, kept within limits, and the same as computed anew."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from mlcil.core.errors import UserError
from mlcil.data.augmentation import augment, make_augmentation, normalise
from mlcil.data.loading import BatchLoader, sample_seeds
from mlcil.data.pixels import MemoryPixels
from mlcil.models.backbone import Backbone
from mlcil.training.activations import PrefixLoader, Shelf, Views, open_activations
from mlcil.training.config import make_config
from mlcil.training.run import run

from ..tiny import outcome, settings

FABRIC = Fabric(accelerator="cpu", devices=1)


def pixels(count=6, seed=0):
    return MemoryPixels(np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8), 16)


def frozen(stages=2):
    torch.manual_seed(0)
    return Backbone("small_conv", 16, freeze_stages=stages)


def opened(folder, backbone, views, store, limit=10**9, said=None):
    said = [] if said is None else said
    return open_activations(backbone, store, views, Shelf(folder, limit), FABRIC, said.append)


def first(loader, rows, keys=None):
    parts, labels = [np.arange(len(rows))], np.zeros((len(rows), 0), np.int8)
    return next(iter(loader.batches(parts, np.array(rows), labels, keys))).images


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop", "randaugment"])
def test_each_view_is_what_the_frozen_part_gives_for_that_view(tmp_path, augmentation):
    backbone, store, views = frozen().eval(), pixels(), Views(augmentation, 3)
    loader = opened(tmp_path, backbone, views, store)
    assert loader.activations.shape == (6, views.count, 4, 4, 64)
    assert views.count == {"none": 1, "flip": 2}.get(augmentation, 3)
    images = torch.from_numpy(store[np.arange(6)]).permute(0, 3, 1, 2)
    transform = make_augmentation(augmentation)
    for view in range(views.count):
        seen = images
        if view:
            seeds = sample_seeds((view,), np.arange(6)).tolist()
            seen = images.flip(3) if augmentation == "flip" else augment(images, transform, seeds)
        with torch.inference_mode():
            expected = backbone.prefix(normalise(seen, backbone.mean, backbone.std)).half()
        assert torch.equal(torch.from_numpy(loader.activations[:, view].copy()).permute(0, 3, 1, 2), expected)
    assert torch.equal(first(loader, [3, 1]), torch.from_numpy(loader.activations[[3, 1], 0]).permute(0, 3, 1, 2))


def test_training_meets_every_view_and_inference_the_first(tmp_path):
    loader = opened(tmp_path, frozen(), Views("crop", 3), pixels(1))
    stored = [torch.from_numpy(loader.activations[0, view].astype(np.float32)) for view in range(3)]
    met = {
        next(
            view
            for view, one in enumerate(stored)
            if torch.equal(first(loader, [0], [(0, 1, key)])[0].permute(1, 2, 0), one)
        )
        for key in range(40)
    }
    assert met == {0, 1, 2}
    assert torch.equal(first(loader, [0])[0].permute(1, 2, 0), stored[0])


def test_another_backbone_cut_view_or_image_is_another_file(tmp_path):
    opened(tmp_path, frozen(2), Views("none", 1), pixels())
    others = [
        (frozen(3), Views("none", 1), pixels()),
        (frozen(2), Views("flip", 1), pixels()),
        (frozen(2), Views("crop", 2), pixels()),
        (frozen(2), Views("randaugment", 2), pixels()),
        (frozen(2), Views("crop", 3), pixels()),
        (frozen(2), Views("randaugment", 3), pixels()),
        (frozen(2), Views("none", 1), pixels(seed=1)),
    ]
    for count, (backbone, views, store) in enumerate(others, start=2):
        opened(tmp_path, backbone, views, store)
        assert len(list((tmp_path / "frozen").glob("*.npy"))) == count
    other = frozen(2)
    other.mean = (0.4, 0.5, 0.5)
    opened(tmp_path, other, Views("none", 1), pixels())
    whole = frozen(2)
    whole.freeze_all()
    opened(tmp_path, whole, Views("none", 1), pixels())
    assert len(list((tmp_path / "frozen").glob("*.npy"))) == 10


def test_what_was_used_longest_ago_makes_room(tmp_path):
    size = 6 * 4 * 4 * 64 * 2  # bytes of one entry, without its header
    stores = [pixels(seed=seed) for seed in range(4)]
    for store in stores[:2]:
        opened(tmp_path, frozen(), Views("none", 1), store, limit=2 * size + 500)
    files = sorted((tmp_path / "frozen").glob("*.npy"), key=lambda path: path.stat().st_mtime_ns)
    for age, file in enumerate(files):
        os.utime(file, (1000 + age, 1000 + age))
    used = opened(tmp_path, frozen(), Views("none", 1), stores[0], limit=2 * size + 500)  # again: now the newest
    half_written = tmp_path / "frozen" / ".x.npy.abc.partial"
    half_written.write_bytes(b"torn")
    os.utime(half_written, (1000, 1000))
    opened(tmp_path, frozen(), Views("none", 1), stores[2], limit=2 * size + 500)
    left = set((tmp_path / "frozen").glob("*.npy"))
    assert files[0] in left
    assert files[1] not in left
    assert len(left) == 2
    assert not half_written.exists()
    for limit in (size - 1, size + 300):  # too little for any, or for one beside what is in use
        with pytest.raises(UserError, match="cache_gb allows 0.0"):
            opened(tmp_path, frozen(), Views("none", 1), stores[3], limit=limit)
    assert files[0].exists()
    assert np.isfinite(used.activations).all()


def test_nothing_frozen_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing to reuse; set backbone_mode=frozen, or freeze_stages"):
        opened(tmp_path, Backbone("small_conv", 16), Views("none", 1), pixels())


def test_a_prefix_is_computed_once_per_batch_and_gives_the_same_map():
    backbone, store, rows = frozen().eval(), pixels(), np.arange(6)
    plain = BatchLoader(store, backbone.mean, backbone.std)
    with torch.no_grad():
        expected = backbone(first(plain, rows))
    given = first(PrefixLoader(plain, backbone, FABRIC), rows)
    assert given.shape == (6, 64, 4, 4)
    assert not given.requires_grad
    assert not given.is_inference()
    backbone.starts_at_prefix = True
    with torch.no_grad():
        assert torch.equal(backbone(given), expected)


@pytest.mark.parametrize("augmentation", ["none", "randaugment"])
def test_frozen_stages_are_computed_once_for_teacher_and_student(tmp_path, monkeypatch, augmentation):
    calls = {"prefix": 0, "rest": 0}
    for name, method in (("prefix", Backbone.prefix), ("rest", Backbone.forward)):

        def counted(self, images, name=name, method=method):
            calls[name] += 1
            return method(self, images)

        monkeypatch.setattr(Backbone, "prefix" if name == "prefix" else "forward", counted)
    run(make_config(settings("krt", freeze_stages=2, epochs=1, augment=augmentation)), tmp_path / "run")
    assert calls["rest"] > calls["prefix"] > 0  # sessions with a teacher use each prefix twice


def test_sharing_the_frozen_part_changes_no_result(tmp_path, monkeypatch):
    values = settings("krt", freeze_stages=2, epochs=1)
    run(make_config(values), tmp_path / "shared")
    monkeypatch.setattr(Backbone, "has_prefix", False)
    run(make_config(values), tmp_path / "apart")
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "apart")


@pytest.mark.parametrize("method", ["ft", "krt", "podnet", "oewc", "class_queries", "analytic"])
def test_any_method_can_train_on_the_features_of_a_frozen_backbone(tmp_path: Path, method):
    changes = {"backbone_mode": "frozen", "epochs": 1, "cache": str(tmp_path / "cache"), "augment": "randaugment"}
    small = {"class_queries": {"width": 16, "heads": 4}, "analytic": {"expansion": 32}}
    changes["options"] = small.get(method, settings(method)["options"])
    results = run(make_config(settings(method, **changes)), tmp_path / "run")
    assert results.finished
    shapes = sorted(np.load(file, mmap_mode="r").shape for file in (tmp_path / "cache" / "frozen").glob("*.npy"))
    assert shapes == [(40, 1, 2, 2, 128), (48, 4, 2, 2, 128)]


def test_a_transformer_can_be_frozen_too(tmp_path):
    changes = {"backbone": "test_vit", "image_size": 32, "backbone_mode": "frozen", "epochs": 1}
    values = settings("krt", **changes, cache=str(tmp_path / "cache"))
    assert run(make_config(values), tmp_path / "run").finished


def test_a_method_that_works_inside_the_backbone_says_so(tmp_path):
    changes = {"backbone": "test_vit", "image_size": 160, "weights": None, "backbone_mode": "frozen"}
    with pytest.raises(UserError, match="l2p works inside the backbone; it cannot train on stored features"):
        run(make_config(settings("l2p", **changes)), tmp_path / "run")
