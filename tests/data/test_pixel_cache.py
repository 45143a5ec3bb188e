"""Decoded images are kept one by one: what is there is never decoded again, and what is lost is."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.core.cache import DiskCache
from mlcil.core.cached_rows import CachedRows
from mlcil.core.errors import UserError
from mlcil.data.contents import Contents, fingerprinted
from mlcil.data.decoding import BadImage, decode
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import DECODING, DecodedPixels, OpenedPixels, PixelStore, open_pixels

SIZE, MANY = 12, 10**9
ENTRY = SIZE * SIZE * 3 + 4  # bytes of one image in the cache

# Opens the folder argv[1] with the cache argv[2]; every decoding is slow.
SLOW_BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from mlcil.core.cache import DiskCache
from mlcil.data import pixels
from mlcil.data.contents import Contents
from mlcil.data.images import LabelledImages
original, pixels.CHUNK = pixels.decode_content, 4
def slow(*arguments):
    time.sleep(0.05)
    return original(*arguments)
pixels.decode_content = slow
paths = tuple(map(str, sorted(Path(sys.argv[1]).iterdir())))
images = LabelledImages(paths, np.zeros((len(paths), 1), np.int8), ("a",), "train")
opened = pixels.open_pixels(images, 12, cache=DiskCache(Path(sys.argv[2]), 10**9), contents=Contents(), workers=1)
print(int(opened.store[np.arange(len(paths))].sum()), type(opened.store).__name__)
"""


def indexed(paths: list[Path]) -> LabelledImages:
    return LabelledImages(tuple(map(str, paths)), np.zeros((len(paths), 1), np.int8), ("a",), "train")


def opened(images: LabelledImages, cache: Path, limit: int = MANY, **others) -> OpenedPixels:
    return open_pixels(images, SIZE, cache=DiskCache(cache, limit), contents=Contents(), **others)


def everything(store: PixelStore) -> np.ndarray:
    return store[np.arange(len(store))]


def expected(images: LabelledImages) -> np.ndarray:
    return np.stack([decode(path, SIZE) for path in images.paths])


def entries(cache: Path) -> set[Path]:
    return {path for path in cache.glob("pixels-*/*/*") if path.suffix != ".partial"}


