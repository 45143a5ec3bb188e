"""Random changes of training images: uint8 in, uint8 out, decided by one seed per image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..core.threads import one_thread

Augmentation = Callable[[Tensor], Tensor]


def cutout(image: Tensor) -> Tensor:
    """Cover a box of half the height and width with one random colour (DeVries & Taylor, 2017).

    The box's centre is uniform over the uint8 (3, H, W) image, so that the box may be clipped at a border.
    """
    box = []
    for side in image.shape[-2:]:
        length = round(side * 0.5)
        start = int(torch.randint(side, ())) - length // 2
        box.append(slice(max(start, 0), start + length))
    covered = image.clone()
    covered[:, box[0], box[1]] = torch.randint(0, 256, (3, 1, 1), dtype=torch.uint8)
    return covered


def _flip(image: Tensor) -> Tensor:
    return image.flip(-1) if torch.rand(1) < 0.5 else image


def _crop(image: Tensor) -> Tensor:
    """A random part of a uint8 (3, H, W) image, at least half of its area, resized to the image's own size."""
    from torchvision.transforms import v2

    cropped: Tensor = v2.RandomResizedCrop(image.shape[-2:], scale=(0.5, 1.0), antialias=True)(image)
    return cropped


AUGMENTATIONS: tuple[str, ...] = ("none", "flip", "crop", "randaugment")


def make_augmentation(name: str) -> Augmentation:
    """Create the augmentation of this name: a callable from uint8 (3, H, W) to the same shape."""
    if name == "none":
        return _unchanged
    if name == "flip":
        return _flip
    # Imported here: it takes seconds, longer than torch itself, and every command would wait for it.
    from torchvision.transforms import v2

    steps = {
        "crop": [_crop, _flip],
        "randaugment": [cutout, v2.RandAugment()],  # KRT's training pipeline
    }
    transform: Augmentation = v2.Compose(steps[name])
    return transform


def augment(images: Tensor, transform: Augmentation, seeds: Sequence[int]) -> Tensor:
    """Transform each image under its own seed.

    The result for an image depends on the image and its seed alone, not on its neighbours, the process or
    what was drawn before; the caller's random state is untouched.

    Arguments:
        images: uint8 (n, 3, H, W), in any memory format.
        transform: draws its random numbers from torch's global generator, as torchvision's do.
        seeds: n numbers.

    Returns:
        uint8 (n, 3, H, W) in the same memory format.
    """
    augmented = torch.empty_like(images)
    with torch.random.fork_rng(devices=[]), one_thread():
        for position, seed in enumerate(seeds):
            # Not torch.manual_seed, which would seed the accelerators too.
            torch.default_generator.manual_seed(int(seed))
            # Contiguous, because torchvision rounds differently where the channels come last.
            augmented[position].copy_(transform(images[position].contiguous()))
    return augmented


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Scale uint8 (n, 3, H, W) to 0..1, then to zero mean and unit deviation per channel, as float32.

    It happens on the images' device and in their memory format.
    """
    shift, scale = (_constant(tuple(values), images.device) for values in (mean, std))  # (3, 1, 1)
    return images.to(torch.float32).div_(255).sub_(shift).div_(scale)


@lru_cache(maxsize=32)  # made once: sending them to a device at each batch would wait for it
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(3, 1, 1)


def _unchanged(image: Tensor) -> Tensor:
    return image
