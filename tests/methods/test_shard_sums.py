"""Sums over a shard are made once, and again if their file is damaged."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlcil.core.cache import DiskCache
from mlcil.core.errors import UserError
from mlcil.data.features import FeatureFeed, KeptStem, Views
from mlcil.data.loading import Preparation
from mlcil.data.pixels import MemoryPixels
from mlcil.methods import shard_sums
from mlcil.methods.shard_sums import SumShard, read_sums
from mlcil.models.backbone import Backbone

WIDTH, VALUES = 65, np.eye(6, 2, dtype=np.int8)


def test_damaged_sums_are_made_again(tmp_path):
    torch.manual_seed(0)
    backbone = Backbone("small_conv", 16)
    backbone.freeze("2")
    prepare = Preparation(backbone.mean, backbone.std, backbone.stem)
    cache = DiskCache(tmp_path, 10**9)
    stem = KeptStem(prepare, backbone.stem_digest(), 16, torch.device("cpu"), cache, averages=True)
    pixels = MemoryPixels(np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), np.uint8), 16)
    feed = FeatureFeed(stem.open(pixels, Views("none"), lambda line: None), torch.device("cpu"))
    described = []

    def describe(images):
        described.append(len(images))
        return images.flatten(1)

    def expand(given):
        return torch.cat([given, given.new_ones(len(given), 1)], 1)

    work = SumShard(SimpleNamespace(width=WIDTH, mean=torch.zeros(1), describe=describe, expand=expand), "some")
    file = work(feed, VALUES)
    sums, sound = read_sums(file, WIDTH, 2), Path(file).read_bytes()
    assert (sums.images, described) == (6, [6])
    for broken in (sound[:-1], b"\0" * len(sound), sound[:900] + bytes([sound[900] ^ 1]) + sound[901:]):
        Path(file).write_bytes(broken)
        with pytest.raises(UserError, match="is gone or damaged; repeat the command"):
            read_sums(file, WIDTH, 2)
        assert work(feed, VALUES) == file
        assert Path(file).read_bytes() == sound
    assert work(feed, VALUES) == file
    assert described == [6] * 4


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shard_sums, "write_row", full)
    images = torch.ones(3, 2)
    tagger = SimpleNamespace(
        width=2, mean=torch.zeros(2, dtype=torch.float64), describe=lambda one: one, expand=lambda one: one
    )
    features = SimpleNamespace(digests=(b"1", b"2", b"3"), cache=DiskCache(tmp_path, 10**6))
    feed = SimpleNamespace(features=features, batches=lambda *_: [SimpleNamespace(images=images)])
    with pytest.raises(UserError, match=r"^cannot write .*sums-.*: No space left on device; make room and repeat"):
        SumShard(tagger, "features")(feed, np.ones((3, 1), np.int8))
