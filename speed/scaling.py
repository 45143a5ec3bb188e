"""What more devices give: two processes against one, measured, and the paper's COCO run on GPUs, computed.

Measured over gloo through the real training loop, each process with one thread and the same batch of its own. Two
processes that do not talk to each other are measured too: what they lose to one is the machine's, not the library's.
No GPU is used; what is said of GPUs follows from published rates and the assumptions that are printed with it.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from measure import Job, Ratio, Worker, medians, report
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mlcil.data.augmentation import make_augmentation
from mlcil.data.images import DataSet, LabelledImages
from mlcil.data.loading import Batch, PixelFeed, Preparation
from mlcil.data.pixels import MemoryPixels
from mlcil.data.protocol import Session, make_protocol
from mlcil.memory.buffer import Budget
from mlcil.methods.base import LOSS_SCALE, Method, Task
from mlcil.methods.registry import method_class
from mlcil.models.backbone import Backbone
from mlcil.training.config import RunSettings
from mlcil.training.loop import Hooks, SessionTraining

SIZE, CLASSES, BATCH, STEPS, ROUNDS = 224, 10, 16, 3, 3

# KRT, section 4.1: COCO 2014 in sessions of ten classes.
EPOCHS, GLOBAL_BATCH, TRAINING_IMAGES, TEST_IMAGES = 20, 64, 82_783, 40_504
# The part of the images that show a class of session 1 to 8 (training) or any class up to then (test): in a slice of
# 6,000 and 2,000 images with more of the rare classes than COCO has. An estimate, rather too high.
TRAINING_SHARES = [one / 6000 for one in (1403, 2109, 2088, 1338, 3739, 1397, 1338, 1586)]
TEST_SHARES = [one / 2000 for one in (442, 979, 1296, 1482, 1823, 1881, 1910, 2000)]
# Images per second of TResNet-M at 224 on a V100 in mixed precision, with large batches (Ridnik et al., 2020, and the
# table of the authors' repository).
TRAINED_PER_SECOND, INFERRED_PER_SECOND = 730.0, 2930.0
# Assumptions: what all GPUs of a machine exchange gradients at, in bytes per second, and what an operation costs
# the process that queues it.
LINKS = {"NVLink": 100e9, "PCIe": 10e9}
SECONDS_PER_OPERATION = 10e-6


# Made-up sessions ------------------------------------------------------------------------------


def made_up(images: int, sessions: int) -> tuple[list[Session], NDArray[np.uint8]]:
    """Sessions of ten classes with an object of each session in every image, and the pixels (N, H, W, 3)."""
    rng = np.random.default_rng(0)
    labels = np.zeros((images, sessions * CLASSES), np.int8)
    for number in range(sessions):
        labels[np.arange(images), number * CLASSES + np.arange(images) % CLASSES] = 1
    names = tuple(f"{number:02}" for number in range(sessions * CLASSES))
    part = LabelledImages(tuple(str(row) for row in range(images)), labels, names, "train")
    pixels = rng.integers(0, 256, (images, SIZE, SIZE, 3), np.uint8)
    return make_protocol(DataSet(part, part), f"B0-C{CLASSES}").sessions(), pixels


def krt_in(sessions: Sequence[Session], backbone: str) -> Method:
    """KRT, untrained, ready for the last of the sessions."""
    torch.manual_seed(0)
    kind = method_class("krt")
    total = len(sessions[-1].classes)
    method = kind(kind.Config(), Backbone(backbone, SIZE), Task("coco", total), Budget())
    for session in sessions:
        method.before_session(session, _Guess())
        if session is not sessions[-1]:
            method.after_session(session, _Guess())
    return method


class _Guess:
    """`methods.base.Inference` that looks at one grey image for all: nothing here depends on what it says."""

    def __call__(self, function: Callable[[Tensor], Tensor], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return function(torch.zeros(1, 3, SIZE, SIZE)).numpy().repeat(len(rows), axis=0)

    def total(self, function: Callable[[Batch], Tensor], chosen: Any) -> Tensor:
        raise AssertionError("KRT asks for no sums")

    def spread(self, work: Any, shards: Any, payloads: Any) -> None:
        raise AssertionError("KRT has no shards")


# Measured --------------------------------------------------------------------------------------


def make_training(rank: int, world: int, port: int) -> Job:
    """One of `world` processes that train KRT in its second session; the job's seconds are those of a step."""
    fabric = _joined(rank, world, port)
    sessions, pixels = made_up(STEPS * BATCH * world, 2)
    method = krt_in(sessions, "mobilenetv2_100")
    backbone, settings = method.tagger.backbone, RunSettings(epochs=1, batch_size=BATCH * world)
    prepare = Preparation(backbone.mean, backbone.std)
    loader = PixelFeed(MemoryPixels(pixels, SIZE), prepare, make_augmentation(settings.augment))
    training = SessionTraining(method, 2, method.training_set(sessions[1]), settings, fabric, loader)

    def job() -> float:
        marks: list[float] = []
        training.run(Hooks(lambda *_: marks.append(time.perf_counter()), lambda _: None, lambda *_: None))
        return (marks[-1] - marks[0]) / (len(marks) - 1)  # the first step is not counted: it waits for the other one

    return job


