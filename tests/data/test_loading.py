import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mlcil.core.cache import DiskCache
from mlcil.data import loading
from mlcil.data.augmentation import make_augmentation, normalise
from mlcil.data.contents import Contents, content_digest
from mlcil.data.loading import Batch, PixelFeed, Preparation, plan_epoch, sample_seeds, shard
from mlcil.data.pixels import BadImage, ChangedImage, DecodedPixels, MemoryPixels, open_pixels

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
PREPARE = Preparation(MEAN, STD)


def store(count: int = 20, size: int = 16) -> MemoryPixels:
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return MemoryPixels(pixels, size)


def labels(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-1, 2, (count, 3), dtype=np.int8)


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(one.images, two.images)
        and torch.equal(one.labels, two.labels)
        and torch.equal(one.indices, two.indices)
        for one, two in zip(first, second, strict=True)
    )


@given(st.integers(0, 50), st.integers(1, 12), st.integers(0, 2**40))
def test_plan_is_a_permutation(count, batch_size, seed):
    plan = plan_epoch(count, batch_size, seed, 2, 3)
    assert sorted(itertools.chain(*plan)) == list(range(count))
    assert all(len(batch) == batch_size for batch in plan[:-1])
    assert all(len(batch) > 0 and batch.dtype == np.int64 for batch in plan)


def test_plan_follows_from_seed_session_and_epoch():
    orders = {tuple(np.concatenate(plan_epoch(50, 8, *key))) for key in itertools.product((0, 1), (0, 1), (0, 1))}
    assert len(orders) == 8
    again = plan_epoch(50, 8, 0, 1, 0)
    assert all(np.array_equal(a, b) for a, b in zip(again, plan_epoch(50, 8, 0, 1, 0), strict=True))


@given(st.integers(0, 20), st.integers(1, 5))
def test_shards_partition_a_batch(count, world):
    batch = np.random.default_rng(count).permutation(count)
    parts = [shard(batch, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(parts)) == sorted(batch)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_sample_seeds_are_stable_and_distinct():
    rows = np.arange(1000)
    assert sample_seeds((7, 1, 2), rows[:2]).tolist() == [7310147706148227254, 5038839985593861410]
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**64 - 1,), (-2,)]
    seeds = np.concatenate([sample_seeds(key, rows) for key in keys])
    assert seeds.min() >= 0
    assert len(np.unique(seeds)) == len(seeds)
    assert np.array_equal(sample_seeds((3,), rows[::-1]), sample_seeds((3,), rows)[::-1])


def test_batches_hold_normalised_images_labels_and_rows():
    pixels, rows, marks = store(), np.array([3, 19, 4, 7, 11]), labels(5)
    parts = plan_epoch(5, 2, 0, 0, 0)
    batches = list(PixelFeed(pixels, PREPARE).batches(parts, rows, marks, None))
    assert [len(batch.images) for batch in batches] == [2, 2, 1]
    for part, batch in zip(parts, batches, strict=True):
        assert batch.images.dtype == torch.float32
        assert batch.indices.tolist() == rows[part].tolist()
        assert np.array_equal(batch.labels.numpy(), marks[part])
        expected = (pixels[rows[part]] / 255 - MEAN) / STD
        np.testing.assert_allclose(batch.images.permute(0, 2, 3, 1).numpy(), expected, atol=1e-5)


def test_images_keep_their_channels_last_in_memory():
    loader, parts = PixelFeed(store(), PREPARE, make_augmentation("crop")), plan_epoch(6, 3, 0, 0, 0)
    for keys in (None, [(1,), (2,)]):
        for batch in loader.batches(parts, np.arange(6), labels(6), keys):
            assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_a_device_gets_bytes_and_normalises_them(monkeypatch):
    moved = []

    def watched(images: torch.Tensor, *arguments: tuple[float, ...]) -> torch.Tensor:
        moved.append((images.device.type, images.dtype))
        return normalise(images, *arguments)

    monkeypatch.setattr(loading, "normalise", watched)
    loader = PixelFeed(store(), PREPARE, device=torch.device("meta"))
    (batch,) = loader.batches([np.arange(3)], np.arange(3), labels(3), None)
    assert moved == [("meta", torch.uint8)]
    assert {one.device.type for one in (batch.images, batch.labels)} == {"meta"}
    assert batch.indices.device.type == "cpu"  # for what is looked up there
    assert batch.images.shape == (3, 3, 16, 16)


def test_the_cpu_as_device_changes_no_bit():
    parts = plan_epoch(20, 6, 0, 0, 0)
    by_default, on_cpu = (
        list(PixelFeed(store(), PREPARE, device=device).batches(parts, np.arange(20), labels(20), None))
        for device in (None, torch.device("cpu"))
    )
    assert same(by_default, on_cpu)


def test_memory_is_pinned_for_cuda_only():
    for name, pinned in (("cuda", True), ("cpu", False), ("meta", False)):
        assert PixelFeed(store(), PREPARE, device=torch.device(name))._loader.pin_memory is pinned


def test_an_empty_part_gives_an_empty_batch():
    loader = PixelFeed(store(), PREPARE, make_augmentation("randaugment"))
    (batch,) = loader.batches([np.empty(0, np.int64)], np.arange(4), labels(4), [(1,)])
    assert batch.images.shape == (0, 3, 16, 16)
    assert batch.labels.shape == (0, 3)
    assert batch.indices.shape == (0,)


