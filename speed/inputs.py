"""Whether images come fast enough: decoding, augmentation, and the whole loader against training.

What runs on one thread is measured in processor time, which a busy machine hardly changes. The main figure sets the
loader's two worker processes against training steps of two threads, in wall-clock time and one after the other; in a
run they share the machine. Threads that wait for one another lose more on a busy machine than processes do, so that
figure is to be trusted on a quiet one only; the same on one thread is given beside it.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Job, Ratio, medians, report
from numpy.typing import NDArray
from PIL import Image

from mlcil.core.cache import DiskCache
from mlcil.data.augmentation import AUGMENTATIONS, augment, make_augmentation, normalise
from mlcil.data.contents import Contents
from mlcil.data.decoding import decode
from mlcil.data.images import LabelledImages
from mlcil.data.loading import PixelFeed, Preparation
from mlcil.data.pixels import PixelStore, open_pixels
from mlcil.data.sources import load
from mlcil.models.backbone import Backbone

SIZE, BATCH, IMAGES, STEPS, WORKERS = 224, 16, 96, 24, 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BACKBONES = ("mobilenetv2_100", "tf_efficientnet_lite0", "deit_tiny_patch16_224")
LOADED = ("randaugment", "flip")
SHAPES = {"640 x 480": (640, 480, 6), "2000 x 1500": (2000, 1500, 2)}  # width, height, how many
GAIN = {"2000 x 1500": 1.5}  # what is asked of our decoding, over plain Pillow; smaller images are not scaled
Decoder = Callable[[Path], Any]


def processor_time(function: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of the processor that a call takes in this process."""
    began = time.process_time()
    function(*arguments)
    return time.process_time() - began


def photograph(path: Path, width: int, height: int, seed: int) -> Path:
    """Write a made-up photograph: noise at several scales, the finer the fainter, as JPEG of quality 90."""
    generator, pixels = np.random.default_rng(seed), np.full((height, width, 3), 128.0, np.float32)
    for parts in (4, 16, 64, 256):
        coarse = generator.normal(0, 60 / parts**0.5, (3, parts, parts)).astype(np.float32)
        layers = [Image.fromarray(one).resize((width, height), Image.Resampling.BICUBIC) for one in coarse]
        pixels += np.stack([np.asarray(one) for one in layers], axis=-1)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path


