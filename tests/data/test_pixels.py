import errno
import io
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data import pixels
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import (
    BadImage,
    CachedPixels,
    DecodedPixels,
    MemoryPixels,
    OpenedPixels,
    decode,
    default_cache,
    open_pixels,
)

SIZE, MANY = 12, 10**9
ENTRY = SIZE * SIZE * 3  # bytes of one image in the cache

# Opens the folder argv[1] with the cache argv[2]; every decoding is slow and leaves a line in argv[3].
SLOW_BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from mlcil.data import pixels
from mlcil.data.images import LabelledImages
original, pixels.CHUNK = pixels._decoded, 4
def slow(path, content, size):
    time.sleep(0.05)
    with open(sys.argv[3], "a") as log:
        log.write(path + "\\n")
    return original(path, content, size)
pixels._decoded = slow
paths = tuple(map(str, sorted(Path(sys.argv[1]).iterdir())))
images = LabelledImages(paths, np.zeros((len(paths), 1), np.int8), ("a",), "train")
opened = pixels.open_pixels(images, 12, cache=Path(sys.argv[2]), limit_bytes=10**9, workers=1)
print(int(opened.store[np.arange(len(paths))].sum()), type(opened.store).__name__)
"""


def write_images(folder: Path, count: int = 5, seed: int = 0) -> LabelledImages:
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for number in range(count):
        image = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return indexed(sorted(folder.iterdir()))


def indexed(paths: list[Path]) -> LabelledImages:
    return LabelledImages(tuple(map(str, paths)), np.zeros((len(paths), 1), np.int8), ("a",), "train")


def opened(images: LabelledImages, cache: Path | None, limit: int = MANY) -> OpenedPixels:
    return open_pixels(images, SIZE, cache=cache, limit_bytes=limit)


def everything(store: pixels.PixelStore) -> np.ndarray:
    return store[np.arange(len(store))]


def expected(images: LabelledImages) -> np.ndarray:
    return np.stack([decode(path, SIZE) for path in images.paths])


def entries(cache: Path) -> set[str]:
    return {path.stem for path in cache.glob("*.u8")}


@pytest.fixture
def decoded(monkeypatch) -> Iterator[list[str]]:
    """The paths decoded so far in this process."""
    paths: list[str] = []
    original = pixels._decoded

    def counted(path: str, content: bytes, size: int) -> np.ndarray:
        paths.append(path)
        return original(path, content, size)

    monkeypatch.setattr(pixels, "_decoded", counted)
    return paths


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_decode_reads_every_colour_mode(tmp_path, mode):
    grey = np.full((10, 20), 255 if mode == "1" else 128, np.uint8)
    image = (
        Image.fromarray(grey.astype(np.uint16) * 257)
        if mode == "I;16"
        else Image.fromarray(grey).convert(mode)
    )
    path = tmp_path / ("image.tiff" if mode in {"CMYK", "YCbCr"} else "image.png")
    image.save(path)
    result = decode(str(path), 7)
    assert result.shape == (7, 7, 3)
    assert result.dtype == np.uint8
    assert np.abs(result.astype(int) - int(grey[0, 0])).max() <= 2


def test_decode_squashes_bilinearly(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 20, 3), dtype=np.uint8))
    image.save(tmp_path / "image.png")
    wanted = np.asarray(image.resize((9, 9), Image.Resampling.BILINEAR))
    assert np.array_equal(decode(str(tmp_path / "image.png"), 9), wanted)


def test_decode_lets_no_warning_out(tmp_path, monkeypatch):
    palette = Image.fromarray(np.full((8, 8), 3, np.uint8)).convert("P")
    palette.save(tmp_path / "palette.png", transparency=bytes(range(256)))
    assert decode(str(tmp_path / "palette.png"), 4).shape == (4, 4, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 64 pixels only warn, 100 are refused
    filters = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: decode(str(tmp_path / "palette.png"), 4), range(50)))
    assert warnings.filters == filters
    Image.new("RGB", (10, 10)).save(tmp_path / "bomb.png")
    with pytest.raises(BadImage, match=r"bomb\.png: too many pixels"):
        decode(str(tmp_path / "bomb.png"), 4)


def broken_files(folder: Path) -> dict[Path, str]:
    folder.mkdir(exist_ok=True)
    content, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(content, "JPEG")
    (folder / "half.jpg").write_bytes(content.getvalue()[: len(content.getvalue()) // 2])
    (folder / "text.jpg").write_text("not pixels")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "folder.jpg").mkdir()
    reasons = {"half": "truncated", "text": "not an image", "empty": "empty", "lost": "missing"}
    reasons["folder"] = "not an image but a folder"
    return {folder / f"{name}.jpg": reason for name, reason in reasons.items()}


def test_decode_names_the_file_and_the_reason(tmp_path):
    for path, reason in broken_files(tmp_path).items():
        with pytest.raises(BadImage) as caught:
            decode(str(path), 8)
        assert str(caught.value) == f"cannot read image {path}: {reason}"
        assert isinstance(caught.value, UserError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("with_cache", [True, False])
def test_bad_rows_are_reported_and_the_others_usable(tmp_path, with_cache):
    good, bad = write_images(tmp_path / "good"), broken_files(tmp_path / "bad")
    images = indexed([Path(good.paths[0]), *bad, Path(good.paths[1])])
    lines = [f"cannot read image {path}: {reason}" for path, reason in bad.items()]
    for _ in range(2):  # built, then found
        result = opened(images, tmp_path / "cache" if with_cache else None)
        assert result.bad == dict(enumerate(lines, start=1))
        assert np.array_equal(result.store[np.array([6, 0])], expected(good)[[1, 0]])


def test_cache_equals_decoding_and_decodes_once(tmp_path, decoded):
    images, progress = write_images(tmp_path / "images", 70), []
    wanted = expected(images)
    decoded.clear()
    first = open_pixels(
        images, SIZE, cache=tmp_path / "cache", limit_bytes=MANY, on_progress=lambda *at: progress.append(at)
    )
    assert isinstance(first.store, CachedPixels)
    assert (len(first.store), first.store.size, first.bad, first.note) == (70, SIZE, {}, None)
    assert np.array_equal(everything(first.store), wanted)
    assert sorted(decoded) == list(images.paths)
    assert progress == [(64, 70), (70, 70)]
    second = opened(images, tmp_path / "cache")
    assert np.array_equal(everything(second.store), wanted)
    assert len(decoded) == 70
    rows = np.array([5, 5, 0])
    assert np.array_equal(second.store[rows], wanted[rows])
    assert second.store[rows[:0]].shape == (0, SIZE, SIZE, 3)


def test_without_cache_everything_is_checked_and_nothing_stored(tmp_path, decoded):
    images = write_images(tmp_path / "images")
    result = opened(images, None)
    assert isinstance(result.store, DecodedPixels)
    assert len(decoded) == 5
    assert np.array_equal(everything(result.store), expected(images))
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_no_images_at_all(tmp_path):
    for cache in (tmp_path / "cache", None):
        result = opened(indexed([]), cache)
        assert everything(result.store).shape == (0, SIZE, SIZE, 3)


def test_key_follows_content_order_and_size_not_paths(tmp_path):
    cache = tmp_path / "cache"
    images, copies = write_images(tmp_path / "one"), write_images(tmp_path / "two")
    for same in (images, copies):
        opened(same, cache)
        assert len(entries(cache)) == 1
    opened(images.subset(np.array([1, 0, 2, 3, 4])), cache)
    assert len(entries(cache)) == 2
    open_pixels(images, SIZE + 1, cache=cache, limit_bytes=MANY)
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


def slow_builder(folder: Path, cache: Path, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW_BUILDER, str(folder), str(cache), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_killed_build_is_continued(tmp_path, decoded):
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


def test_two_builders_at_once_build_once(tmp_path):
    images, cache, log = write_images(tmp_path / "images", 10), tmp_path / "cache", tmp_path / "log"
    with (
        slow_builder(tmp_path / "images", cache, log) as one,
        slow_builder(tmp_path / "images", cache, log) as two,
    ):
        outputs = [builder.communicate()[0].split() for builder in (one, two)]
    assert outputs == [[str(expected(images).sum()), "CachedPixels"]] * 2
    assert sorted(log.read_text().split()) == list(images.paths)


@pytest.mark.parametrize("damage", ["no manifest", "short", "not JSON", "other count"])
def test_a_damaged_entry_is_rebuilt(tmp_path, damage):
    images, cache = write_images(tmp_path / "images"), tmp_path / "cache"
    opened(images, cache)
    manifest, data = next(cache.glob("*.json")), next(cache.glob("*.u8"))
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "short":
        os.truncate(data, 10)
    else:
        manifest.write_text(
            "{" if damage == "not JSON" else manifest.read_text().replace('"count": 5', '"count": 4')
        )
    assert np.array_equal(everything(opened(images, cache).store), expected(images))


def test_the_least_recently_used_entry_makes_room(tmp_path):
    cache, limit = tmp_path / "cache", 10 * ENTRY
    first, second, third = (write_images(tmp_path / str(seed), 4, seed) for seed in range(3))
    keys = []
    for age, images in ((30, first), (20, second)):
        opened(images, cache, limit)
        (key,) = entries(cache) - set(keys)
        keys.append(key)
        os.utime(cache / f"{key}.u8", (time.time() - age,) * 2)
    opened(first, cache, limit)  # now the second is the oldest
    opened(third, cache, limit)
    assert keys[0] in entries(cache)
    assert keys[1] not in entries(cache)
    assert sum(path.stat().st_size for path in cache.glob("*.u8")) <= limit


def test_an_entry_in_use_is_not_removed(tmp_path):
    cache, limit = tmp_path / "cache", 6 * ENTRY
    first, second = (write_images(tmp_path / str(seed), 4, seed) for seed in range(2))
    used = opened(first, cache, limit)
    refused = opened(second, cache, limit)
    assert isinstance(refused.store, DecodedPixels)
    assert np.array_equal(everything(used.store), expected(first))
    del used
    assert isinstance(opened(second, cache, limit).store, CachedPixels)
    assert len(entries(cache)) == 1


def test_too_large_for_the_cache_falls_back_with_a_note(tmp_path):
    images = write_images(tmp_path / "images")
    result = opened(images, tmp_path / "cache", 5 * ENTRY - 1)
    assert isinstance(result.store, DecodedPixels)
    assert "decoding at every access" in (result.note or "")
    assert "\n" not in (result.note or "")
    assert not (tmp_path / "cache").exists()
    assert np.array_equal(everything(result.store), expected(images))


def test_a_full_disk_is_a_user_error_and_can_be_repeated(tmp_path, monkeypatch, decoded):
    images, cache, calls = write_images(tmp_path / "images", 12), tmp_path / "cache", []
    original = os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 3:  # the pixels of the second chunk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(handle)

    monkeypatch.setattr(pixels, "CHUNK", 4)
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


def test_a_file_size_limit_of_the_system_is_a_user_error(tmp_path):
    images, cache = write_images(tmp_path / "images", 12), tmp_path / "cache"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n" + SLOW_BUILDER
    command = [sys.executable, "-c", limited, str(tmp_path / "images"), str(cache), str(tmp_path / "log")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].startswith("mlcil.core.errors.UserError: cannot use the pixel cache")
    assert not entries(cache)
    assert np.array_equal(everything(opened(images, cache).store), expected(images))


def test_a_cache_that_cannot_be_a_folder_is_a_user_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="cannot use the pixel cache"):
        opened(write_images(tmp_path / "images"), tmp_path / "cache")


def test_a_file_changed_during_the_build_is_not_cached(tmp_path, monkeypatch):
    images = write_images(tmp_path / "images")
    reserve = pixels._reserve

    def change_then_reserve(entry, limit):
        Path(images.paths[1]).unlink()
        return reserve(entry, limit)

    monkeypatch.setattr(pixels, "_reserve", change_then_reserve)
    with pytest.raises(UserError, match=r"001\.png changed while it was read"):
        opened(images, tmp_path / "cache")
    assert not entries(tmp_path / "cache")


def test_images_in_memory_are_resized_once():
    data = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    images = LabelledImages(("a", "b", "c"), np.zeros((3, 1), np.int8), ("x",), "train", data)
    same = open_pixels(images, 8, cache=None, limit_bytes=0)
    assert isinstance(same.store, MemoryPixels)
    assert np.array_equal(everything(same.store), data)
    larger = open_pixels(images, 10, cache=None, limit_bytes=0)
    wanted = [
        np.asarray(Image.fromarray(image).resize((10, 10), Image.Resampling.BILINEAR)) for image in data
    ]
    assert np.array_equal(everything(larger.store), np.stack(wanted))
    assert (len(larger.store), larger.store.size) == (3, 10)


def test_every_store_can_be_pickled(tmp_path):
    images = write_images(tmp_path / "images")
    cached = opened(images, tmp_path / "cache").store
    everything(cached)  # mapped now; the copy must map the file itself, not carry it
    assert len(pickle.dumps(cached)) < 1000
    for store in (cached, DecodedPixels(images.paths, SIZE), MemoryPixels(expected(images), SIZE)):
        copy = pickle.loads(pickle.dumps(store))
        assert (len(copy), copy.size) == (5, SIZE)
        assert np.array_equal(everything(copy), expected(images))


def test_default_cache(monkeypatch):
    monkeypatch.setenv("MLCIL_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/own")
    monkeypatch.delenv("MLCIL_CACHE")
    assert default_cache() == Path("/xdg/mlcil")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "mlcil"