def test_augmentation_follows_the_row_not_the_batch():
    loader = PixelFeed(store(), PREPARE, make_augmentation("randaugment"))

    def images_by_row(batch_size: int, rows: np.ndarray, key: tuple[int, ...]) -> dict[int, torch.Tensor]:
        parts = plan_epoch(len(rows), batch_size, 0, 0, 0)
        batches = loader.batches(parts, rows, labels(len(rows)), [key] * len(parts))
        return {int(row): image for b in batches for row, image in zip(b.indices, b.images, strict=True)}

    whole, some = images_by_row(7, np.arange(20), (1, 2)), images_by_row(3, np.arange(5, 15), (1, 2))
    assert all(torch.equal(whole[row], some[row]) for row in some)
    other = images_by_row(7, np.arange(20), (1, 3))
    assert not all(torch.equal(whole[row], other[row]) for row in whole)


def run(workers: int) -> tuple[list[Batch], torch.Tensor]:
    """Three epochs of one loader, the second left early, and the main process's random state after it."""
    torch.manual_seed(5)
    loader = PixelFeed(store(), PREPARE, make_augmentation("randaugment"), workers)
    rows, marks, seen = np.arange(2, 20), labels(18), []
    for epoch in range(3):
        parts = plan_epoch(18, 4, 0, 0, epoch)
        wanted = 2 if epoch == 1 else len(parts)
        seen += itertools.islice(loader.batches(parts, rows, marks, [(0, epoch)] * len(parts)), wanted)
    return seen, torch.get_rng_state()


def test_bits_are_the_same_for_any_number_of_workers():
    expected, state = run(0)
    for workers in (1, 2):
        batches, state_with_workers = run(workers)
        assert same(expected, batches)
        assert torch.equal(state, state_with_workers)


def test_an_overtaken_iteration_says_so():
    loader, parts = PixelFeed(store(), PREPARE), plan_epoch(8, 2, 0, 0, 0)
    old = loader.batches(parts, np.arange(8), labels(8), None)
    next(old)
    assert len(list(loader.batches(parts, np.arange(8), labels(8), None))) == 4
    with pytest.raises(RuntimeError, match="newer iteration"):
        next(old)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_lost_during_training_is_named(tmp_path, workers):
    good, lost = tmp_path / "good.png", tmp_path / "lost.png"
    Image.new("RGB", (8, 8)).save(good)
    loader = PixelFeed(
        DecodedPixels((str(good), str(lost)), 8, [content_digest(good.read_bytes()), b""]), PREPARE, None, workers
    )
    with pytest.raises(BadImage) as caught:
        list(loader.batches([np.array([0, 1])], np.arange(2), labels(2), None))
    assert str(caught.value) == f"cannot read image {lost}: missing"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_changed_during_training_is_named(tmp_path, workers):
    Image.new("RGB", (8, 8)).save(tmp_path / "new.png")
    loader = PixelFeed(DecodedPixels((str(tmp_path / "new.png"),), 8, [b"of another content"]), PREPARE, None, workers)
    with pytest.raises(ChangedImage) as caught:
        list(loader.batches([np.array([0])], np.arange(1), labels(1), None))
    assert str(caught.value) == f"image {tmp_path / 'new.png'} changed while it was read; repeat the command"


def test_a_cache_deleted_during_training_is_filled_again_by_the_workers(tmp_path, write_images):
    images = write_images(tmp_path / "images")
    opened = open_pixels(images, 8, cache=DiskCache(tmp_path / "cache", 10**9), contents=Contents())
    loader, parts = PixelFeed(opened.store, PREPARE, None, workers=1), [np.array([4, 0]), np.array([2, 2])]
    before, after = [], []
    for found in (before, after):
        found += [batch.images for batch in loader.batches(parts, np.arange(5), labels(5), None)]
        shutil.rmtree(tmp_path / "cache")
    assert all(map(torch.equal, before, after))
    Path(images.paths[2]).unlink()
    with pytest.raises(BadImage) as caught:
        list(loader.batches(parts, np.arange(5), labels(5), None))
    assert str(caught.value) == f"cannot read image {images.paths[2]}: missing"


KILLED = """
import os, signal
import numpy as np
from mlcil.data.loading import PixelFeed, Preparation
from mlcil.data.pixels import MemoryPixels
if __name__ == "__main__":
    feed = PixelFeed(MemoryPixels(np.zeros((4, 8, 8, 3), np.uint8), 8), Preparation((0.0,) * 3, (1.0,) * 3), workers=1)
    next(feed.batches([np.arange(2)], np.arange(4), np.zeros((4, 1), np.int8), None))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_process_that_is_killed(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    # A worker that stayed would hold the pipe open, for which this would wait.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


TOLD = """
import signal, time
import numpy as np
from mlcil.data.loading import PixelFeed, Preparation
from mlcil.data.pixels import MemoryPixels
def slowly(image):
    time.sleep(0.3)
    return image
if __name__ == "__main__":
    pixels = MemoryPixels(np.zeros((6, 8, 8, 3), np.uint8), 8)
    feed = PixelFeed(pixels, Preparation((0.0,) * 3, (1.0,) * 3), slowly, workers=1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a run that has to save first
    rows = np.arange(6)
    for batch in feed.batches(list(rows[:, None]), rows, np.zeros((6, 1), np.int8), [(0,)] * 6):
        print(batch.images.shape[0], flush=True)
"""


def test_a_sigterm_for_all_leaves_the_workers_to_the_run(tmp_path):
    script = tmp_path / "told.py"
    script.write_text(TOLD)
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    with run:
        assert run.stdout.readline() == "1\n"
        os.killpg(run.pid, signal.SIGTERM)
        assert run.stdout.read() == "1\n" * 5  # and to the end: none of the workers holds the pipe open
        assert run.wait(10) == 0
