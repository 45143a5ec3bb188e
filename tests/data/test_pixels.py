import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.core.cache import DiskCache
from mlcil.core.errors import UserError
from mlcil.data.contents import Contents, fingerprinted, pixel_digests
from mlcil.data.decoding import BadImage, decode
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import (
    DecodedPixels,
    MemoryPixels,
    OpenedPixels,
    PixelStore,
    default_cache,
    open_pixels,
)

SIZE, MANY = 12, 10**9
ENTRY = SIZE * SIZE * 3 + 4  # bytes of one image in the cache


def indexed(paths: list[Path]) -> LabelledImages:
    return LabelledImages(tuple(map(str, paths)), np.zeros((len(paths), 1), np.int8), ("a",), "train")


def opened(images: LabelledImages, cache: Path | None, limit: int = MANY) -> OpenedPixels:
    return open_pixels(images, SIZE, cache=None if cache is None else DiskCache(cache, limit), contents=Contents())


def everything(store: PixelStore) -> np.ndarray:
    return store[np.arange(len(store))]


def expected(images: LabelledImages) -> np.ndarray:
    return np.stack([decode(path, SIZE) for path in images.paths])


@pytest.mark.parametrize("with_cache", [True, False])
def test_bad_rows_are_reported_and_the_others_usable(tmp_path, with_cache, write_images, broken_files):
    good, bad = write_images(tmp_path / "good"), broken_files
    images = indexed([Path(good.paths[0]), *bad, Path(good.paths[1])])
    lines = [f"cannot read image {path}: {reason}" for path, reason in bad.items()]
    for _ in range(2):  # built, then found
        result = opened(images, tmp_path / "cache" if with_cache else None)
        assert result.bad == dict(enumerate(lines, start=1))
        assert np.array_equal(result.store[np.array([6, 0])], expected(good)[[1, 0]])
        with pytest.raises(BadImage) as caught:
            result.store[np.array([0, 2])]
        assert str(caught.value) == lines[1]


def test_without_cache_everything_is_checked_and_nothing_stored(tmp_path, decoded, write_images):
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


def test_too_large_for_the_cache_falls_back_with_a_note(tmp_path, write_images):
    images = write_images(tmp_path / "images")
    result = opened(images, tmp_path / "cache", 5 * ENTRY - 1)
    assert isinstance(result.store, DecodedPixels)
    assert "decoding at every access" in (result.note or "")
    assert "\n" not in (result.note or "")
    assert not (tmp_path / "cache").exists()
    assert np.array_equal(everything(result.store), expected(images))


def test_a_cache_that_cannot_be_a_folder_is_a_user_error(tmp_path, write_images):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="cannot use the pixel cache"):
        opened(write_images(tmp_path / "images"), tmp_path / "cache")


def test_images_in_memory_are_resized_once():
    data = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    images = LabelledImages(("a", "b", "c"), np.zeros((3, 1), np.int8), ("x",), "train", data)
    same = open_pixels(images, 8, cache=None, contents=Contents())
    assert isinstance(same.store, MemoryPixels)
    assert np.array_equal(everything(same.store), data)
    larger = open_pixels(images, 10, cache=None, contents=Contents())
    wanted = [np.asarray(Image.fromarray(image).resize((10, 10), Image.Resampling.BILINEAR)) for image in data]
    assert np.array_equal(everything(larger.store), np.stack(wanted))
    assert larger.store[np.arange(3)].shape == (3, 10, 10, 3)


def test_every_store_can_be_pickled_and_knows_its_digests(tmp_path, write_images):
    images = fingerprinted(write_images(tmp_path / "images"), Contents())
    cached, decoded = opened(images, tmp_path / "cache").store, opened(images, None).store
    everything(cached)
    memory = MemoryPixels(expected(images), SIZE)
    for store in (cached, decoded, memory):
        copy = pickle.loads(pickle.dumps(store))
        assert len(copy) == 5
        assert np.array_equal(everything(copy), expected(images))
        assert copy.digests == store.digests
        assert store.digests == images.digests or store is memory
    assert len(set(memory.digests)) == 5


def test_images_in_memory_have_a_digest_of_their_pixels():
    data = np.random.default_rng(0).integers(0, 256, (3, 8, 6, 3), dtype=np.uint8)
    images = LabelledImages(("a", "b", "c"), np.zeros((3, 1), np.int8), ("x",), "train", data)
    known = fingerprinted(images, Contents())
    assert len(set(known.digests)) == 3
    assert fingerprinted(images.subset(np.array([2, 0])), Contents()).digests == (known.digests[2], known.digests[0])
    assert not set(pixel_digests(data.reshape(3, 6, 8, 3))) & set(known.digests)
    assert open_pixels(known, 10, cache=None, contents=Contents()).store.digests == known.digests


def test_default_cache(monkeypatch):
    monkeypatch.setenv("MLCIL_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/own")
    monkeypatch.delenv("MLCIL_CACHE")
    assert default_cache() == Path("/xdg/mlcil")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "mlcil"