def make_exchange(rank: int, world: int, port: int, numbers: int) -> Job:
    """One of `world` processes that sum so many float32 numbers, and do nothing else."""
    _joined(rank, world, port)
    values = torch.ones(numbers)

    def job() -> float:
        torch.distributed.barrier()
        began = time.perf_counter()
        torch.distributed.all_reduce(values)
        return time.perf_counter() - began

    return job


def _joined(rank: int, world: int, port: int) -> Fabric:
    torch.set_num_threads(1)
    if world > 1:  # as torchrun would say it
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
        os.environ |= {key: str(value) for key, value in told.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "scaling"}
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
    fabric.launch()
    return fabric


def joined_pair(factory: Callable[..., Job], *arguments: Any) -> list[Worker]:
    """Two processes that know each other. Both are started at once: each waits for the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: Worker(factory, rank, 2, port, *arguments), range(2)))


def at_once(workers: Sequence[Worker]) -> Job:
    """The job of all workers at the same time; its seconds are their mean."""

    def job() -> float:
        with ThreadPoolExecutor(len(workers)) as pool:
            return statistics.fmean(pool.map(lambda worker: worker(), workers))

    return job


def measure_steps() -> dict[str, float]:
    """Seconds of a step of one process, of two apart and of two that exchange gradients."""
    apart, together = [Worker(make_training, 0, 1, 0) for _ in range(2)], joined_pair(make_training)
    found = medians({"one": apart[0], "apart": at_once(apart), "together": at_once(together)}, ROUNDS)
    for worker in (*apart, *together):
        worker.close()
    return found


def measure_exchange(numbers: int) -> float:
    """Seconds that two processes take to sum so many float32 numbers."""
    workers = joined_pair(make_exchange, numbers)
    found = medians({"exchange": at_once(workers)}, rounds=9, warm_up=2)["exchange"]
    for worker in workers:
        worker.close()
    return found


def measure_input() -> float:
    """Images per second that one core prepares with RandAugment, from pixels in memory."""
    count = 256
    pixels = np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, 3), np.uint8)
    loader = PixelFeed(
        MemoryPixels(pixels, SIZE), Preparation((0.5,) * 3, (0.5,) * 3), make_augmentation("randaugment")
    )
    parts, labels = list(np.arange(count).reshape(-1, GLOBAL_BATCH)), np.zeros((count, 1), np.int8)

    def job() -> float:
        began = time.process_time()  # of this core alone, whatever else runs
        for _ in loader.batches(parts, np.arange(count), labels, [(0,)] * len(parts)):
            pass
        return time.process_time() - began

    return count / medians({"input": job}, rounds=3)["input"]


# Counted ---------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Of KRT on TResNet-M in session 8.

    Attributes:
        forward, both: floating-point operations per image of the student, without and with the backward pass.
        heads: what attention and heads add to the backbone's forward pass, as a part of it.
        numbers: trained, as many as there are gradients.
        queued: operations that a process queues in a step, with the teacher's; the optimiser adds but a few.
    """

    forward: float
    both: float
    heads: float
    numbers: int
    queued: int


class _Queue(TorchDispatchMode):
    """Counts operations that a device would have to do; a view of a tensor is none."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count_parts() -> Counts:
    """Run one image through the paper's network, forth and back."""
    sessions, pixels = made_up(CLASSES, len(TRAINING_SHARES))
    method = krt_in(sessions, "tresnet_m")
    method.tagger.train()
    images = torch.from_numpy(pixels[:1]).permute(0, 3, 1, 2) / 255
    batch = Batch(images, torch.from_numpy(sessions[-1].labels[:1]), torch.zeros(1, dtype=torch.int64))
    with torch.no_grad():
        backbone = _operations(lambda: method.tagger.backbone(images))
        forward = _operations(lambda: method.tagger(images))
    both = _operations(lambda: method.tagger(images).logits.sum().backward())
    with _Queue() as queue:
        (LOSS_SCALE * torch.stack(list(method.losses(batch).values())).sum()).backward()
    trained = sum(one.numel() for one in method.tagger.parameters() if one.requires_grad)
    return Counts(forward, both, forward / backbone - 1, trained, queue.count)


