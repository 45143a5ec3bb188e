"""What each measure brings to a step: the step without it against the step with all. `make speed` runs this.

What can be undone from one step to the next is compared within one process, step by step; the allocator, the memory
layout and `--compile`, which takes minutes, have a process each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import Job, Ratio, Worker, medians, report
from step import NETS, grown, made_up, stepper
from torch import Tensor

from mlcil.core import allocation
from mlcil.methods.krt import KRT
from mlcil.models import convolutions
from mlcil.models.backbone import Backbone
from mlcil.training.optimiser import make_optimiser

SESSIONS = 8


def contiguous(backbone: Backbone) -> None:
    """Undo channels-last, which `forward` asks for at every batch."""
    backbone.to(memory_format=torch.contiguous_format)
    forward = backbone._features
    backbone._features = lambda images: forward(images.contiguous())  # type: ignore[method-assign]


def step_without(net: str, batch: int, left_out: str) -> Job:
    """A step of this library with something undone for good."""
    if left_out != "kept memory":
        allocation.keep_freed_memory()
    method = grown(net, SESSIONS)
    assert method.teacher is not None
    for tagger in (method.tagger, method.teacher):
        if left_out == "channels-last":
            contiguous(tagger.backbone)
        tagger.backbone.compiles = left_out == "eager mode"
    return stepper(method, made_up(batch, SESSIONS), make_optimiser(method.tagger, 1e-4, 1.0, 1e-4))


def apart(net: str, batch: int, left_out: str, rounds: int) -> Ratio:
    """The step without a measure over the step with all, each in its process."""
    jobs = {name: Worker(step_without, net, batch, name) for name in ("nothing", left_out)}
    found = medians(jobs, rounds)
    for job in jobs.values():
        job.close()
    return Ratio(f"{NETS[net]}, batch {batch}: without {left_out}", found[left_out] / found["nothing"])


def switches(method: KRT) -> dict[str, Callable[[bool], None]]:
    """For each measure, what turns it on or off."""
    real = convolutions.stands_still

    def fold(on: bool) -> None:
        convolutions.stands_still = real if on else lambda norm, images: False

    def products(on: bool) -> None:
        convolutions.WIDE = 128 if on else 10**9

    def copies(on: bool) -> None:
        for module in method.tagger.backbone._in_place:
            module.inplace = not on

    return {"folded norms": fold, "pointwise gradients": products, "sparing copies": copies}


def within(net: str, batch: int, rounds: int) -> list[Ratio]:
    """Each of the others, within one process."""
    allocation.keep_freed_memory()
    method, data = grown(net, SESSIONS), made_up(batch, SESSIONS)
    everything = stepper(method, data, make_optimiser(method.tagger, 1e-4, 1.0, 1e-4))
    jobs: dict[str, Job] = {"nothing": everything}
    for name, switch in switches(method).items():

        def undone(switch: Callable[[bool], None] = switch) -> None:
            switch(False)
            everything()
            switch(True)

        jobs[name] = undone
    jobs["fused Adam"] = stepper(method, data, make_optimiser(method.tagger, 1e-4, 1.0, 1e-4, fused=False))
    found = medians(jobs, rounds)
    name = f"{NETS[net]}, batch {batch}: without"
    return [Ratio(f"{name} {one}", found[one] / found["nothing"]) for one in jobs if one != "nothing"]


def inference(net: str, rounds: int) -> Ratio:
    """The teacher's pass without folding over that with it."""
    backbone, images = Backbone(net, 224).eval(), torch.randn(16, 3, 224, 224)
    real = convolutions.stands_still

    @torch.no_grad()
    def once(still: Callable[[torch.nn.BatchNorm2d, Tensor], bool]) -> None:
        convolutions.stands_still = still
        backbone(images)
        convolutions.stands_still = real

    found = medians({"with": lambda: once(real), "without": lambda: once(lambda norm, given: False)}, 3 * rounds)
    return Ratio(f"{net}: inference without folded norms", found["without"] / found["with"])


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


def compiled(net: str, rounds: int) -> list[Ratio]:
    """A step as it is over a compiled one, and how long the first one takes."""
    workers = {name: Worker(step_without, net, 16, name) for name in ("nothing", "eager mode")}
    seconds = workers["eager mode"]()
    found = medians(workers, rounds)
    for worker in workers.values():
        worker.close()
    name = f"{NETS[net]}, batch 16: "
    return [
        Ratio(f"{name}without torch.compile", found["nothing"] / found["eager mode"]),
        Ratio(f"{name}the first step with torch.compile", seconds, unit="s"),
    ]


def main() -> None:
    """Print the ratios; above 1 a measure pays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    options = parser.parse_args()
    small, large = "mobilenetv2_100", "tresnet_m"
    tried = [(small, 16, "channels-last"), (small, 16, "kept memory"), (small, 64, "kept memory")]
    ratios = [apart(*one, options.rounds) for one in [*tried, (large, 16, "channels-last"), (large, 16, "kept memory")]]
    ratios += [*within(small, 16, options.rounds), *within(large, 16, options.rounds)]
    ratios += [inference(net, options.rounds) for net in (small, "tf_efficientnet_lite0", large)]
    ratios += arithmetic(options.rounds)
    if options.compile:
        ratios += [one for net in (small, large) for one in compiled(net, options.rounds)]
    report("parts", f"A step in session {SESSIONS} without one measure / with all, 224 px", ratios)


if __name__ == "__main__":
    main()