def plain_pillow(path: Path) -> Any:
    """Decoded in full, then resized."""
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def with_torchvision(path: Path) -> Any:
    """Decoded and resized by torchvision and torch."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    pixels = decode_jpeg(read_file(str(path)), ImageReadMode.RGB)
    return torch.nn.functional.interpolate(pixels[None], (SIZE, SIZE), mode="bilinear", antialias=True)


def with_simplejpeg(path: Path) -> Any:
    """Scaled while it is decoded, by the rule of ours."""
    simplejpeg = import_module("simplejpeg")  # not among our dependencies
    pixels = simplejpeg.decode_jpeg(path.read_bytes(), "RGB", min_height=2 * SIZE, min_width=2 * SIZE)
    return np.asarray(Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def decoders(path: Path) -> dict[str, Decoder]:
    """Those that work here and with such files."""
    found: dict[str, Decoder] = {"ours": lambda one: decode(str(one), SIZE)}
    for name, decoder in (("torchvision", with_torchvision), ("simplejpeg", with_simplejpeg)):
        try:
            decoder(path)
        except (ImportError, RuntimeError, ValueError):
            continue
        found[name] = decoder
    return found


def measure_decoding(groups: dict[str, list[Path]]) -> Iterator[Ratio]:
    """Each decoder against plain Pillow."""
    for shape, paths in groups.items():
        candidates = {"Pillow": plain_pillow, **decoders(paths[0])}
        seconds = medians({name: partial(processor_time, over, one, paths) for name, one in candidates.items()})
        yield Ratio(f"decode {shape}: plain Pillow", len(paths) / seconds["Pillow"], unit="images/s")
        for name in list(candidates)[1:]:
            wanted = GAIN.get(shape) if name == "ours" else None
            yield Ratio(f"decode {shape}: plain Pillow / {name}", seconds["Pillow"] / seconds[name], wanted)


def over(function: Callable[[Any], Any], items: Sequence[Any]) -> None:
    """Call it with each."""
    for item in items:
        function(item)


def measure_augmentation(pixels: NDArray[np.uint8]) -> Iterator[Ratio]:
    """What each augmentation costs."""
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    seeds = range(len(images))
    jobs: dict[str, Job] = {
        name: partial(processor_time, augment, images, make_augmentation(name), seeds) for name in AUGMENTATIONS
    }
    seconds = medians(jobs)
    for name in AUGMENTATIONS:
        yield Ratio(f"augment, {name}", len(images) / seconds[name], unit="images/s")


def measure_batches(pixels: NDArray[np.uint8]) -> Ratio:
    """From pixels to what a backbone takes, against a copy to channels first and back."""

    def there_and_back() -> None:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        images = images.to(torch.float32).div_(255).sub_(shift).div_(scale)
        images.contiguous(memory_format=torch.channels_last)

    def ours() -> None:
        images = normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2), MEAN, STD)
        images.contiguous(memory_format=torch.channels_last)

    jobs: dict[str, Job] = {
        "there and back": partial(processor_time, there_and_back),
        "ours": partial(processor_time, ours),
    }
    seconds = medians(jobs, rounds=25)
    return Ratio("prepare a batch: channels first / ours", seconds["there and back"] / seconds["ours"], at_least=1)


def loader_of(store: PixelStore, augmentation: str, workers: int) -> Callable[[], None]:
    """A job that reads a short epoch."""
    loader = PixelFeed(store, Preparation(MEAN, STD), make_augmentation(augmentation), workers)
    positions = np.arange(STEPS * BATCH)
    rows, labels = positions % len(store), np.zeros((len(positions), 1), np.int8)
    parts, keys = list(positions.reshape(STEPS, BATCH)), [(0, step) for step in range(STEPS)]

    def read() -> None:
        for _ in loader.batches(parts, rows, labels, keys):
            pass

    return read


def training_of(name: str) -> Callable[[], None]:
    """A job of a forward and a backward pass."""
    backbone, images = Backbone(name, SIZE), torch.randn(BATCH, 3, SIZE, SIZE)

    def step() -> None:
        backbone(images).sum().backward()
        backbone.zero_grad()

    return step


def measure_loader(store: PixelStore) -> Iterator[Ratio]:
    """The loader's rate over the training rate of the quickest backbone."""
    with threads(2):
        jobs: dict[str, Job] = {name: training_of(name) for name in BACKBONES}
        jobs |= {name: loader_of(store, name, WORKERS) for name in LOADED}
        seconds = medians(jobs, rounds=3)
    training = {name: BATCH / seconds[name] for name in BACKBONES}
    quickest = max(training, key=lambda name: training[name])
    for name, rate in training.items():
        yield Ratio(f"train {name}, 2 threads", rate, unit="images/s")
    for name in LOADED:
        rate = STEPS * BATCH / seconds[name]
        yield Ratio(f"load with {name}, {WORKERS} workers", rate, unit="images/s")
        yield Ratio(f"load with {name} / train {quickest}", rate / training[quickest], at_least=3)
    with threads(1):
        alone: dict[str, Job] = {quickest: partial(processor_time, training_of(quickest))}
        alone |= {name: partial(processor_time, loader_of(store, name, 0)) for name in LOADED}
        seconds = medians(alone, rounds=3)
    for name in LOADED:
        ratio = seconds[quickest] * STEPS / seconds[name]
        yield Ratio(f"the same on one thread, processor time, {name}", ratio, at_least=3)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Have torch use so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def gather(data: str | None, folder: Path) -> tuple[LabelledImages, dict[str, list[Path]]]:
    """The images for the loader, and the files to decode by what they are."""
    if data is not None:
        train = load(data).train
        some = train.subset(np.arange(min(IMAGES, len(train))))
        return some, {f"of {data.partition(':')[0]}": [Path(path) for path in some.paths[:40]]}
    paths = [photograph(folder / f"{number}.jpg", 320, 240, number) for number in range(IMAGES)]
    groups = {
        shape: [photograph(folder / f"{width}-{number}.jpg", width, height, number) for number in range(count)]
        for shape, (width, height, count) in SHAPES.items()
    }
    labels = np.zeros((IMAGES, 1), np.int8)
    return LabelledImages(tuple(map(str, paths)), labels, ("nothing",), "train"), groups


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a data set such as coco:FOLDER instead of made-up images")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, groups = gather(parser.parse_args().data, folder)
        store = open_pixels(images, SIZE, cache=DiskCache(folder / "cache", 10**9), contents=Contents()).store
        pixels = store[np.arange(64) % len(store)]
        with threads(1):
            ratios = [*measure_decoding(groups), *measure_augmentation(pixels), measure_batches(pixels[:BATCH])]
        ratios += measure_loader(store)
    report("inputs", f"images of {SIZE} pixels in batches of {BATCH}", ratios)


if __name__ == "__main__":
    main()
