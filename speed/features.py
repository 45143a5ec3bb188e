"""From photographs in JPEG files to sums and tags: what the runtime, the way through the disk and processes cost.

Each side runs in a process of its own that is bound to one processor and computes with one thread. "By torch, through
the disk" decodes all photos into the cache, computes maps of features from there by torch, and keeps them; so did mlcil
before it had a runtime. The bare network is ONNX Runtime on images that are ready, and nothing else. Photographs are
made up unless a folder is given; what is in them does not matter here, nor which weights the network has.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Job, Ratio, Worker, medians, report
from PIL import Image

from mlcil.core.allocation import keep_freed_memory
from mlcil.core.cache import DiskCache, Shelf
from mlcil.core.cached_rows import open_rows
from mlcil.core.pools import LocalPool
from mlcil.data.contents import Contents
from mlcil.data.features import FeatureFeed, KeptStem, Views
from mlcil.data.images import LabelledImages
from mlcil.data.loading import Preparation
from mlcil.data.pixels import open_pixels, undecoded
from mlcil.models.backbone import Backbone
from mlcil.models.sums import Sums
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.predicting import Wish, tag_photos
from mlcil.serving.tagger import Tagger

SIZE, LABELS, BATCH, ROOM = 224, 20, 32, 10**12
BACKBONES = "tf_efficientnet_lite0", "mobilenetv2_100"
CPU = torch.device("cpu")


def make_photos(folder: Path, count: int) -> None:
    """Write photographs of 256 x 256 pixels, about 13 kB each, as those of COCO are at that size."""
    rng = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8))
        small.resize((256, 256), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=92)


def read(paths: Sequence[str]) -> LabelledImages:
    """The photographs with labels."""
    labels = (np.random.default_rng(1).random((len(paths), LABELS)) < 0.1).astype(np.int8)
    return LabelledImages(tuple(paths), labels, tuple(f"{number:02}" for number in range(LABELS)), "train")


def make_stem(name: str, runtime: str, cache: DiskCache, averages: bool) -> KeptStem:
    """A whole network as a stem."""
    torch.manual_seed(0)
    backbone = Backbone(name, SIZE)
    backbone.freeze("all")
    backbone.runtime = runtime
    prepare = Preparation(backbone.mean, backbone.std, backbone.stem)
    return KeptStem(prepare, backbone.stem_digest(), SIZE, CPU, cache, averages)


class FromStore:
    """Computes maps of features from pixels that are stored."""

    def __init__(self, stem: KeptStem, pixels: Any) -> None:
        self.stem, self.pixels, self.digests = stem, pixels, pixels.digests

    def compute(self, rows: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield each row with its features."""
        for start in range(0, len(rows), BATCH):
            part = np.array(rows[start : start + BATCH])
            images = torch.from_numpy(self.pixels[part]).permute(0, 3, 1, 2)
            yield from zip(part.tolist(), self.stem.compute(images)[:, None], strict=True)


def sums_of(features: Any, images: LabelledImages) -> Sums:
    """The sums over all images."""
    rows = np.arange(len(images))
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    batches = FeatureFeed(features, CPU).batches(parts, rows, images.labels, None)
    described = torch.cat([one.images.mean(dim=(2, 3)).sqrt() for one in batches])
    return Sums.of(described, images.labels, with_constant, described.shape[1] + 1)


def with_constant(described: torch.Tensor) -> torch.Tensor:
    """(n, p) -> (n, p + 1)."""
    return torch.cat([described, described.new_ones(len(described), 1)], 1)


def by_torch_through_the_disk(stem: KeptStem, images: LabelledImages) -> Sums:
    """Decode all into the cache, compute maps from there, read them again."""
    pixels = open_pixels(images, SIZE, cache=stem.cache, contents=Contents()).store
    shelf = Shelf("maps-0", (1, *stem.output_shape()), "float16")
    return sums_of(open_rows(stem.cache, shelf, FromStore(stem, pixels)), images)


def by_onnx_from_files(stem: KeptStem, images: LabelledImages) -> Sums:
    """What mlcil does."""
    return sums_of(stem.open(undecoded(images, SIZE, Contents()), Views("none"), print), images)


def bare(stem: KeptStem, images: LabelledImages) -> None:
    """The network on as many images that are ready."""
    backbone: Any = stem.prepare.stem.__self__  # type: ignore[union-attr]
    network, batch = backbone.ready_stem(), torch.randn(BATCH, 3, SIZE, SIZE)
    for _ in range(0, len(images), BATCH):
        network(batch)


SIDES = {
    "by torch, through the disk": (by_torch_through_the_disk, "torch", False),
    "by ONNX Runtime, from files": (by_onnx_from_files, "onnx", True),
    "bare network": (bare, "onnx", True),
}


