import pickle
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.decoding import BadImage, decode, decode_content, decode_to_fit, inspect, read_content

from .odd_bytes import exif, stored


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_decode_reads_every_colour_mode(tmp_path, mode):
    grey = np.full((10, 20), 255 if mode == "1" else 128, np.uint8)
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
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


def waves(width, height):
    """A smooth picture with a slope in each channel, so that shifted or stretched pixels are other values."""
    x, y = np.linspace(0, 1, width)[None, :], np.linspace(0, 1, height)[:, None]
    channels = [200 * x + 0 * y, 0 * x + 200 * y, 60 * (np.sin(5 * x) + np.cos(4 * y)) + 100]
    return Image.fromarray(np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8))


def plainly(path, size):
    """Decoded in full, then resized."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


@settings(deadline=None, derandomize=True)
@given(st.integers(40, 330), st.integers(40, 330), st.integers(4, 20), st.sampled_from(["L", "RGB", "CMYK"]))
def test_a_scaled_jpeg_is_close_to_the_full_one(tmp_path_factory, width, height, size, mode):
    path = tmp_path_factory.getbasetemp() / "scaled.jpg"
    waves(width, height).convert(mode).save(path, quality=95)
    result, expected = decode(str(path), size), plainly(path, size)
    assert result.shape == (size, size, 3)
    difference = np.abs(result.astype(int) - expected)
    assert difference.max() <= 6
    assert difference.mean() <= 1.5


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_photo_keeps_its_proportions_upright_and_is_only_made_smaller(tmp_path, orientation):
    file = tmp_path / "photo.jpg"
    wide = np.zeros((60, 120, 3), np.uint8)
    wide[:, :60] = 255  # bright on the left, which orientation 6 turns to the top
    Image.fromarray(wide).save(file, exif=exif(orientation))
    small, whole = (np.asarray(decode_to_fit(str(file), side)) for side in (40, 1000))
    assert (small.shape, whole.shape) == (
        ((20, 40, 3), (60, 120, 3)) if orientation == 1 else ((40, 20, 3), (120, 60, 3))
    )
    first, second = np.split(whole, 2, axis=1 if orientation == 1 else 0)
    assert first.mean() > 250
    assert second.mean() < 5


def test_only_jpegs_of_four_times_the_size_are_scaled(tmp_path, monkeypatch):
    sizes, resize = [], Image.Image.resize

    def watched(image, *arguments):
        sizes.append(image.size)
        return resize(image, *arguments)

    monkeypatch.setattr(Image.Image, "resize", watched)
    for name in ("image.jpg", "image.png"):
        waves(331, 200).save(tmp_path / name)
    for size in (5, 12, 25, 50, 51):
        decode(str(tmp_path / "image.jpg"), size)
    assert sizes == [(42, 25), (42, 25), (83, 50), (166, 100), (331, 200)]
    decode(str(tmp_path / "image.png"), 5)
    assert sizes[-1] == (331, 200)


@pytest.mark.parametrize("name", ["image.jpg", "image.png"])
def test_smaller_jpegs_and_other_formats_keep_every_bit(tmp_path, name):
    noise = np.random.default_rng(0).integers(0, 256, (99, 120, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / name)
    for size in (25, 60, 130):
        assert np.array_equal(decode(str(tmp_path / name), size), plainly(tmp_path / name, size))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_scaled_jpeg_is_turned_with_the_box_that_it_fills(tmp_path, orientation):
    upright = np.asarray(waves(331, 203))  # no multiple of 8, so that the last column and row are filled in part
    path, turned = tmp_path / "image.jpg", np.ascontiguousarray(stored(upright, orientation))
    Image.fromarray(turned).save(path, quality=98, subsampling=0, exif=exif(orientation))
    for size in (5, 12, 25, 50):
        expected = np.asarray(Image.fromarray(upright).resize((size, size), Image.Resampling.BILINEAR))
        difference = np.abs(decode(str(path), size).astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() <= 0.5
    assert inspect(str(path), path.read_bytes())[:2] == (331, 203)


@pytest.mark.parametrize(
    ("size", "expected"), [((800, 400), (50, 100)), ((60, 40), (40, 60)), ((100, 100), (100, 100))]
)
def test_a_picture_is_made_to_fit_upright_and_never_enlarged(tmp_path, size, expected):
    picture = Image.new("RGB", size, "white")
    picture.paste("red", (0, 0, size[0] // 2, size[1]))
    picture.save(tmp_path / "a.jpg", quality=95, exif=exif(6))  # its left is the top for a person
    found = decode_to_fit(str(tmp_path / "a.jpg"), 100)
    assert (found.mode, found.size) == ("RGB", expected)
    pixels = np.asarray(found).astype(int)
    assert np.abs(pixels[2, 2] - [255, 0, 0]).max() < 20
    assert np.abs(pixels[-3, -3] - [255, 255, 255]).max() < 20


@pytest.mark.parametrize("limit", [40, 60])  # Pillow refuses 100 pixels, or only warns
def test_the_own_limit_on_pixels_replaces_pillows(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    path, filters = str(tmp_path / "image.png"), list(warnings.filters)
    Image.new("RGB", (10, 10), "red").save(path)
    assert (decode(path, 4, megapixels=1e-4) == [255, 0, 0]).all()
    for read in (decode_content, inspect):
        with pytest.raises(BadImage) as caught:
            read(path, read_content(path), *[4] * (read is decode_content), megapixels=9e-5)
        assert caught.value.reason == "0.1 megapixels, more than the limit of 9e-05 (megapixels)"
    assert limit == Image.MAX_IMAGE_PIXELS
    assert warnings.filters == filters


def test_a_heic_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "photo.heic"
    path.write_bytes(b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + b"\0\0\0\x08mdat")
    with pytest.raises(BadImage, match=r"photo\.heic: damaged \("):
        decode(str(path), 8)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage) as caught:
        decode(str(path), 8)
    assert caught.value.reason == "HEIC, which needs the extra: pip install 'mlcil[heic]'"


def test_too_little_memory_is_not_the_files_fault(tmp_path, monkeypatch):
    Image.new("RGB", (10, 10)).save(tmp_path / "image.png")

    def out_of_memory(*_):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "getexif", out_of_memory)
    with pytest.raises(MemoryError):
        decode(str(tmp_path / "image.png"), 4)


def test_a_name_that_no_file_can_have_is_unreadable():
    for name, reason in (("a\0b.jpg", "embedded null byte"), ("a" * 300, "File name too long")):
        with pytest.raises(BadImage) as caught:
            decode(name, 8)
        assert caught.value.reason == f"unreadable ({reason})"


def test_decode_names_the_file_and_the_reason(tmp_path, broken_files):
    for path, reason in broken_files.items():
        with pytest.raises(BadImage) as caught:
            decode(str(path), 8)
        assert str(caught.value) == f"cannot read image {path}: {reason}"
        assert isinstance(caught.value, UserError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_program_that_is_called_a_photo_is_not_run(tmp_path):
    Image.new("RGB", (8, 8)).save(file := tmp_path / "a.jpg", "EPS")
    with pytest.raises(BadImage, match=r"a.jpg: not an image but a program \(EPS\)"):
        decode(str(file), 8)