def _operations(function: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter:
        function()
    return float(counter.get_total_flops())


# Computed --------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The paper's COCO B0-C10 on so many GPUs.

    Attributes:
        compute, queueing, exchange: seconds of a step that the GPU computes, that its process takes to tell it
            what to do, and that gradients travel.
        hours: in all, with evaluation and pseudo labels.
        rate: images per second in training.
        cores: that augment as many images.
        bound: the longest of the three.
    """

    gpus: int
    link: str
    compute: float
    queueing: float
    exchange: float
    hours: float
    rate: float
    cores: float
    bound: str


def computed(gpus: int, link: str, counts: Counts, core: float) -> Row:
    """What the published rates and the assumptions come to; `core` is what one prepares, in images per second."""
    grown = 1 + counts.heads
    student, teacher = grown / TRAINED_PER_SECOND, grown / INFERRED_PER_SECOND  # seconds per image
    exchange = 2 * (gpus - 1) / gpus * 4 * counts.numbers / LINKS[link]  # a ring, not overlapped: the worst case
    queueing = counts.queued * SECONDS_PER_OPERATION
    images = [share * TRAINING_IMAGES for share in TRAINING_SHARES]
    seconds = 0.0
    for number, count in enumerate(images):
        compute = GLOBAL_BATCH / gpus * (student + (teacher if number else 0.0))
        seconds += EPOCHS * count / GLOBAL_BATCH * (max(compute, queueing) + exchange)
        looked_at = TEST_SHARES[number] * TEST_IMAGES + (count if number else 0.0)  # evaluation and pseudo labels
        seconds += looked_at * teacher / gpus
    rate = GLOBAL_BATCH / (max(compute, queueing) + exchange)
    parts = {"compute": compute, "queueing": queueing, "exchange": exchange}
    longest = max(parts, key=lambda name: parts[name])
    return Row(gpus, link, compute, queueing, exchange, seconds / 3600, rate, rate / core, longest)


def show(rows: Sequence[Row]) -> None:
    """Print the computed table."""
    names = (
        "GPUs",
        "link",
        "compute ms",
        "queueing ms",
        "exchange ms",
        "images/s",
        "hours",
        "cores to feed",
        "bound by",
    )
    table = Table(*names, title="COCO 2014 B0-C10, KRT, 20 epochs, batch 64, 224 px: computed for V100s, not measured")
    for row in rows:
        times = [f"{1000 * one:.1f}" for one in (row.compute, row.queueing, row.exchange)]
        link = row.link if row.gpus > 1 else "-"
        table.add_row(str(row.gpus), link, *times, f"{row.rate:.0f}", f"{row.hours:.1f}", f"{row.cores:.1f}", row.bound)
    Console(width=140).print(table)


def main() -> None:
    """Measure, count, compute, print."""
    torch.set_num_threads(1)
    counts, core = count_parts(), measure_input()
    trained = sum(
        one.numel()
        for one in krt_in(made_up(CLASSES, 2)[0], "mobilenetv2_100").tagger.parameters()
        if one.requires_grad
    )
    steps, exchange = measure_steps(), measure_exchange(trained)
    rows = [computed(gpus, link, counts, core) for gpus in (1, 2, 8) for link in LINKS if gpus > 1 or link == "NVLink"]
    ratios = [
        Ratio("two processes / twice one, images per second", steps["one"] / steps["together"]),
        Ratio("two that exchange nothing / twice one", steps["one"] / steps["apart"]),
        Ratio("two processes / two that exchange nothing", steps["apart"] / steps["together"]),
        Ratio("images per second of one process", BATCH / steps["one"], unit="1/s"),
        Ratio("a bare exchange of the gradients / a step", 100 * exchange / steps["together"], unit="%"),
        Ratio("its gradients", 4 * trained / 1e6, unit="MB"),
        Ratio("its rate", 4 * trained / exchange / 1e9, unit="GB/s"),
        Ratio("TResNet-M forward, per image", counts.forward / 1e9, unit="GFLOP"),
        Ratio("TResNet-M forward and backward, per image", counts.both / 1e9, unit="GFLOP"),
        Ratio("attention and heads / backbone, session 8", 100 * counts.heads, unit="%"),
        Ratio("its gradients, TResNet-M", 4 * counts.numbers / 1e6, unit="MB"),
        Ratio("operations queued in a step", counts.queued / 1000, unit="thousand"),
        Ratio("an image sent to a device, as bytes", 3 * SIZE**2 / 1e6, unit="MB"),
        Ratio("all images in the pixel cache", (TRAINING_IMAGES + TEST_IMAGES) * 3 * SIZE**2 / 1e9, unit="GB"),
        Ratio("images per second that a core prepares", core, unit="1/s"),
    ]
    report("scaling", "More devices", ratios, computed=[row._asdict() for row in rows])
    show(rows)


if __name__ == "__main__":
    main()
