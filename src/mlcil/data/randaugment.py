"""RandAugment at its default strength: torchvision's operations, the same to the bit, in half the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Operation = Callable[[Tensor, float], Tensor]  # of a uint8 (3, H, W) image, contiguous, and the sign of its strength


class RandAugment:
    """Two random operations at the default strength (Cubuk et al., 2020): torchvision's, bit for bit, but faster.

    At one strength, a geometric operation always takes its pixels from the same places and one of single values
    is a table. Both are made by torchvision itself, the places once per image size.
    """

    def __call__(self, image: Tensor) -> Tensor:
        """Change one uint8 (3, H, W) image."""
        image = image.contiguous()
        for _ in range(2):
            operation, is_signed = _OPERATIONS[int(torch.randint(len(_OPERATIONS), ()))]
            sign = -1.0 if is_signed and torch.rand(()) <= 0.5 else 1.0
            image = operation(image, sign)
        return image


def _strength(largest: float, smallest: float = 0.0) -> float:
    """The ninth of RandAugment's thirty steps from the smallest to the largest."""
    return float(torch.linspace(smallest, largest, 31)[9])


def _factor(sign: float) -> float:
    return 1.0 + sign * _strength(0.9)


def _functional() -> Any:
    from torchvision.transforms.v2 import functional

    return functional


def _identity(image: Tensor, sign: float) -> Tensor:
    return image


def _move(image: Tensor, sign: float, way: _Operation) -> Tensor:
    sources = _sources(way, sign, image.shape[1], image.shape[2])
    padded = np.zeros((3, 1 + len(sources)), np.uint8)
    padded[:, 1:] = image.flatten(1).numpy()
    return torch.from_numpy(padded.take(sources, axis=1)).view(image.shape)


@lru_cache(maxsize=64)
def _sources(way: _Operation, sign: float, height: int, width: int) -> NDArray[np.int64]:
    """The pixel that each one is taken from, (H * W,): counted row by row from 1; 0 is outside, where it is black."""
    numbered = torch.arange(1, height * width + 1, dtype=torch.float32).view(1, height, width)
    return way(numbered, sign).flatten().long().numpy()


def _shear(image: Tensor, sign: float, axis: int) -> Tensor:
    shear = [0.0, 0.0]
    shear[axis] = math.degrees(math.atan(sign * _strength(0.3)))
    sheared: Tensor = _functional().affine(image, 0.0, [0, 0], 1.0, shear, center=[0, 0])
    return sheared


def _translate(image: Tensor, sign: float, axis: int) -> Tensor:
    way = [0, 0]
    way[axis] = int(sign * _strength(150.0 / 331.0 * image.shape[-1 - axis]))
    translated: Tensor = _functional().affine(image, 0.0, way, 1.0, [0.0, 0.0])
    return translated


def _rotate(image: Tensor, sign: float) -> Tensor:
    rotated: Tensor = _functional().rotate(image, sign * _strength(30.0))
    return rotated


def _colour(image: Tensor, sign: float) -> Tensor:
    changed: Tensor = _functional().adjust_saturation(image, _factor(sign))
    return changed


def _contrast(image: Tensor, sign: float) -> Tensor:
    changed: Tensor = _functional().adjust_contrast(image, _factor(sign))
    return changed


def _sharpness(image: Tensor, sign: float) -> Tensor:
    if min(image.shape[1:]) <= 2:
        return image
    wide = image.to(torch.int16)
    columns = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    sums = columns[:, :, :-2] + columns[:, :, 1:-1] + columns[:, :, 2:]
    sums.add_(wide[:, 1:-1, 1:-1], alpha=4)
    # A thirteenth is never a half: in whichever order a convolution adds up the same, it rounds to this.
    blurred = sums.to(torch.float32).div_(13).round_()
    changed = image.to(torch.float32)
    inner = changed[:, 1:-1, 1:-1]
    inner.add_(blurred.sub_(inner), alpha=1.0 - _factor(sign))
    return changed.clamp_(0, 255).to(torch.uint8)


def _posterise(image: Tensor, sign: float) -> Tensor:
    return image & 0b11111110  # seven bits


def _brightness(image: Tensor, sign: float) -> Tensor:
    return _mapped(image, _brightness_tables(sign))


@lru_cache(maxsize=2)
def _brightness_tables(sign: float) -> Tensor:
    tables: Tensor = _functional().adjust_brightness(_ramp(), _factor(sign))
    return tables


def _solarise(image: Tensor, sign: float) -> Tensor:
    return _mapped(image, _solarise_tables())


@lru_cache(maxsize=1)
def _solarise_tables() -> Tensor:
    tables: Tensor = _functional().solarize(_ramp(), 255 * _strength(0.0, smallest=1.0))
    return tables


def _auto_contrast(image: Tensor, sign: float) -> Tensor:
    values = image.flatten(1)
    low, high = values.amin(1), values.amax(1)
    return _mapped(image, _functional().autocontrast(_ramp().clamp(low.view(3, 1, 1), high.view(3, 1, 1))))


def _equalise(image: Tensor, sign: float) -> Tensor:
    counts = np.stack([torch.bincount(values, minlength=256).numpy() for values in image.flatten(1)])  # (3, 256)
    below = counts.cumsum(axis=1) - counts  # pixels that are darker than each value
    brightest = 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    step = (below[np.arange(3), brightest] // 255)[:, None]
    spread = (below + step // 2) // step.clip(min=1)
    tables = np.where(step > 0, spread, np.arange(256)).clip(max=255).astype(np.uint8)
    return _mapped(image, torch.from_numpy(tables).view(3, 1, 256))


def _ramp() -> Tensor:
    """An image of all values, uint8 (3, 1, 256)."""
    return torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)


def _mapped(image: Tensor, tables: Tensor) -> Tensor:
    """Look each value up in its channel's table, uint8 (3, 1, 256)."""
    # Python's own is several times as fast as indexing with a tensor or an array.
    channels = [
        bytes(channel).translate(bytes(table)) for channel, table in zip(image.numpy(), tables.numpy(), strict=True)
    ]
    return torch.frombuffer(bytearray().join(channels), dtype=torch.uint8).view(image.shape)


_OPERATIONS: tuple[tuple[_Operation, bool], ...] = (  # in torchvision's order; has it a random sign?
    (_identity, False),
    (partial(_move, way=partial(_shear, axis=0)), True),
    (partial(_move, way=partial(_shear, axis=1)), True),
    (partial(_move, way=partial(_translate, axis=0)), True),
    (partial(_move, way=partial(_translate, axis=1)), True),
    (partial(_move, way=_rotate), True),
    (_brightness, True),
    (_colour, True),
    (_contrast, True),
    (_sharpness, True),
    (_posterise, False),
    (_solarise, False),
    (_auto_contrast, False),
    (_equalise, False),
)