def slow_builder(folder: Path, cache: Path, first: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", first + SLOW_BUILDER, str(folder), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_cache_equals_decoding_and_decodes_once(tmp_path, decoded, write_images):
    images, progress = write_images(tmp_path / "images", 70), []
    wanted = expected(images)
    first = opened(images, tmp_path / "cache", on_progress=lambda *at: progress.append(at))
    assert isinstance(first.store, CachedRows)
    assert (len(first.store), first.bad, first.note) == (70, {}, None)
    assert np.array_equal(everything(first.store), wanted)
    assert sorted(decoded) == list(images.paths)
    assert progress == [(done, 70) for done in range(1, 71)]
    second = opened(images, tmp_path / "cache")
    assert np.array_equal(everything(second.store), wanted)
    assert len(decoded) == 70
    rows = np.array([5, 5, 0])
    for _ in range(2):  # the first reading of a row is another than the later ones
        assert np.array_equal(second.store[rows], wanted[rows])
    assert second.store[rows[:0]].shape == (0, SIZE, SIZE, 3)


def test_a_file_is_named_after_content_decoding_and_size(tmp_path, write_images):
    images = fingerprinted(write_images(tmp_path / "images", 2), Contents())
    assert opened(images, tmp_path / "cache").store.digests == images.digests
    names = [digest.hex() for digest in images.digests]
    folder = tmp_path / "cache" / f"pixels-{DECODING}-{SIZE}"
    assert entries(tmp_path / "cache") == {folder / name[:2] / name[2:] for name in names}
    first = (folder / names[0][:2] / names[0][2:]).read_bytes()
    assert first[:-4] == expected(images)[0].tobytes()
    assert len(first) == ENTRY


def test_only_what_is_new_is_decoded(tmp_path, decoded, write_images):
    cache = tmp_path / "cache"
    images, copies = write_images(tmp_path / "one", 6), write_images(tmp_path / "two", 6)
    opened(images.subset(np.arange(5)), cache)
    decoded.clear()
    opened(copies.subset(np.arange(5)), cache)  # other names
    opened(images.subset(np.array([4, 1, 0])), cache)  # another order
    assert decoded == []
    progress: list[tuple[int, int]] = []
    opened(images, cache, on_progress=lambda *at: progress.append(at))
    assert decoded == [images.paths[5]]
    assert progress == [(6, 6)]  # what is there already counts as done
    assert len(entries(cache)) == 6
    Image.new("RGB", (9, 9), "red").save(images.paths[2])
    changed = opened(images, cache)
    assert decoded == [images.paths[5], images.paths[2]]
    assert np.array_equal(everything(changed.store), expected(images))
    open_pixels(images, SIZE + 1, cache=DiskCache(cache, MANY), contents=Contents())
    assert len(decoded) == 8


def test_the_same_photo_under_two_names_is_kept_once(tmp_path, decoded, write_images, broken_files):
    (half,) = (path for path, reason in broken_files.items() if reason == "truncated")
    (photo,) = write_images(tmp_path / "images", 1).paths
    for original in (half, Path(photo)):
        shutil.copy(original, tmp_path / f"copy of {original.name}")
    images = indexed([Path(photo), half, tmp_path / "copy of 000.png", tmp_path / "copy of half.jpg"])
    result = opened(images, tmp_path / "cache")
    assert result.bad == {row: f"cannot read image {images.paths[row]}: truncated" for row in (1, 3)}
    assert np.array_equal(result.store[np.array([0, 2])], expected(images.subset(np.array([0, 0]))))
    assert decoded.count(photo) == 1
    assert len(entries(tmp_path / "cache")) == 1


def test_a_missing_file_that_appears_is_read(tmp_path):
    images = indexed([tmp_path / "late.png"])
    assert opened(images, tmp_path / "cache").bad
    Image.new("RGB", (9, 9), "red").save(tmp_path / "late.png")
    assert not opened(images, tmp_path / "cache").bad


def test_a_killed_build_is_continued(tmp_path, decoded, write_images):
    images, cache = write_images(tmp_path / "images", 40), tmp_path / "cache"
    with slow_builder(tmp_path / "images", cache) as builder:
        wait_for(lambda: len(entries(cache)) >= 8)
        builder.send_signal(signal.SIGKILL)
    done = len(entries(cache))
    assert 8 <= done < 40
    result = opened(images, cache)
    assert sorted(decoded) == list(images.paths[done:])
    assert np.array_equal(everything(result.store), expected(images))


def test_two_builders_at_once_do_not_disturb_each_other(tmp_path, write_images):
    images, cache = write_images(tmp_path / "images", 10), tmp_path / "cache"
    with slow_builder(tmp_path / "images", cache) as one, slow_builder(tmp_path / "images", cache) as two:
        outputs = [builder.communicate()[0].split() for builder in (one, two)]
    assert outputs == [[str(expected(images).sum()), "CachedRows"]] * 2
    assert len(entries(cache)) == len(list(cache.glob("*/*/*"))) == 10


@pytest.mark.parametrize("damage", ["gone", "short", "long", "one bit", "folder gone", "a folder"])
def test_a_damaged_row_is_decoded_again_and_written_back(tmp_path, damage, decoded, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    store, wanted = opened(images, cache).store, expected(images)
    decoded.clear()
    file = Path(list(store.paths())[3])
    whole = file.read_bytes()
    if damage == "folder gone":
        shutil.rmtree(cache)
    else:
        file.unlink()
    contents = {"short": whole[:-1], "long": whole + b"x", "one bit": bytes([whole[0] ^ 1]) + whole[1:]}
    if damage in contents:
        file.write_bytes(contents[damage])
    if damage == "a folder":
        file.mkdir()
    assert np.array_equal(store[np.array([3, 1, 3])], wanted[[3, 1, 3]])
    assert sorted(decoded) == [images.paths[row] for row in ((1, 3) if damage == "folder gone" else (3,))]
    if damage != "a folder":  # which is in the way
        assert file.read_bytes() == whole
    assert np.array_equal(everything(pickle.loads(pickle.dumps(store))), wanted)


def test_rows_in_each_others_place_are_decoded_again(tmp_path, decoded, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    store = opened(images, cache).store
    one, other = (Path(path) for path in list(store.paths())[:2])
    one.rename(tmp_path / "one")
    other.rename(one)
    (tmp_path / "one").rename(other)
    decoded.clear()
    assert np.array_equal(everything(store), expected(images))
    assert sorted(decoded) == sorted(images.paths[:2])


def test_a_row_of_an_earlier_version_is_taken(tmp_path, decoded, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    store = opened(images, cache).store
    for path in map(Path, store.paths()):
        values = path.read_bytes()[:-4]
        path.write_bytes(values + zlib.crc32(values).to_bytes(4, "little"))
    decoded.clear()
    assert np.array_equal(everything(store), expected(images))
    assert not decoded


def test_a_row_lost_with_its_image_is_one_line(tmp_path, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    store = opened(images, cache).store
    everything(store)
    shutil.rmtree(cache)
    Path(images.paths[1]).unlink()
    with pytest.raises(BadImage) as caught:
        everything(store)
    assert str(caught.value) == f"cannot read image {images.paths[1]}: missing"
    Image.new("RGB", (9, 9)).save(images.paths[2])
    with pytest.raises(UserError, match=r"image .*002\.png changed while it was read; repeat the command$"):
        store[np.array([2])]


def test_a_lost_row_is_served_where_nothing_can_be_written(tmp_path, write_images):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    store = opened(images, cache).store
    shutil.rmtree(cache)
    cache.write_text("in the way")
    assert np.array_equal(everything(store), expected(images))


def test_rows_in_use_are_not_removed(tmp_path, write_images):
    cache, limit = tmp_path / "cache", 6 * ENTRY
    first, second = (write_images(tmp_path / str(seed), 4, seed) for seed in range(2))
    used = opened(first, cache, limit)
    refused = opened(second, cache, limit)
    assert isinstance(refused.store, DecodedPixels)
    assert "cache_gb" in (refused.note or "")
    assert set(map(Path, used.store.paths())) <= entries(cache)
    del used
    assert isinstance(opened(second, cache, limit).store, CachedRows)
    assert len(entries(cache)) == 6


def test_a_row_written_back_takes_no_room_from_others(tmp_path, decoded, write_images):
    cache, limit = tmp_path / "cache", 6 * ENTRY
    first, second = (write_images(tmp_path / str(seed), 4, seed) for seed in range(2))
    store = pickle.loads(pickle.dumps(opened(first, cache, limit).store))  # as in a worker process of a loader
    others = opened(second, cache, limit).store
    for _ in range(2):
        assert np.array_equal(everything(store), expected(first))
    assert set(map(Path, others.paths())) <= entries(cache)
    assert len(entries(cache)) == 6


def test_a_full_disk_is_a_user_error_and_can_be_repeated(tmp_path, monkeypatch, decoded, write_images):
    images, cache, original = write_images(tmp_path / "images", 12), tmp_path / "cache", os.replace
    calls: list[str] = []

    def full(partial: str, path: str) -> None:
        calls.append(path)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(partial, path)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        opened(images, cache)
    assert str(cache) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(list(cache.glob("*/*/*"))) == 5  # and no partial file
    decoded.clear()
    result = opened(images, cache)
    assert sorted(decoded) == list(images.paths[5:])
    assert np.array_equal(everything(result.store), expected(images))


def test_a_file_size_limit_of_the_system_is_a_user_error(tmp_path, write_images):
    images, cache = write_images(tmp_path / "images", 12), tmp_path / "cache"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
    with slow_builder(tmp_path / "images", cache, limited) as builder:
        _, errors = builder.communicate()
    assert errors.splitlines()[-1].startswith("mlcil.core.errors.UserError: cannot use the pixel cache")
    assert not list(cache.glob("*/*/*"))
    assert np.array_equal(everything(opened(images, cache).store), expected(images))


def test_a_file_changed_before_it_is_decoded_is_not_cached(tmp_path, write_images):
    images, index = write_images(tmp_path / "images"), tmp_path / "files.sqlite"
    for path in images.paths:
        os.utime(path, (1000, 1000))
    contents = Contents(index)
    known = fingerprinted(images, contents)
    content = Path(images.paths[1]).read_bytes()
    Path(images.paths[1]).write_bytes(content[:-1] + b"?")
    os.utime(images.paths[1], (1000, 1000))  # so that the index is deceived
    with pytest.raises(UserError, match=r"001\.png changed while it was read; repeat the command$"):
        open_pixels(known, SIZE, cache=DiskCache(tmp_path / "cache", MANY), contents=contents)
    again = open_pixels(images, SIZE, cache=DiskCache(tmp_path / "cache", MANY), contents=contents)
    assert again.store.digests == fingerprinted(images, Contents()).digests != known.digests
