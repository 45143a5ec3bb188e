"""What a training step costs: KRT against its literal form, against its backbone alone, and as sessions grow.

`make speed` runs this. Each side has a process of its own, for the allocator belongs to a process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from literal import LiteralTagger, literal_losses, literal_optimiser
from measure import Job, Ratio, Worker, medians, report

from mlcil.core.allocation import keep_freed_memory
from mlcil.data.loading import Batch
from mlcil.memory.buffer import Budget
from mlcil.methods.base import LOSS_SCALE, Task, frozen_copy
from mlcil.methods.krt import KRT, KRTConfig
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import TaggerNet
from mlcil.training.optimiser import make_optimiser

SIZE, CLASSES = 224, 10
NETS = {"tresnet_m": "TResNet-M", "mobilenetv2_100": "MobileNetV2"}


def grown(net: str, sessions: int, freeze: str = "none") -> KRT:
    """KRT in the middle of a session, at random weights."""
    torch.manual_seed(0)
    backbone = Backbone(net, SIZE)
    backbone.freeze(freeze)
    method = KRT(KRTConfig(), backbone, Task("coco", 10 * sessions), Budget.parse("0"))
    for number in range(1, sessions + 1):
        if number == sessions:
            method.teacher = frozen_copy(method.tagger)
        method.tagger.grow(CLASSES)
    method.tagger.freeze_old_sessions()
    method.tagger.train()
    return method


def made_up(batch: int, sessions: int) -> Batch:
    """Noise with a few labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, SIZE, SIZE, generator=generator)
    labels = (torch.rand(batch, CLASSES * sessions, generator=generator) < 0.05).to(torch.int8)
    return Batch(images, labels, torch.arange(batch))


def stepper(method: KRT, data: Batch, optimiser: torch.optim.Optimizer) -> Job:
    """A training step of a method."""

    def step() -> None:
        terms = method.losses(data)
        (LOSS_SCALE * torch.stack(list(terms.values())).sum()).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def our_step(net: str, batch: int, sessions: int) -> Job:
    """A step of this library."""
    keep_freed_memory()
    method, data = grown(net, sessions), made_up(batch, sessions)
    return stepper(method, data, make_optimiser(method.tagger, 1e-4, 1e-4))


def literal_step(net: str, batch: int, sessions: int) -> Job:
    """The same step as it is usually written."""
    method, data = grown(net, sessions), made_up(batch, sessions)
    assert method.teacher is not None
    student, teacher = LiteralTagger(method.tagger).train(), LiteralTagger(method.teacher).eval()
    optimiser, weight = literal_optimiser(student), method._weight(method.config.token_weight)

    def step() -> None:
        terms = literal_losses(student, teacher, data.images, data.labels, method.threshold, weight)
        (LOSS_SCALE * (terms["classification"] + terms["token"])).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def backbone_step(net: str, batch: int, sessions: int) -> Job:
    """What no method with a teacher can do without: both backbones, backward, and the backbone's Adam."""
    keep_freed_memory()
    method, data = grown(net, sessions), made_up(batch, sessions)
    assert method.teacher is not None
    student, teacher = method.tagger.backbone, method.teacher.backbone
    optimiser = torch.optim.Adam([one for one in student.parameters() if one.requires_grad], fused=True)

    def step() -> None:
        student(data.images).sum().backward()
        with torch.no_grad():
            teacher(data.images)
        optimiser.step()
        optimiser.zero_grad()

    return step


def other_parts(net: str, batch: int, sessions: int) -> Job:
    """All the rest of a step: attention, heads, losses, tokens and their Adam, from given feature maps."""
    keep_freed_memory()
    method, data = grown(net, sessions), made_up(batch, sessions)
    assert method.teacher is not None
    with torch.no_grad():
        maps = method.tagger.backbone(data.images)
    given = maps.clone(memory_format=torch.preserve_format).requires_grad_()
    method.tagger.backbone.requires_grad_(False)
    start_at_maps((method.tagger, method.teacher), True)
    optimiser = make_optimiser(method.tagger, 1e-4, 1e-4)
    step = stepper(method, Batch(given, data.labels, data.indices), optimiser)

    def from_maps() -> None:
        step()
        given.grad = None

    return from_maps


def start_at_maps(taggers: Sequence[TaggerNet], yes: bool) -> None:
    """Let taggers take feature maps in place of images, or no longer."""
    for tagger in taggers:
        tagger.backbone._cut = len(tagger.backbone._layers) if yes else 0