def make_side(side: str, backbone: str, paths: Sequence[str]) -> Job:
    """One side, bound to one processor."""
    _alone()
    work, runtime, averages = SIDES[side]

    def job() -> float:
        with tempfile.TemporaryDirectory() as folder:
            stem = make_stem(backbone, runtime, DiskCache(Path(folder), ROOM), averages)
            stem.output_shape()  # exported before the clock starts: that is done once for any number of photos
            began = time.perf_counter()
            work(stem, read(paths))
            return time.perf_counter() - began

    return job


def make_tagging(tagger: Path, paths: Sequence[str]) -> Job:
    """`mlcil predict`, without what it writes."""
    _alone()
    loaded = Tagger.load(tagger)

    def job() -> None:
        assert not any(one.error for one in tag_photos(loaded, paths, Wish(top=1)))

    return job


def make_script(model: Path, paths: Sequence[str]) -> Job:
    """The shortest script that tags photos with the exported model."""
    _alone()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)

    def job() -> None:
        for path in paths:
            square = Image.open(path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            session.run(None, {"images": np.asarray(square)[None]})

    return job


def _alone() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every command that learns does; torch gains most by it
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Nothing:
    """Computes features of photographs, to be thrown away, in a process of a pool."""

    def __init__(self, backbone: str, folder: Path) -> None:
        self.stem = make_stem(backbone, "onnx", DiskCache(folder, ROOM), averages=True)
        self.stem.output_shape()

    def __call__(self, content: list[bytes]) -> None:
        """Compute those of some files, by their content."""
        squares = [np.asarray(Image.open(io.BytesIO(one)).convert("RGB").resize((SIZE, SIZE))) for one in content]
        self.stem.compute(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2))


def rate(jobs: int, backbone: str, paths: Sequence[str], folder: Path) -> float:
    """Photographs per second of so many processes, from when all of them are at work."""
    content = [Path(path).read_bytes() for path in paths]
    parts = [content[start : start + BATCH] for start in range(0, len(content), BATCH)]
    times = [time.perf_counter() for _ in LocalPool(jobs).map(partial(Nothing, backbone, folder), parts)]
    first, last = times[jobs], times[-jobs]
    return BATCH * (len(times) - 2 * jobs) / (last - first)


def measure_prediction(paths: Sequence[str], folder: Path) -> Ratio:
    """Tagging against the shortest script."""
    from mlcil.serving.export import export_onnx

    table = folder / "table.csv"
    rows = [f"{path},{'a' if place % 3 else 'b'}" for place, path in enumerate(paths[:200])]
    table.write_text("\n".join(["path,labels", *rows]))
    options = LearnOptions(backbone=BACKBONES[0], weights="none", settings={"cache": str(folder / "cache")})
    tagger, _ = learn(None, str(table), options)
    saved, model = tagger.save(folder / "tagger"), folder / "model.onnx"
    export_onnx(tagger, model)
    sides = {"mlcil": Worker(make_tagging, saved, paths), "script": Worker(make_script, model, paths)}
    found = medians(sides, rounds=3)  # type: ignore[arg-type]
    for worker in sides.values():
        worker.close()
    return Ratio("tag photos: shortest script / mlcil, seconds", found["script"] / found["mlcil"], at_least=0.9)


def measure_backbone(backbone: str, paths: Sequence[str], rounds: int) -> list[Ratio]:
    """The sides against each other."""
    workers = {side: Worker(make_side, side, backbone, paths) for side in SIDES}
    found = medians(workers, rounds, warm_up=0)  # type: ignore[arg-type]
    for worker in workers.values():
        worker.close()
    before, now, alone = (found[side] for side in SIDES)
    return [
        Ratio(f"{backbone}: by torch, through the disk / by ONNX Runtime, from files", before / now, at_least=2.2),
        Ratio(f"{backbone}: share of the bare network", 100 * alone / now, at_least=80, unit="%"),
        Ratio(f"{backbone}: from files to sums", len(paths) / now, unit="images/s"),
    ]


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="folder of JPEG files [default: made-up ones]")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.photos is None:
            make_photos(folder, given.count)
        paths = [str(path) for path in sorted((given.photos or folder).glob("*.jpg"))[: given.count]]
        ratios = [one for backbone in BACKBONES for one in measure_backbone(backbone, paths, given.rounds)]
        ratios.append(measure_prediction(paths[:500], folder))
        rates = {jobs: rate(jobs, BACKBONES[0], paths, folder) for jobs in (1, 2)}
        ratios.append(Ratio("two processes / one, images/s", rates[2] / rates[1], at_least=1.8))
    report("features", f"{len(paths)} photographs, one thread each", ratios)


if __name__ == "__main__":
    main()
