"""A million photographs and more: what sums take, measured on made-up ones, and what follows for many machines.

The time and the bytes of a shard are measured; the rest is arithmetic with them and with the photographs per second of
one core, which `speed/features.py` measures and leaves in runs/speed.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from measure import OUT, Ratio, report
from rich.console import Console
from rich.table import Table

from mlcil.core.cache import write_row
from mlcil.methods.shard_sums import read_sums
from mlcil.models.sums import SHARD, Sums

WIDTH = 1281  # features of EfficientNet-Lite0 and MobileNetV2, and the constant
LABELS = 80, 5000
PHOTOS = 10**6, 10**8
MACHINES, CORES = (1, 100), 8
RATE = 85.0  # photographs per second of one core, where nothing was measured
PHOTO_BYTES = 150_000  # of a JPEG file, as those of COCO have
NETWORK = 125e6  # bytes per second that a machine reads: 1 Gbit/s


class Shard(NamedTuple):
    """What a shard of SHARD photographs costs; seconds and bytes."""

    summing: float  # on one core
    merging: float  # reading its file and adding it
    size: int  # of its file


class Plan(NamedTuple):
    """How long it takes, in seconds."""

    features: float
    summing: float
    reading: float  # photographs over the network
    merging: float


def measure_shard(labels: int, folder: Path) -> Shard:
    """Sum over made-up photographs once, write the sums, read and add them."""
    described = torch.rand(SHARD, WIDTH - 1)
    shown = np.random.default_rng(0).random((SHARD, labels)) < 0.01
    began = time.perf_counter()
    sums = Sums.of(described, shown, with_constant, WIDTH)
    summing = time.perf_counter() - began
    file = str(folder / f"shards-{labels}" / "00" / "0")
    write_row(file, b"".join(one.numpy().tobytes() for one in (sums.gram, sums.cross)))
    began, total = time.perf_counter(), Sums.empty(WIDTH, labels)
    for _ in range(5):
        total = total + read_sums(file, WIDTH, labels)
    return Shard(summing, (time.perf_counter() - began) / 5, Path(file).stat().st_size)


def with_constant(described: torch.Tensor) -> torch.Tensor:
    """(n, p) -> (n, p + 1)."""
    return torch.cat([described, described.new_ones(len(described), 1)], 1)


def plan(photos: int, machines: int, shard: Shard, rate: float) -> Plan:
    """What so many photographs take on so many machines; one process merges."""
    shards, cores = photos / SHARD, machines * CORES
    return Plan(
        photos / rate / cores,
        shards * shard.summing / cores,
        photos * PHOTO_BYTES / NETWORK / machines,
        shards * shard.merging,
    )


def measured_rate() -> float:
    """Photographs per second of one core, as `speed/features.py` found."""
    file = OUT / "features.json"
    if not file.exists():
        return RATE
    found = json.loads(file.read_text())["ratios"]
    return float(next(one["value"] for one in found if one["name"].startswith("tf_") and one["unit"] == "images/s"))


def main() -> None:
    """Measure, compute, print."""
    torch.set_num_threads(1)
    rate = measured_rate()
    with tempfile.TemporaryDirectory() as folder:
        shards = {labels: measure_shard(labels, Path(folder)) for labels in LABELS}
    headings = "photographs", "labels", f"machines of {CORES} cores", "features", "sums", "reading", "merging", "moved"
    table = Table(*headings, title=f"{rate:.0f} photographs per second and core; minutes, and GB of sums moved")
    for photos in PHOTOS:
        for labels, shard in shards.items():
            for machines in MACHINES:
                minutes = [f"{seconds / 60:,.1f}" for seconds in plan(photos, machines, shard, rate)]
                moved = f"{photos / SHARD * shard.size / 1e9:,.1f}"
                table.add_row(f"{photos:,}", str(labels), str(machines), *minutes, moved)
    Console(width=120).print(table)
    ratios = [
        one
        for labels, shard in shards.items()
        for one in (
            Ratio(f"{labels} labels: sum over a shard", shard.summing, unit="s"),
            Ratio(f"{labels} labels: summing / features", shard.summing * rate / SHARD),
            Ratio(f"{labels} labels: read and add a shard", shard.merging, unit="s"),
            Ratio(f"{labels} labels: file of a shard", shard.size / 1e6, unit="MB"),
        )
    ]
    report("shards", f"sums over shards of {SHARD:,} photographs, {WIDTH} features", ratios)


if __name__ == "__main__":
    main()