def check(net: str) -> None:
    """Literal and ours must give the same losses and gradients; stops the benchmark if not."""
    method, data = grown(net, 3), made_up(4, 3)
    assert method.teacher is not None
    student, teacher = LiteralTagger(method.tagger).train(), LiteralTagger(method.teacher).eval()
    ours = method.losses(data)
    weight = method._weight(method.config.token_weight)
    theirs = literal_losses(student, teacher, data.images, data.labels, method.threshold, weight)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
    sum(ours.values(), torch.zeros(())).backward()
    sum(theirs.values(), torch.zeros(())).backward()
    ours_kt, theirs_kt = method.tagger.attention.kt.grad, student.attention.kt.grad
    torch.testing.assert_close(ours_kt, theirs_kt, rtol=1e-2, atol=1e-3 * float(theirs_kt.abs().max()))


def parts(net: str, batch: int, sessions: int) -> dict[str, float]:
    """Where the time of our step goes, as shares of the whole."""
    keep_freed_memory()
    method, data = grown(net, sessions), made_up(batch, sessions)
    optimiser = make_optimiser(method.tagger, 1e-4, 1e-4)
    seconds: dict[str, list[float]] = {}

    @contextmanager
    def lap(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    taggers = method.tagger, method.teacher
    for _ in range(4):
        with lap("student's backbone, forward"):
            now = taggers[0].backbone(data.images)
        held = now.detach().requires_grad_()
        start_at_maps(taggers, True)
        with lap("attention, heads and losses, forward"):
            terms = method.losses(Batch(held, data.labels, data.indices))
            total = LOSS_SCALE * torch.stack(list(terms.values())).sum()
        with lap("attention, heads and losses, backward"):
            total.backward()
        start_at_maps(taggers, False)
        with lap("student's backbone, backward"):
            now.backward(held.grad)
        with lap("teacher's backbone, forward"), torch.no_grad():
            taggers[1].backbone(data.images)
        with lap("Adam"):
            optimiser.step()
        optimiser.zero_grad()
    middle = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {name: round(value / sum(middle.values()), 4) for name, value in middle.items()}


def seconds_of(
    net: str, batch: int, rounds: int, kinds: Mapping[str, tuple[Callable[..., Job], int]]
) -> dict[str, float]:
    """Seconds of a step of each kind and session, each in its own process, interleaved."""
    workers = {name: Worker(factory, net, batch, sessions) for name, (factory, sessions) in kinds.items()}
    found = medians(workers, rounds)
    for worker in workers.values():
        worker.close()
    return found


def against_literal(net: str, batch: int, rounds: int, wanted: float | None) -> Ratio:
    """How much faster our step is in session 8."""
    check(net)
    found = seconds_of(net, batch, rounds, {"literal": (literal_step, 8), "ours": (our_step, 8)})
    name = f"{NETS[net]}, batch {batch}: literal step / ours, session 8"
    return Ratio(name, found["literal"] / found["ours"], at_least=wanted)


def growth(net: str, batch: int, rounds: int, most: tuple[float | None, float | None, float | None]) -> list[Ratio]:
    """What sessions cost: beside the backbone, and the more there are."""
    # Both in this process: two of them differ by more than what is to be seen.
    steps = medians({"2": our_step(net, batch, 2), "32": our_step(net, batch, 32)}, 2 * rounds)
    kinds = {"backbone": (backbone_step, 8), "8": (other_parts, 8), "32": (other_parts, 32)}
    parts = seconds_of(net, batch, rounds, kinds)
    name = f"{NETS[net]}, batch {batch}"
    beside = f"{name}: all but the backbone / backbone, session"
    return [
        Ratio(f"{beside} 8", parts["8"] / parts["backbone"], at_most=most[0]),
        Ratio(f"{beside} 32", parts["32"] / parts["backbone"], at_most=most[1]),
        Ratio(f"{name}: step in session 32 / session 2", steps["32"] / steps["2"], at_most=most[2]),
    ]


def main() -> None:
    """Print the ratios as a table and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ratios = [
        against_literal("tresnet_m", 16, rounds, 1.35),
        *growth("tresnet_m", 16, rounds, (0.05, 0.1, 1.05)),
        against_literal("mobilenetv2_100", 16, rounds, 1.7),
        against_literal("mobilenetv2_100", 64, rounds, None),
        *growth("mobilenetv2_100", 16, rounds, (None, None, None)),
    ]
    shares = {NETS[net]: parts(net, 16, 8) for net in NETS}
    for net, found in shares.items():
        print(f"{net}, where a step of session 8 goes:", ", ".join(f"{k} {100 * v:.1f} %" for k, v in found.items()))
    report("step", f"A step at {SIZE} px, {torch.get_num_threads()} threads", ratios, shares=shares)


if __name__ == "__main__":
    main()
