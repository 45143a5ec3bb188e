import numpy as np
import pytest
from PIL import Image, ImageCms

from mlcil.data.colours import to_rgb

from .odd_bytes import cmyk_profile


def first(image):
    """The pixels of the first row, as lists."""
    result = to_rgb(image)
    assert result.mode == "RGB"
    return np.asarray(result)[0].tolist()


@pytest.mark.parametrize(
    ("mode", "pixels", "expected"),
    [
        ("LA", [90, 0, 90, 255, 100, 51], [[255] * 3, [90] * 3, [224] * 3]),
        ("La", [0, 0, 90, 255, 20, 51], [[255] * 3, [90] * 3, [224] * 3]),  # 20 is a fifth of 100
        ("RGBA", [9, 8, 7, 0, 9, 8, 7, 255, 100, 0, 200, 51], [[255] * 3, [9, 8, 7], [224, 204, 244]]),
        ("RGBa", [0, 0, 0, 0, 9, 8, 7, 255, 20, 0, 40, 51], [[255] * 3, [9, 8, 7], [224, 204, 244]]),
    ],
)
def test_transparency_is_composed_on_white(mode, pixels, expected):
    assert first(Image.frombytes(mode, (3, 1), bytes(pixels))) == expected


def test_a_palette_with_alpha_is_composed_on_white():
    indices, alpha = Image.frombytes("P", (2, 1), b"\1\1"), Image.frombytes("L", (2, 1), b"\0\xff")
    indices.putpalette([0, 0, 0, 9, 8, 7])
    image = Image.merge("PA", [Image.frombytes("L", (2, 1), indices.tobytes()), alpha])
    image.putpalette([0, 0, 0, 9, 8, 7])
    assert first(image) == [[255] * 3, [9, 8, 7]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 257, 128 * 257 + 120, 65535], "<u2"), [0, 1, 128, 255]),
        (np.array([0, 257, 128 * 257 + 140, 65535], ">u2"), [0, 1, 129, 255]),
        (np.array([-5, 0, 257, 65535], np.int32), [0, 0, 1, 255]),
        (np.array([0, 2**16, 2**30, -1], np.int32), [0, 0, 64, 255]),  # 32 bits without a sign
        (np.array([-1, 0, 0.2, 1], np.float32), [0, 0, 51, 255]),
        (np.array([0, 1, 51, 255], np.float32), [0, 1, 51, 255]),
        (np.array([0, 257, 256 * 51.4, 60000], np.float32), [0, 1, 51, 233]),
        (np.array([0, 20000, np.nan, 100000], np.float32), [0, 51, 0, 255]),
        (np.array([-np.inf, 0.2, np.nan, np.inf], np.float32), [0, 51, 0, 255]),
    ],
)
def test_deep_grey_is_scaled_by_what_it_can_hold(values, expected):
    image = Image.fromarray(values[None])
    assert image.mode in {"I;16", "I;16B", "I", "F"}
    assert first(image) == [[value] * 3 for value in expected]


def test_one_of_the_16_bit_greys_may_be_transparent():
    image = Image.fromarray(np.array([[0, 1, 2 * 257]], np.uint16))
    image.info["transparency"] = 1
    assert first(image) == [[0] * 3, [255] * 3, [2] * 3]


def test_cmyk_is_converted_by_a_profile_that_fits():
    inks = [[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [0, 0, 0, 255]]
    image = Image.frombytes("CMYK", (4, 1), bytes(np.ravel(inks).tolist()))
    plain = [[255, 255, 255], [0, 255, 255], [255, 0, 0], [0, 0, 0]]
    assert first(image) == plain
    image.info["icc_profile"] = cmyk_profile()
    greys = [[255] * 3, [185] * 3, [119] * 3, [0] * 3]  # those of sRGB for L* = 100, 75, 50 and 0
    assert np.abs(np.array(first(image)) - greys).max() <= 1
    for unfit in (cmyk_profile()[:200], b"", ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()):
        image.info["icc_profile"] = unfit
        assert first(image) == plain


def test_lab_is_converted():
    grey, red = [round(2.55 * 50), 0, 0], [138, 81, 70]  # a* and b* are signed
    result = np.array(first(Image.frombytes("LAB", (2, 1), bytes(grey + red))))
    assert np.abs(result - [[119, 119, 119], [255, 0, 0]]).max() <= 5


@pytest.mark.parametrize("mode", ["1", "L", "RGBX", "YCbCr", "HSV"])
def test_other_modes_keep_their_colours(mode):
    assert first(Image.new("RGB", (2, 1), "white").convert(mode)) == [[255] * 3] * 2
