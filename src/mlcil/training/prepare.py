"""From settings to the things a run works with: data, pixels, backbone, method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from ..core.cache import DiskCache
from ..core.errors import UserError
from ..core.progress import progress_line
from ..core.randomness import Stream, derive_seed
from ..data.augmentation import make_augmentation
from ..data.contents import Contents, fingerprinted, index_file
from ..data.features import Feed, KeptStem, Views
from ..data.images import PRESENT, UNKNOWN, DataSet, Finding, LabelledImages, Level
from ..data.loading import PixelFeed, Preparation
from ..data.pixels import OpenedPixels, PixelStore, default_cache, open_pixels
from ..data.protocol import Protocol, make_protocol
from ..data.published import BENCHMARKS
from ..data.sources import SOURCES, Found, counts_negatives, kind_if_there, kind_of, read, resolve
from ..memory.buffer import Budget
from ..methods.base import Method, Task
from ..methods.registry import method_class
from ..models.backbone import Backbone
from ..models.weights import load_weights
from .config import RunConfig, RunSettings

Say = Callable[[str], None]


class Data(NamedTuple):
    """The data of a run.

    Attributes:
        protocol: the sessions.
        train, test: the pixels of all training and all test images.
        bad_images: one line for each image that cannot be read; they take no part.
        total_classes: of the data set, in the protocol or not.
        whole: all images and classes, as they were read.
    """

    protocol: Protocol
    train: PixelStore
    test: PixelStore
    bad_images: list[str]
    total_classes: int
    whole: DataSet


def prepare_data(
    settings: RunSettings,
    say: Say,
    change: Callable[[Protocol], Protocol] = lambda one: one,
    found: Found | None = None,
    arrange: Callable[[DataSet], DataSet] = lambda one: one,
) -> Data:
    """Read the labels, decode the images and divide the classes into sessions.

    Arguments:
        change: what to make of the protocol before anything uses it; for tests of methods.
        found: what `data.sources.read` gave for these settings, if it was read already.
        arrange: puts the images into the order in which a run knows them.
    """
    contents = open_contents(settings, say)
    if found is None:
        say(f"reading {settings.data}")
        found = read(settings.data, settings.images)
    data = resolve(found, contents)
    whole = arrange(DataSet(fingerprinted(data.train, contents), fingerprinted(data.test, contents), data.findings))
    train, test = (open_images(images, settings, contents, say) for images in (whole.train, whole.test))
    bad = [*train.bad.values(), *test.bad.values()]
    if bad and settings.on_bad_image == "stop":
        first = bad[0] if len(bad) == 1 else f"{len(bad)} images cannot be read, first: {bad[0]}"
        raise UserError(f"{first}; --on-bad-image skip goes on without them, and mlcil check lists them")
    for reason in bad:
        say(f"left out: {reason}")
    data = whole._replace(train=_without(whole.train, train.bad), test=_without(whole.test, test.bad))
    negatives, is_joint = counts_negatives(settings.data, settings.negatives), method_class(settings.method).is_joint
    protocol = change(make_protocol(data, settings.protocol, settings.order, negatives, is_joint))
    if not (protocol.data.test.labels[protocol.test_rows(protocol.sizes[0]), : protocol.sizes[0]] == PRESENT).any():
        names = ", ".join(protocol.classes[: protocol.sizes[0]][:5])
        raise UserError(f"no test image shows any class of the first session ({names}); nothing could be measured")
    return Data(protocol, train.store, test.store, bad, len(data.train.classes), whole)


def prepare_method(config: RunConfig, classes: int) -> tuple[Method, Path | None]:
    """Build the backbone, load its weights and wrap it in the method.

    Arguments:
        classes: of the whole data set.

    Returns:
        The method and the file that its weights came from, if a local one.
    """
    settings = config.settings
    torch.manual_seed(derive_seed(Stream.WEIGHTS, settings.seed))
    backbone = Backbone(settings.backbone, settings.image_size)
    kind = kind_if_there(settings.data)  # a trained model is loaded without its data
    # A classifier with as many outputs as a benchmark has classes knows its labels; COCO's include those of VOC.
    known = {one.classes for one in BENCHMARKS.values()} if kind in BENCHMARKS else set()
    file = load_weights(backbone, settings.weights, {classes, *known})
    backbone.freeze(settings.freeze)
    benchmark = kind if kind in BENCHMARKS and BENCHMARKS[kind].classes == classes else None
    task = Task(benchmark, classes)
    method = method_class(settings.method)(config.options, backbone, task, Budget.parse(settings.buffer))
    if method.tagger.enters_backbone and backbone.has_stem:
        raise UserError(f"method {method.name} works inside the backbone and freezes it itself; leave freeze at none")
    if not (method.tagger.enters_backbone or any(one.requires_grad for one in backbone.parameters())):
        backbone.freeze("all")  # the method trains no part of it, so the feed computes all of it
    return method, file


def review_weights(settings: RunSettings) -> list[Finding]:
    """The warning for a person's photographs that are looked at by a network which has never seen one."""
    if settings.weights is not None or not SOURCES[kind_of(settings.data)].negatives:
        return []
    text = (
        "the backbone has no pretrained weights, so it starts from random features, and a few photos are far too few "
        "to train it: expect tags that are little better than guesses. Give --backbone with --weights pretrained, or a "
        "weight file"
    )
    return [Finding(Level.FIX_FIRST, text)]


