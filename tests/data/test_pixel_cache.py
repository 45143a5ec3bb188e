import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.core.cache import CachedRows, DiskCache
from mlcil.core.errors import UserError
from mlcil.data import decoding
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import DecodedPixels, OpenedPixels, PixelStore, decode, open_pixels

SIZE, MANY = 12, 10**9
ENTRY = SIZE * SIZE * 3  # bytes of one image in the cache

# Opens the folder argv[1] with the cache argv[2]; every decoding is slow and leaves a line in argv[3].
SLOW_BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from mlcil.core.cache import DiskCache
from mlcil.data import decoding
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import open_pixels
original, decoding.CHUNK = decoding._decoded, 4
def slow(path, content, size):
    time.sleep(0.05)
    with open(sys.argv[3], "a") as log:
        log.write(path + "\\n")
    return original(path, content, size)
decoding._decoded = slow
paths = tuple(map(str, sorted(Path(sys.argv[1]).iterdir())))
images = LabelledImages(paths, np.zeros((len(paths), 1), np.int8), ("a",), "train")
opened = open_pixels(images, 12, cache=DiskCache(Path(sys.argv[2]), 10**9), workers=1)
print(int(opened.store[np.arange(len(paths))].sum()), type(opened.store).__name__)
"""


def indexed(paths: list[Path]) -> LabelledImages:
    return LabelledImages(tuple(map(str, paths)), np.zeros((len(paths), 1), np.int8), ("a",), "train")


def opened(images: LabelledImages, cache: Path | None, limit: int = MANY) -> OpenedPixels:
    return open_pixels(images, SIZE, cache=None if cache is None else DiskCache(cache, limit))


def everything(store: PixelStore) -> np.ndarray:
    return store[np.arange(len(store))]


def expected(images: LabelledImages) -> np.ndarray:
    return np.stack([decode(path, SIZE) for path in images.paths])


def entries(cache: Path) -> set[str]:
    return {path.stem for path in cache.glob("*.rows")}


def slow_builder(folder: Path, cache: Path, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_BUILDER, str(folder), str(cache), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_cache_equals_decoding_and_decodes_once(tmp_path, decoded, write_images):
    images, progress = write_images(tmp_path / "images", 70), []
    wanted = expected(images)
    decoded.clear()
    cache = DiskCache(tmp_path / "cache", MANY)
    first = open_pixels(images, SIZE, cache=cache, on_progress=lambda *at: progress.append(at))
    assert isinstance(first.store, CachedRows)
    assert (len(first.store), first.bad, first.note) == (70, {}, None)
    assert np.array_equal(everything(first.store), wanted)
    assert sorted(decoded) == list(images.paths)
    assert progress == [(64, 70), (70, 70)]
    second = opened(images, tmp_path / "cache")
    assert np.array_equal(everything(second.store), wanted)
    assert len(decoded) == 70
    rows = np.array([5, 5, 0])
    assert np.array_equal(second.store[rows], wanted[rows])
    assert second.store[rows[:0]].shape == (0, SIZE, SIZE, 3)


def test_key_follows_content_order_and_size_not_paths(tmp_path, write_images):
    cache = tmp_path / "cache"
    images, copies = write_images(tmp_path / "one"), write_images(tmp_path / "two")
    for same in (images, copies):
        opened(same, cache)
        assert len(entries(cache)) == 1
    opened(images.subset(np.array([1, 0, 2, 3, 4])), cache)
    assert len(entries(cache)) == 2
    open_pixels(images, SIZE + 1, cache=DiskCache(cache, MANY))
    assert len(entries(cache)) == 3
    Image.new("RGB", (9, 9), "red").save(images.paths[2])
    changed = opened(images, cache)
    assert len(entries(cache)) == 4
    assert np.array_equal(everything(changed.store), expected(images))


def test_a_missing_file_that_appears_is_read(tmp_path):
    images = indexed([tmp_path / "late.png"])
    assert opened(images, tmp_path / "cache").bad
    Image.new("RGB", (9, 9), "red").save(tmp_path / "late.png")
    assert not opened(images, tmp_path / "cache").bad


def test_a_killed_build_is_continued(tmp_path, decoded, write_images):
    images, cache, log = write_images(tmp_path / "images", 40), tmp_path / "cache", tmp_path / "log"
    with slow_builder(tmp_path / "images", cache, log) as builder:
        wait_for(lambda: any(path.read_bytes().count(1) >= 8 for path in cache.glob("*.done")))
        builder.send_signal(signal.SIGKILL)
    done = next(cache.glob("*.done")).read_bytes().count(1)
    assert 8 <= done < 40
    assert not entries(cache)
    result = opened(images, cache)
    assert sorted(decoded) == list(images.paths[done:])
    assert np.array_equal(everything(result.store), expected(images))
    assert not list(cache.glob("*.partial")) + list(cache.glob("*.done"))


def test_two_builders_at_once_build_once(tmp_path, write_images):
    images, cache, log = write_images(tmp_path / "images", 10), tmp_path / "cache", tmp_path / "log"
    with (
        slow_builder(tmp_path / "images", cache, log) as one,
        slow_builder(tmp_path / "images", cache, log) as two,
    ):
        outputs = [builder.communicate()[0].split() for builder in (one, two)]
    assert outputs == [[str(expected(images).sum()), "CachedRows"]] * 2
    assert sorted(log.read_text().split()) == list(images.paths)


@pytest.mark.parametrize("damage", ["no manifest", "short", "not JSON", "other count"])
def test_a_damaged_entry_is_rebuilt(tmp_path, damage, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    opened(images, cache)
    manifest, data = next(cache.glob("*.json")), next(cache.glob("*.rows"))
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "short":
        os.truncate(data, 10)
    else:
        manifest.write_text("{" if damage == "not JSON" else manifest.read_text().replace('"count": 5', '"count": 4'))
    assert np.array_equal(everything(opened(images, cache).store), expected(images))


def test_the_least_recently_used_entry_makes_room(tmp_path, write_images):
    cache, limit = tmp_path / "cache", 10 * ENTRY
    first, second, third = (write_images(tmp_path / str(seed), 4, seed) for seed in range(3))
    keys = []
    for age, images in ((30, first), (20, second)):
        opened(images, cache, limit)
        (key,) = entries(cache) - set(keys)
        keys.append(key)
        os.utime(cache / f"{key}.rows", (time.time() - age,) * 2)
    opened(first, cache, limit)  # now the second is the oldest
    opened(third, cache, limit)
    assert keys[0] in entries(cache)
    assert keys[1] not in entries(cache)
    assert sum(path.stat().st_size for path in cache.glob("*.rows")) <= limit


def test_an_entry_in_use_is_not_removed(tmp_path, write_images):
    cache, limit = tmp_path / "cache", 6 * ENTRY
    first, second = (write_images(tmp_path / str(seed), 4, seed) for seed in range(2))
    used = opened(first, cache, limit)
    refused = opened(second, cache, limit)
    assert isinstance(refused.store, DecodedPixels)
    assert np.array_equal(everything(used.store), expected(first))
    del used
    assert isinstance(opened(second, cache, limit).store, CachedRows)
    assert len(entries(cache)) == 1


def test_a_full_disk_is_a_user_error_and_can_be_repeated(tmp_path, monkeypatch, decoded, write_images):
    images, cache, calls = write_images(tmp_path / "images", 12), tmp_path / "cache", []
    original = os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 3:  # the pixels of the second chunk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(handle)

    monkeypatch.setattr(decoding, "CHUNK", 4)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        opened(images, cache)
    assert str(cache) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not entries(cache)
    decoded.clear()
    result = opened(images, cache)
    assert sorted(decoded) == list(images.paths[4:])
    assert np.array_equal(everything(result.store), expected(images))


def test_a_file_size_limit_of_the_system_is_a_user_error(tmp_path, write_images):
    images, cache = write_images(tmp_path / "images", 12), tmp_path / "cache"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n" + SLOW_BUILDER
    command = [sys.executable, "-c", limited, str(tmp_path / "images"), str(cache), str(tmp_path / "log")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].startswith("mlcil.core.errors.UserError: cannot use the pixel cache")
    assert not entries(cache)
    assert np.array_equal(everything(opened(images, cache).store), expected(images))


def test_a_file_changed_during_the_build_is_not_cached(tmp_path, monkeypatch, write_images):
    images = write_images(tmp_path / "images")
    digests = decoding.Decoding.digests

    def changed_after(job):
        found = digests(job)
        Path(images.paths[1]).unlink()
        return found

    monkeypatch.setattr(decoding.Decoding, "digests", changed_after)
    with pytest.raises(UserError, match=r"001\.png changed while it was read"):
        opened(images, tmp_path / "cache")
    assert not entries(tmp_path / "cache")
