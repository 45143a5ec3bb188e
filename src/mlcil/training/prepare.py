"""From settings to the things a run works with: data, pixels, backbone, method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..core.errors import UserError
from ..core.randomness import derive_seed
from ..data.images import UNKNOWN, DataSet, LabelledImages
from ..data.pixels import OpenedPixels, PixelStore, default_cache, open_pixels
from ..data.protocol import Protocol, make_protocol
from ..data.sources import load
from ..memory.buffer import Budget
from ..methods.base import Method, Task
from ..methods.registry import method_class
from ..models.backbone import Backbone
from ..models.weights import load_weights
from .config import RunConfig, RunSettings

BENCHMARK_CLASSES = {"coco": 80, "voc": 20}  # a classifier of so many outputs knows the benchmark's labels


class Data(NamedTuple):
    """The data of a run.

    Attributes:
        protocol: the sessions.
        train, test: the pixels of all training and all test images.
        bad_images: one line for each image that cannot be read; they take no part.
        total_classes: of the data set, in the protocol or not.
    """

    protocol: Protocol
    train: PixelStore
    test: PixelStore
    bad_images: list[str]
    total_classes: int


def prepare_data(
    settings: RunSettings, say: Callable[[str], None], change: Callable[[Protocol], Protocol] = lambda one: one
) -> Data:
    """Read the labels, decode the images and divide the classes into sessions.

    Arguments:
        change: what to make of the protocol before anything uses it; for tests of methods.
    """
    data = load(settings.data, settings.images)
    train, test = (_open(images, settings, say) for images in data)
    bad = [*train.bad.values(), *test.bad.values()]
    if bad and settings.on_bad_image == "stop":
        others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise UserError(f"{bad[0]}{others}; --on-bad-image skip goes on without them")
    for reason in bad:
        say(f"left out: {reason}")
    data = DataSet(_without(data.train, train.bad), _without(data.test, test.bad))
    protocol = change(make_protocol(data, settings.protocol, settings.order))
    if method_class(settings.method).is_joint:
        protocol = replace(protocol, sizes=(sum(protocol.sizes),))
    if not len(protocol.test_rows(protocol.sizes[0])):
        names = ", ".join(protocol.classes[: protocol.sizes[0]][:5])
        raise UserError(f"no test image shows any class of the first session ({names}); nothing could be measured")
    return Data(protocol, train.store, test.store, bad, len(data.train.classes))


def prepare_method(config: RunConfig, classes: int) -> tuple[Method, Path | None]:
    """Build the backbone, load its weights and wrap it in the method.

    Arguments:
        classes: of the whole data set.

    Returns:
        The method and the file that its weights came from, if a local one.
    """
    settings = config.settings
    torch.manual_seed(derive_seed(settings.seed))
    backbone = Backbone(settings.backbone, settings.image_size, settings.freeze_stages)
    kind = settings.data.partition(":")[0]
    known = BENCHMARK_CLASSES.values() if kind in BENCHMARK_CLASSES else ()  # COCO's labels include VOC's
    file = load_weights(backbone, settings.weights, {classes, *known})
    if settings.backbone_mode == "frozen":
        backbone.freeze_all()
    if settings.checkpointing and settings.compile:
        raise UserError("checkpointing and compile exclude each other; leave one out")
    if settings.checkpointing:
        backbone.checkpoint()
    backbone.compiles = settings.compile
    benchmark = kind if BENCHMARK_CLASSES.get(kind) == classes else None
    task = Task(benchmark, classes)
    method = method_class(settings.method)(config.options, backbone, task, Budget.parse(settings.buffer))
    if method.tagger.enters_backbone and (settings.checkpointing or settings.compile):
        raise UserError(f"method {method.name} works inside the backbone; leave checkpointing and compile out")
    return method, file


def cache_folder(settings: RunSettings) -> Path | None:
    """Where decoded images are kept; None for nowhere."""
    if settings.cache is None:
        return None
    return default_cache() if settings.cache == "auto" else Path(settings.cache).expanduser()


def _open(images: LabelledImages, settings: RunSettings, say: Callable[[str], None]) -> OpenedPixels:
    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if total > 1000 and done * 10 // total > shown:
            shown = done * 10 // total
            say(f"decoding {images.split} images: {done}/{total}")

    limit = int(settings.cache_gb * 1e9)
    folder = cache_folder(settings)
    opened = open_pixels(images, settings.image_size, cache=folder, limit_bytes=limit, on_progress=progress)
    if opened.note:
        say(opened.note)
    return opened


def _without(images: LabelledImages, bad: dict[int, str]) -> LabelledImages:
    # Nothing known about an image keeps it out of every session and every test.
    labels = images.labels.copy()
    labels[np.array(list(bad), np.int64)] = UNKNOWN
    return replace(images, labels=labels)
