"""What each measure brings to a step: the step without it against the step with all. `make speed` runs this.

What can be undone from one step to the next is compared within one process, step by step; the allocator and the memory
layout have a process each.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from measure import Job, Ratio, Worker, medians, report
from step import CLASSES, NETS, SIZE, grown, made_up, stepper

from mlcil.core import allocation
from mlcil.core.cache import DiskCache
from mlcil.data.features import FeatureFeed, KeptStem, Views
from mlcil.data.loading import Preparation
from mlcil.data.pixels import MemoryPixels
from mlcil.methods.kept_outputs import keep_outputs
from mlcil.models.backbone import Backbone
from mlcil.training.optimiser import make_optimiser

SESSIONS = 8
EPOCHS, VIEWED = 20, 64  # epochs of a session, and images that stand for all of its images


def contiguous(backbone: Backbone) -> None:
    """Undo channels-last, which `forward` asks for at every batch."""
    backbone.to(memory_format=torch.contiguous_format)
    backbone._layers.insert(0, _Contiguous())


class _Contiguous(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The images with the channels first in memory."""
        return images.contiguous()


def step_without(net: str, batch: int, left_out: str) -> Job:
    """A step of this library with something undone for good."""
    if left_out != "kept memory":
        allocation.keep_freed_memory()
    method = grown(net, SESSIONS)
    assert method.teacher is not None
    for tagger in (method.tagger, method.teacher):
        if left_out == "channels-last":
            contiguous(tagger.backbone)
    return stepper(method, made_up(batch, SESSIONS), make_optimiser(method.tagger, 1e-4, 1e-4))


def apart(net: str, batch: int, left_out: str, rounds: int) -> Ratio:
    """The step without a measure over the step with all, each in its process."""
    jobs = {name: Worker(step_without, net, batch, name) for name in ("nothing", left_out)}
    found = medians(jobs, rounds)
    for job in jobs.values():
        job.close()
    return Ratio(f"{NETS[net]}, batch {batch}: without {left_out}", found[left_out] / found["nothing"])


def fused_adam(net: str, batch: int, rounds: int) -> Ratio:
    """The step with Adam's plain form over the step with its fused one, within one process."""
    allocation.keep_freed_memory()
    method, data = grown(net, SESSIONS), made_up(batch, SESSIONS)
    jobs = {
        name: stepper(method, data, make_optimiser(method.tagger, 1e-4, 1e-4, fused=name == "fused"))
        for name in ("fused", "plain")
    }
    found = medians(jobs, rounds)
    return Ratio(f"{NETS[net]}, batch {batch}: without fused Adam", found["plain"] / found["fused"])


def kept_feed(backbone: Backbone, folder: str) -> FeatureFeed:
    """The kept features of noise and of its mirror images."""
    pixels = np.random.default_rng(0).integers(0, 256, (VIEWED, SIZE, SIZE, 3), np.uint8)
    prepare = Preparation(backbone.mean, backbone.std, backbone.eval().stem)
    cpu = torch.device("cpu")
    stem = KeptStem(prepare, backbone.stem_digest(), SIZE, cpu, DiskCache(Path(folder), 10**10))
    return FeatureFeed(stem.open(MemoryPixels(pixels, SIZE), Views("flip"), lambda line: None), cpu)


def kept_outputs(net: str, batch: int, freeze: str, rounds: int) -> list[Ratio]:
    """A step, and the steps of a session, that ask the old model over those that look up what it said beforehand."""
    allocation.keep_freed_memory()
    method = grown(net, SESSIONS, freeze)
    optimiser, teacher = make_optimiser(method.tagger, 1e-4, 1e-4), method.teacher
    assert teacher is not None
    labels, rows = np.zeros((VIEWED, CLASSES * SESSIONS), np.int8), np.arange(VIEWED)
    with tempfile.TemporaryDirectory() as folder:
        feed = kept_feed(method.tagger.backbone, folder)
        kept = []
        method.tagger.train()

        def ask() -> None:
            kept[:] = [keep_outputs(teacher, feed, rows, lambda done, total: None)]

        def step(is_kept: bool) -> None:
            method.kept = kept[0] if is_kept else None
            stepper(method, next(feed.batches([rows[:batch]], rows, labels, [(0,)])), optimiser)()

        jobs: dict[str, Job] = {"asking": ask, "asked": lambda: step(False), "kept": lambda: step(True)}
        found = medians(jobs, 2 * rounds)
    asking = found["asking"] * batch / VIEWED / EPOCHS  # a step's share
    name = f"{NETS[net]}, batch {batch}, freeze={freeze}, kept features: without kept outputs"
    return [
        Ratio(f"{name}, a step", found["asked"] / found["kept"]),
        Ratio(f"{name}, {EPOCHS} epochs", found["asked"] / (found["kept"] + asking)),
    ]


def arithmetic(rounds: int) -> list[Ratio]:
    """How near the most common convolution of TResNet-M comes to a large matrix product, in operations per second."""
    square, images = torch.randn(2048, 2048), torch.randn(16, 256, 14, 14).to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    given = images.clone(memory_format=torch.preserve_format).requires_grad_()
    made = layer(given)

    def backward() -> None:
        torch.autograd.grad(made, (given, layer.weight), images, retain_graph=True)

    def forward() -> None:
        with torch.no_grad():
            layer(images)

    def product() -> None:
        torch.mm(square, square)

    found = medians({"forward": forward, "backward": backward, "product": product}, 10 * rounds)
    work = 2 * 16 * 14 * 14 * 256 * 256 * 9
    rates = {"forward": work / found["forward"], "backward": 2 * work / found["backward"]}
    best = 2 * 2048**3 / found["product"]
    return [Ratio(f"a 3x3 convolution, {way}: its rate / a product's", rate / best) for way, rate in rates.items()]


def main() -> None:
    """Print the ratios; above 1 a measure pays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    small, large = "mobilenetv2_100", "tresnet_m"
    tried = [(small, 16, "channels-last"), (small, 16, "kept memory"), (small, 64, "kept memory")]
    ratios = [apart(*one, options.rounds) for one in [*tried, (large, 16, "channels-last"), (large, 16, "kept memory")]]
    ratios += [fused_adam(net, 16, options.rounds) for net in (small, large)]
    for batch in (16, 32):
        ratios += [one for freeze in ("6", "all") for one in kept_outputs(small, batch, freeze, options.rounds)]
    ratios += arithmetic(options.rounds)
    report("parts", f"A step in session {SESSIONS} without one measure / with all, 224 px", ratios)


if __name__ == "__main__":
    main()
