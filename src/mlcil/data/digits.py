"""A small real data set that needs no download: canvases with one to four handwritten digits."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..core.errors import UserError
from .images import PRESENT, DataSet, LabelledImages

CLASSES = tuple("0123456789")
MOST = 4  # digits on a canvas
MOST_BYTES = 4 * 10**9  # of all canvases
TRIES = 24  # to find room for a digit
SMALLEST = 16  # pixels; on a smaller canvas a digit cannot be read
TRAIN_SHARE = 0.7  # of the writers' digits, per class

Box = tuple[int, int, int]  # left, top, side


def read_digits(train: int = 2000, test: int = 1000, size: int = 64, seed: int = 0) -> DataSet:
    """Compose canvases of handwritten digits (scikit-learn's `load_digits`); a label says which are there.

    No handwritten digit is used in both parts. Every canvas has a random stream of its own, so the
    first hundred canvases are the same whether a hundred or a thousand are asked for.

    Arguments:
        train, test, size, seed: see `sources.SOURCES`.

    Returns:
        Both parts with pixels uint8 (N, size, size, 3) and labels int8 (N, 10), which are shared and read-only.

    Raises:
        UserError: a number is too small, or the canvases would be too large.
    """
    for name, value, least in (("train", train, 1), ("test", test, 1), ("size", size, SMALLEST), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"got {value} for digits option {name}, expected at least {least}")
    if (needed := (train + test) * size**2 * 3) > MOST_BYTES:
        raise UserError(
            f"digits with {train + test:,} canvases of {size} pixels need {needed / 1e9:,.3g} GB of memory, "
            f"expected at most {MOST_BYTES / 1e9:.3g} GB"
        )
    return _composed(train, test, size, seed)


@lru_cache(maxsize=1)  # runs that follow one another often have the same
def _composed(train: int, test: int, size: int, seed: int) -> DataSet:
    for_train, for_test = _handwriting()
    return DataSet(
        _compose(for_train, train, size, (seed, 0), "train"),
        _compose(for_test, test, size, (seed, 1), "test"),
    )


def _handwriting() -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """The training and the test digits: for each class uint8 (n, 8, 8)."""
    from sklearn.datasets import load_digits

    source = load_digits()
    glyphs = (source.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8)
    # Split before anything is drawn, and by a rule that no seed changes: no digit is ever in both parts.
    order = np.random.default_rng(0).permutation(len(glyphs))
    groups = [glyphs[order[source.target[order] == digit]] for digit in range(10)]
    cuts = [round(TRAIN_SHARE * len(group)) for group in groups]
    pairs = list(zip(groups, cuts, strict=True))
    return [group[:cut] for group, cut in pairs], [group[cut:] for group, cut in pairs]


def _compose(
    glyphs: list[NDArray[np.uint8]], count: int, size: int, stream: tuple[int, int], split: str
) -> LabelledImages:
    pixels = np.empty((count, size, size, 3), dtype=np.uint8)
    labels = np.zeros((count, len(CLASSES)), dtype=np.int8)
    for row in range(count):
        random = np.random.default_rng((*stream, row))
        digits = random.permutation(len(CLASSES))[: random.integers(1, MOST + 1)]
        labels[row, digits] = PRESENT
        pixels[row] = _draw(random, [glyphs[digit] for digit in digits], size)
    for shared in (pixels, labels):
        shared.flags.writeable = False
    paths = tuple(f"digits/{split}/{row:06d}" for row in range(count))
    return LabelledImages(paths, labels, CLASSES, split, pixels)


def _draw(random: np.random.Generator, choices: list[NDArray[np.uint8]], size: int) -> NDArray[np.uint8]:
    """One canvas (size, size, 3) with one glyph of every choice."""
    background = random.uniform(15, 130, size=3) * 0.4 + random.uniform(15, 130) * 0.6
    canvas = _clutter(random, background, size)
    for box, choice in zip(_places(random, len(choices), size), choices, strict=True):
        left, top, side = box
        glyph = Image.fromarray(choice[random.integers(len(choice))]).resize((side, side), Image.Resampling.BICUBIC)
        ink = np.asarray(glyph, dtype=np.float32)[..., None] / 255  # (side, side, 1), 1 where the pen was
        patch = canvas[top : top + side, left : left + side]
        patch += ink * (_pen(random, background) - patch)
    canvas += random.standard_normal(canvas.shape, dtype=np.float32) * np.float32(random.uniform(2, 12))
    return canvas.clip(0, 255).astype(np.uint8)


def _pen(random: np.random.Generator, background: NDArray[np.float64]) -> NDArray[np.float64]:
    """A colour (3,) that stands out, as chalk does: lighter than the background."""
    return (background + random.uniform(80, 170, size=3)).clip(0, 255)


def _clutter(random: np.random.Generator, background: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """A background (size, size, 3) with a slope of light, faint blobs and faint strokes."""
    image = Image.new("RGB", (size, size), _faint(random, background, 0))
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(0, 4)):
        x, y, radius = random.uniform(0, size, size=3) * (1, 1, 0.25)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=_faint(random, background, 25))
    for _ in range(random.integers(0, 5)):
        ends = tuple(random.uniform(0, size, size=4).tolist())
        draw.line(ends, fill=_faint(random, background, 45), width=int(random.integers(1, 2 + size // 48)))
    ramp = np.linspace(-1, 1, size, dtype=np.float32)
    slope_x, slope_y = random.uniform(-15, 15, size=2).astype(np.float32)
    light = ramp[:, None] * slope_y + ramp[None, :] * slope_x  # (size, size)
    canvas: NDArray[np.float32] = np.asarray(image, dtype=np.float32) + light[..., None]
    return canvas


def _faint(random: np.random.Generator, colour: NDArray[np.float64], strength: float) -> tuple[int, int, int]:
    red, green, blue = (colour + random.uniform(-strength, strength, size=3)).clip(0, 255).astype(int).tolist()
    return red, green, blue


def _places(random: np.random.Generator, count: int, size: int) -> list[Box]:
    """Squares for `count` digits, each the least crowded of a few random tries."""
    boxes: list[Box] = []
    for _ in range(count):
        # The longer the search for free room takes, the smaller the digit becomes.
        scales = 0.25 + random.uniform(0, 0.2, size=TRIES) * np.linspace(1, 0, TRIES)
        spots = random.uniform(size=(TRIES, 2))
        best, least = (0, 0, 0), float("inf")
        for scale, (x, y) in zip(scales.tolist(), spots.tolist(), strict=True):
            side = round(scale * size)
            box = (int(x * (size - side + 1)), int(y * (size - side + 1)), side)
            crowding = max((_overlap(box, other) for other in boxes), default=0.0)
            if crowding < least:
                best, least = box, crowding
            if least == 0:
                break
        boxes.append(best)
    return boxes


def _overlap(one: Box, other: Box) -> float:
    """The shared area of two squares as a share of the smaller one."""
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[2], other[1] + other[2]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0) / min(one[2], other[2]) ** 2
