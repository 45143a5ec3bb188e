"""From settings to the things a run works with: data, pixels, backbone, method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.cache import DiskCache
from ..core.cached_rows import CachedRows
from ..core.errors import UserError
from ..core.pools import make_pool
from ..core.progress import progress_line
from ..core.randomness import Stream, derive_seed
from ..data.augmentation import make_augmentation
from ..data.contents import Contents, fingerprinted, index_file
from ..data.features import FeatureFeed, Feed, KeptStem, Views
from ..data.images import PRESENT, UNKNOWN, DataSet, Finding, LabelledImages, Level
from ..data.loading import PixelFeed, Preparation
from ..data.pixels import PixelStore, default_cache, forgetting_changes, open_pixels, undecoded
from ..data.protocol import Protocol, make_protocol
from ..data.published import BENCHMARKS
from ..data.sources import SOURCES, Found, counts_negatives, kind_if_there, kind_of, read, resolve
from ..memory.buffer import Budget
from ..methods.base import Method, Task
from ..methods.registry import method_class
from ..models.backbone import Backbone
from ..models.tagger import TaggerNet
from ..models.weights import load_weights
from .config import RunConfig, RunSettings
from .hardware import accelerator_here

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Say = Callable[[str], None]


class KeptFeatures(NamedTuple):
    """What a frozen stem has made of images."""

    rows: CachedRows  # (N, views, H, W, C), the first view unaugmented


Store = PixelStore | KeptFeatures


class OpenedImages(NamedTuple):
    """Images that are ready to be used.

    Attributes:
        store: as many rows as there were images.
        bad: row -> one line naming the file and the reason; such a row must not be read.
    """

    store: Store
    bad: dict[int, str]


class Data(NamedTuple):
    """The data of a run.

    Attributes:
        protocol: the sessions.
        train, test: the pixels of all training and all test images, or their kept features.
        bad_images: one line for each image that cannot be read; they take no part.
        total_classes: of the data set, in the protocol or not.
        whole: all images and classes, as they were read.
    """

    protocol: Protocol
    train: Store
    test: Store
    bad_images: list[str]
    total_classes: int
    whole: DataSet


def read_data(settings: RunSettings, say: Say, found: Found | None = None) -> DataSet:
    """Read the labels, and look into the image files.

    Arguments:
        found: what `data.sources.read` gave for these settings, if it was read already.
    """
    contents = open_contents(settings, say)
    if found is None:
        say(f"reading {settings.data}")
        found = read(settings.data, settings.images)
    data = resolve(found, contents)
    return DataSet(fingerprinted(data.train, contents), fingerprinted(data.test, contents), data.findings)


def prepare_data(
    whole: DataSet,
    settings: RunSettings,
    say: Say,
    stem: KeptStem | None = None,
    change: Callable[[Protocol], Protocol] = lambda one: one,
) -> Data:
    """Decode the images, or compute what a frozen stem makes of them, and divide the classes into sessions.

    Arguments:
        whole: what `read_data` gave, in the order in which a run knows the images.
        stem: whose output is kept, see `kept_stem`.
        change: what to make of the protocol before anything uses it; for tests of methods.
    """
    contents, augment = open_contents(settings, say), settings.augment
    train = open_images(whole.train, settings, contents, say, stem, augment)
    test = open_images(whole.test, settings, contents, say, stem)
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
    file = load_weights(backbone, settings.weights, *_suspicious(settings, kind, classes))
    backbone.freeze(settings.freeze)
    backbone.runtime = _runtime(settings, backbone)
    benchmark = kind if kind in BENCHMARKS and BENCHMARKS[kind].classes == classes else None
    task = Task(benchmark, classes)
    method = method_class(settings.method)(config.options, backbone, task, Budget.parse(settings.buffer))
    if method.tagger.enters_backbone and backbone.has_stem:
        raise UserError(f"method {method.name} works inside the backbone and freezes it itself; leave freeze at none")
    if not (method.tagger.enters_backbone or any(one.requires_grad for one in backbone.parameters())):
        backbone.freeze("all")  # the method trains no part of it, so the feed computes all of it
    return method, file


def _suspicious(settings: RunSettings, kind: str | None, classes: int) -> tuple[set[int], list[Sequence[str]]]:
    """What gives weights away that were trained on the data set's own classes: sizes of a classifier, and names."""
    if settings.allow_known_classes:
        return set(), []
    known = list(BENCHMARKS.values()) if kind in BENCHMARKS else []  # the classes of COCO include those of VOC
    return {classes, *(size for one in known for size in one.heads)}, [one.names for one in known]


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


def make_feed(settings: RunSettings, images: Store, backbone: Backbone, fabric: Fabric, augment: str = "none") -> Feed:
    """What serves batches of these images, whatever part of the work is frozen or kept."""
    if isinstance(images, KeptFeatures):
        return FeatureFeed(images.rows, fabric.device)

    def stem(images: Tensor) -> Tensor:
        with fabric.autocast():
            return backbone.stem(images)

    prepare = Preparation(backbone.mean, backbone.std, stem if backbone.has_stem else None)
    return PixelFeed(images, prepare, make_augmentation(augment), settings.workers, fabric.device)


def kept_stem(settings: RunSettings, tagger: TaggerNet, device: torch.device) -> KeptStem | None:
    """The stem whose output is kept; None where the settings do not ask for it.

    Raises:
        UserError: it cannot be kept.
    """
    if not settings.keep_features:
        return None
    backbone = tagger.backbone
    if not backbone.has_stem:
        raise UserError(
            f"keep_features: nothing is frozen that could be kept; set freeze=all, or a number of stages with a "
            f"convolutional backbone (got freeze={settings.freeze} with {backbone.name})"
        )
    cache = open_cache(settings)
    if cache is None:
        raise UserError("keep_features needs a cache folder; leave cache at auto or name one")
    prepare = Preparation(backbone.mean, backbone.std, backbone.stem)
    averages = backbone.is_all_stem and not tagger.needs_map
    return KeptStem(prepare, backbone.stem_digest(), settings.image_size, device, cache, averages)


def open_images(
    images: LabelledImages,
    settings: RunSettings,
    contents: Contents,
    say: Say,
    stem: KeptStem | None = None,
    augment: str = "none",
) -> OpenedImages:
    """The pixels of images, or with a stem what it makes of them; computed now, or found in the cache."""
    if stem is not None:
        pixels = undecoded(images, settings.image_size, contents)
        pool = make_pool(settings.engine, settings.jobs, settings.threads or 1)
        with forgetting_changes(contents):
            rows = stem.open(pixels, Views(augment, settings.views), say, pool)
        return OpenedImages(KeptFeatures(rows), dict(sorted(rows.missing.items())))
    progress = progress_line(say, f"decoding {images.split} images")
    cache = open_cache(settings)
    opened = open_pixels(images, settings.image_size, cache=cache, contents=contents, on_progress=progress)
    if opened.note:
        say(opened.note)
    return OpenedImages(opened.store, opened.bad)


def _runtime(settings: RunSettings, backbone: Backbone) -> str:
    """What computes the stem: see the setting."""
    if settings.runtime != "auto":
        return settings.runtime
    is_plain = settings.precision == "32-true" and accelerator_here(settings.accelerator) == "cpu"
    return "onnx" if is_plain and backbone.is_convolutional else "torch"


def _without(images: LabelledImages, bad: dict[int, str]) -> LabelledImages:
    # An image with only unknown labels is in no session and in no test.
    labels = images.labels.copy()
    labels[np.array(list(bad), np.int64)] = UNKNOWN
    return replace(images, labels=labels)
