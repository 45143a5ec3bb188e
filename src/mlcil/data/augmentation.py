"""Random changes of training images: uint8 in, uint8 out, decided by one seed per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from ..core.errors import unknown_name
from .randaugment import RandAugment

Augmentation = Callable[[Tensor], Tensor]


class Cutout:
    """Covers a box with one random colour (DeVries & Taylor, 2017).

    The box's centre is uniform over the image, so that the box may be clipped at a border.

    Arguments:
        fraction: the box's sides as a fraction of the image's.
    """

    def __init__(self, fraction: float = 0.5) -> None:
        self.fraction = fraction

    def __call__(self, image: Tensor) -> Tensor:
        """Return a copy of the uint8 (3, H, W) image with the box drawn."""
        rows, columns = (self._span(side) for side in image.shape[-2:])
        covered = image.clone()
        covered[:, rows, columns] = torch.randint(0, 256, (3, 1, 1), dtype=torch.uint8)
        return covered

    def _span(self, side: int) -> slice:
        length = round(side * self.fraction)
        start = int(torch.randint(side, ())) - length // 2
        return slice(max(start, 0), start + length)


class Flip:
    """The image or its mirror image, as likely."""

    def __call__(self, image: Tensor) -> Tensor:
        """Perhaps flip one uint8 (3, H, W) image."""
        return image.flip(-1) if torch.rand(1) < 0.5 else image


class CropAndResize:
    """A random part of the image, at least half of its area, resized to the image's own size."""

    def __call__(self, image: Tensor) -> Tensor:
        """Crop and resize one uint8 (3, H, W) image."""
        crop = _random_crop(image.shape[-2], image.shape[-1])
        result: Tensor = crop(image.contiguous())  # torch rounds otherwise where the channels come last
        return result


AUGMENTATIONS: tuple[str, ...] = ("none", "flip", "crop", "randaugment")


def make_augmentation(name: str) -> Augmentation:
    """Create the augmentation of this name: a callable from uint8 (3, H, W) to the same shape.

    Raises:
        UserError: there is no augmentation of this name.
    """
    if name not in AUGMENTATIONS:
        raise unknown_name("augmentation", name, AUGMENTATIONS)
    if name == "none":
        return _unchanged
    if name == "flip":
        return Flip()
    # Imported here: it takes seconds, longer than torch itself, and every command would wait for it.
    from torchvision.transforms import v2

    steps = {
        "crop": [CropAndResize(), Flip()],
        "randaugment": [Cutout(), RandAugment()],  # KRT's training pipeline
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
    with _own_random_state(), _one_thread():
        for position, seed in enumerate(seeds):
            # Not torch.manual_seed, which would seed the accelerators too.
            torch.default_generator.manual_seed(int(seed))
            _put(transform(images[position]), augmented[position])
    return augmented


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Scale uint8 (n, 3, H, W) to 0..1, then to zero mean and unit deviation per channel, as float32.

    It happens on the images' device and in their memory format.
    """
    if images.is_contiguous() or not images.is_contiguous(memory_format=torch.channels_last):
        shift, scale = (_constant(tuple(values), 1, images.device).view(3, 1, 1) for values in (mean, std))
        return images.to(torch.float32).div_(255).sub_(shift).div_(scale)
    # In whole rows: spread over a last dimension of three, the constants would take three times as long.
    rows = images.permute(0, 2, 3, 1).flatten(2)  # (n, H, W * 3)
    shift, scale = (_constant(tuple(values), images.shape[3], images.device) for values in (mean, std))
    scaled = rows.to(torch.float32).div_(255).sub_(shift).div_(scale)
    return scaled.view(*images.shape[:1], *images.shape[2:], 3).permute(0, 3, 1, 2)


@lru_cache(maxsize=32)  # made once: to send them to a device at each batch would wait for it
def _constant(values: tuple[float, ...], times: int, device: torch.device) -> Tensor:
    return torch.tensor(values * times, dtype=torch.float32, device=device)


def _unchanged(image: Tensor) -> Tensor:
    return image


def _put(image: Tensor, place: Tensor) -> None:
    """Copy a (3, H, W) image; a transposing copy of torch's takes five times as long as this stack."""
    if image.is_contiguous() and not place.is_contiguous():
        torch.stack(image.unbind(), dim=-1, out=place.permute(1, 2, 0))
    else:
        place.copy_(image)


@contextmanager
def _own_random_state() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums differ in the last bit with the number of threads; a worker process has one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=8)
def _random_crop(height: int, width: int) -> Callable[[Tensor], Tensor]:
    from torchvision.transforms import v2

    crop: Callable[[Tensor], Tensor] = v2.RandomResizedCrop((height, width), scale=(0.5, 1.0), antialias=True)
    return crop
