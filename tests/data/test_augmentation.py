import random

import pytest
import torch
from torch import Tensor

from mlcil.data.augmentation import AUGMENTATIONS, augment, cutout, make_augmentation, normalise


def some_images(count: int = 6, side: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_result_depends_on_image_and_seed_only(name):
    images, seeds, transform = some_images(), list(range(10, 16)), make_augmentation(name)
    whole = augment(images, transform, seeds)
    assert whole.dtype == torch.uint8
    assert whole.shape == images.shape
    assert torch.equal(whole, augment(images, transform, seeds))
    backwards = augment(images.flip(0), transform, seeds[::-1]).flip(0)
    assert torch.equal(whole, backwards)
    one_by_one = [augment(images[i : i + 1], transform, seeds[i : i + 1])[0] for i in range(6)]
    assert torch.equal(whole, torch.stack(one_by_one))
    if name != "none":
        assert not torch.equal(whole, augment(images, transform, range(100, 106)))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_global_state_and_input_are_untouched(name):
    images = some_images()
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads(), images.clone()
    for seed in range(20):
        augment(images, make_augmentation(name), [seed] * len(images))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == torch.get_num_threads()
    assert torch.equal(before[3], images)


def test_global_state_is_restored_after_an_error():
    before = torch.get_rng_state()

    def broken(image: Tensor) -> Tensor:
        torch.rand(3)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        augment(some_images(), broken, range(6))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_no_images(name):
    empty = some_images()[:0]
    assert augment(empty, make_augmentation(name), []).shape == (0, 3, 32, 32)


def test_bits_do_not_depend_on_threads():
    # Large enough that torch would split the sum of a grey mean between threads.
    images, transform, threads = (
        some_images(4, 224),
        make_augmentation("randaugment"),
        torch.get_num_threads(),
    )
    single = augment(images, transform, range(4))
    torch.set_num_threads(2)
    try:
        assert torch.equal(single, augment(images, transform, range(4)))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_bits_do_not_depend_on_the_memory_format(name):
    images, transform = some_images(30), make_augmentation(name)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    augmented = augment(channels_last, transform, range(30))
    assert augmented.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(augmented, augment(images, transform, range(30)))


def test_none_changes_nothing():
    images = some_images()
    assert torch.equal(augment(images, make_augmentation("none"), range(6)), images)


def test_flip_is_the_image_or_its_mirror():
    images = some_images(40)
    flipped = augment(images, make_augmentation("flip"), range(40))
    mirrored = [torch.equal(new, old.flip(-1)) for new, old in zip(flipped, images, strict=True)]
    kept = [torch.equal(new, old) for new, old in zip(flipped, images, strict=True)]
    assert sum(mirrored) + sum(kept) == 40
    assert 8 < sum(mirrored) < 32


def test_cutout_covers_one_clipped_box():
    image, sizes = torch.zeros(3, 20, 30, dtype=torch.uint8), set()
    for seed in range(300):
        covered = augment(image[None], cutout, [seed])[0]
        rows, columns = covered.any(0).nonzero(as_tuple=True)
        if len(rows) == 0:  # the colour was black
            continue
        box = covered[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert (box == box[:, :1, :1]).all()  # one colour, no gaps
        touches = rows.min() == 0 or rows.max() == 19, columns.min() == 0 or columns.max() == 29
        assert box.shape[1] == 10 or (touches[0] and 5 <= box.shape[1] < 10)
        assert box.shape[2] == 15 or (touches[1] and 7 <= box.shape[2] < 15)
        sizes.add(tuple(box.shape[1:]))
    assert (10, 15) in sizes
    assert len(sizes) > 10
    assert not image.any()


def test_normalise_values():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    result = normalise(images, (0.5, 0.2, 0.0), (0.5, 0.1, 2.0))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.flatten(), torch.tensor([-1.0, 0.0, 0.5]))
    assert images.flatten().tolist() == [0, 51, 255]


@pytest.mark.parametrize("shape", [(4, 16, 20), (0, 16, 20), (3, 1, 1), (2, 1, 9)])
def test_normalise_gives_the_same_bits_in_every_memory_format(shape):
    count, height, width = shape
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    shift, scale = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    expected = (images.to(torch.float32) / 255 - shift) / scale
    for given in (
        images,
        images.contiguous(memory_format=torch.channels_last),
        images.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1),
    ):
        result = normalise(given, mean, std)
        assert torch.equal(result, expected)
        for order in (torch.contiguous_format, torch.channels_last):
            assert result.is_contiguous(memory_format=order) == given.is_contiguous(memory_format=order)
