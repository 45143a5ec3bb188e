import io
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.decoding import BadImage, decode


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


def test_a_scaled_jpeg_may_be_truncated_and_is_not_turned(tmp_path):
    exif, content = Image.Exif(), io.BytesIO()
    exif[274] = 6  # its orientation
    waves(300, 200).save(content, "JPEG", exif=exif)
    path = tmp_path / "image.jpg"
    path.write_bytes(content.getvalue())
    assert np.abs(decode(str(path), 8).astype(int) - plainly(path, 8)).max() <= 6
    path.write_bytes(content.getvalue()[: len(content.getvalue()) * 2 // 3])
    with pytest.raises(BadImage, match=r"image\.jpg: truncated"):
        decode(str(path), 8)


def test_decode_lets_no_warning_out(tmp_path, monkeypatch):
    palette = Image.fromarray(np.full((8, 8), 3, np.uint8)).convert("P")
    palette.save(tmp_path / "palette.png", transparency=bytes(range(256)))
    assert decode(str(tmp_path / "palette.png"), 4).shape == (4, 4, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # 64 pixels only warn, 100 are refused
    filters = list(warnings.filters)
    decode(str(tmp_path / "palette.png"), 4)
    assert warnings.filters == filters
    Image.new("RGB", (10, 10)).save(tmp_path / "bomb.png")
    with pytest.raises(BadImage, match=r"bomb\.png: too many pixels"):
        decode(str(tmp_path / "bomb.png"), 4)


def test_decode_names_the_file_and_the_reason(tmp_path, broken_files):
    for path, reason in broken_files.items():
        with pytest.raises(BadImage) as caught:
            decode(str(path), 8)
        assert str(caught.value) == f"cannot read image {path}: {reason}"
        assert isinstance(caught.value, UserError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