def open_contents(settings: RunSettings, say: Say) -> Contents:
    """What looks into image files, and remembers what it found beside the cache."""
    cache = open_cache(settings)
    index = None if cache is None else index_file(cache.folder)
    return Contents(index, settings.megapixels, on_progress=progress_line(say, "looking into image files"))


def open_cache(settings: RunSettings) -> DiskCache | None:
    """Where decoded images and features are kept; None for nowhere."""
    if settings.cache is None:
        return None
    folder = default_cache() if settings.cache == "auto" else Path(settings.cache).expanduser()
    return DiskCache(folder, int(settings.cache_gb * 1e9))


def make_feeds(settings: RunSettings, data: Data, backbone: Backbone, fabric: Fabric, say: Say) -> tuple[Feed, Feed]:
    """What serves training batches and what serves test batches, whatever part of the work is frozen or kept.

    Raises:
        UserError: features are to be kept and cannot be.
    """
    train = make_feed(settings, data.train, backbone, fabric, say, settings.augment)
    return train, make_feed(settings, data.test, backbone, fabric, say, "none")


def make_feed(
    settings: RunSettings, pixels: PixelStore, backbone: Backbone, fabric: Fabric, say: Say, augment: str
) -> Feed:
    """What serves batches of these images; see `make_feeds`."""
    if settings.keep_features:
        return _make_kept_feed(settings, pixels, backbone, fabric, say, Views(augment, settings.views))

    def stem(images: Tensor) -> Tensor:
        with fabric.autocast():
            return backbone.stem(images)

    prepare = Preparation(backbone.mean, backbone.std, stem if backbone.has_stem else None)
    return PixelFeed(pixels, prepare, make_augmentation(augment), settings.workers, fabric.device)


def _make_kept_feed(
    settings: RunSettings, pixels: PixelStore, backbone: Backbone, fabric: Fabric, say: Say, views: Views
) -> Feed:
    if not backbone.has_stem:
        raise UserError(
            f"keep_features: nothing is frozen that could be kept; set freeze=all, or a number of stages with a "
            f"convolutional backbone (got freeze={settings.freeze} with {backbone.name})"
        )
    cache = open_cache(settings)
    if cache is None:
        raise UserError("keep_features needs a cache folder; leave cache at auto or name one")
    prepare = Preparation(backbone.mean, backbone.std, backbone.stem)
    stem = KeptStem(prepare, backbone.stem_digest(), settings.image_size, fabric.device)
    return stem.open(pixels, views, cache, say)


def open_images(images: LabelledImages, settings: RunSettings, contents: Contents, say: Say) -> OpenedPixels:
    """The pixels of images, decoded or found in the cache."""
    progress = progress_line(say, f"decoding {images.split} images")
    cache = open_cache(settings)
    opened = open_pixels(images, settings.image_size, cache=cache, contents=contents, on_progress=progress)
    if opened.note:
        say(opened.note)
    return opened


def _without(images: LabelledImages, bad: dict[int, str]) -> LabelledImages:
    # An image with only unknown labels is in no session and in no test.
    labels = images.labels.copy()
    labels[np.array(list(bad), np.int64)] = UNKNOWN
    return replace(images, labels=labels)
