"""Learning and tagging by many processes: the same bits as by one, whatever happens to them."""

import csv
import os
import random
import signal
import threading
import time
from functools import partial
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mlcil.core import cached_rows
from mlcil.core.pools import LocalPool, RayPool
from mlcil.data.features import KeptStem
from mlcil.models import sums
from mlcil.serving import predicted_parts
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.predicting import Wish
from mlcil.serving.tagger import Tagger

from ..workers import Square

PHOTOS = 150
BROKEN = 77  # the number of a photo that has no end


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder with pictures of noise, some of them reddish."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(PHOTOS):
        pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
        pixels[..., 0] |= 128 * (number % 3 == 0)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    broken = folder / f"{BROKEN}.png"
    broken.write_bytes(broken.read_bytes()[:-400])
    return folder


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(cached_rows, "BLOCK", 16)
    monkeypatch.setattr(sums, "SHARD", 40)
    monkeypatch.setattr(predicted_parts, "PART", 16)


def learned(photos, folder, *, seed=None, jobs=1, engine="local", cache="cache"):
    """The folder of a tagger that has learned from all photos, in the order of a seed."""
    rows = [(f"{number}.png", "red" if number % 3 == 0 else "") for number in range(PHOTOS)]
    if seed is not None:
        random.Random(seed).shuffle(rows)
    folder.mkdir(exist_ok=True)
    table = folder / "table.csv"
    with table.open("w", newline="") as stream:
        csv.writer(stream).writerows([("path", "labels"), *rows])
    settings = {"image_size": 16, "threads": 1, "jobs": jobs, "engine": engine, "cache": str(folder / cache)}
    options = LearnOptions(images=str(photos), backbone="small_conv", settings=settings)
    tagger, _ = learn(None, str(table), options)
    assert [step.images for step in tagger.steps] == [PHOTOS - 1]
    assert tagger.method.ledger.images == PHOTOS - 1  # each of them once
    return tagger.save(folder / f"tagger-{len(list(folder.iterdir()))}")


@pytest.fixture(scope="module")
def by_one(photos, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "SHARD", 40)
        return learned(photos, tmp_path_factory.mktemp("one"))


def assert_same_bits(one, other):
    for name in ("model.safetensors", "tagger.safetensors"):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        for key, value in first.items():
            if not key.endswith(("rows", "labels", "changes")):  # of the table's own order, as far as it may differ
                assert torch.equal(value, second[key]), key


def kill_one_when(is_time):
    """Kill one of the processes that this one has started, as soon as it is time; returns the list of killed ones."""
    killed = []

    def wait():
        while not (children := active_children()) or not is_time():
            time.sleep(0.01)
        os.kill(children[0].pid, signal.SIGKILL)
        killed.append(children[0].pid)

    threading.Thread(target=wait, daemon=True).start()
    return killed


def test_two_processes_of_which_one_is_killed_learn_the_same(photos, by_one, tmp_path):
    killed = kill_one_when(lambda: len(list(tmp_path.glob("more/cache/features-*/*/*"))) > 20)
    assert_same_bits(learned(photos, tmp_path / "more", jobs=2), by_one)
    assert killed
    assert len(list(tmp_path.glob("more/cache/sums-*/*/*"))) == 4  # shards


def test_the_order_of_a_table_does_not_matter(photos, by_one, tmp_path):
    assert_same_bits(learned(photos, tmp_path / "shuffled", seed=1), by_one)


def test_an_interrupted_command_goes_on_and_computes_nothing_twice(photos, by_one, tmp_path, monkeypatch):
    computed, compute = [], KeptStem.compute

    def cut(self, images):
        computed.append(len(images))
        if len(computed) == 4:
            raise KeyboardInterrupt
        return compute(self, images)

    monkeypatch.setattr(KeptStem, "compute", cut)
    with pytest.raises(KeyboardInterrupt):
        learned(photos, tmp_path / "cut")
    lost = computed[-1]
    assert_same_bits(learned(photos, tmp_path / "cut"), by_one)
    assert sum(computed) - lost == PHOTOS - 1


def tags(tagger, files, out, pool=None, watch=lambda parts: None):
    """What becomes of photos; `watch` may interfere with the parts."""
    parts = predicted_parts.Parts(out, "me")
    watch(parts)
    parts.fill(parts.left(files), partial(Tagger.load, tagger), Wish(top=1), pool, lambda done, total: None)
    found = list(parts.outcomes(files))
    parts.close()
    return found


@pytest.fixture(scope="module")
def tags_by_one(photos, by_one, tmp_path_factory):
    """The files and what becomes of them."""
    files = [str(photos / f"{number}.png") for number in range(PHOTOS)]
    found = tags(by_one, files, tmp_path_factory.mktemp("tags") / "one.csv")
    assert [one.error for one in found if one.error] == ["truncated"]
    return files, found


def test_two_processes_of_which_one_is_killed_tag_the_same(by_one, tags_by_one, tmp_path):
    files, expected = tags_by_one
    killed = []
    found = tags(
        by_one,
        files,
        tmp_path / "two.csv",
        LocalPool(2),
        lambda parts: killed.append(kill_one_when(lambda: len(list(parts.folder.glob("*.jsonl"))) > 2)),
    )
    assert found == expected
    assert killed[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_ray_cluster_does_the_same_and_survives_a_kill(photos, by_one, tags_by_one, tmp_path):
    ray = pytest.importorskip("ray", reason="needs the extra mlcil[ray]")
    mark, (files, expected) = tmp_path / "killed", tags_by_one
    try:
        pool = RayPool(2)
        assert sorted(pool.map(partial(Square, 3, mark), range(9))) == [(one, one * one) for one in range(9)]
        assert mark.exists()
        assert_same_bits(learned(photos, tmp_path / "ray", jobs=2, engine="ray"), by_one)
        assert len(list(tmp_path.glob("ray/cache/sums-*/*/*"))) == 4
        assert tags(by_one, files, tmp_path / "ray.csv", pool) == expected
    finally:
        ray.shutdown()
