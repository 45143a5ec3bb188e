"""Hidden labels stay hidden: each method learns twice, the second time with noise for every label it may not see.

A comparison is a method on a protocol, with or without a buffer and images without a class; or a tagger that learns
from a table whose other labels and test labels are noise. The two outcomes must be equal to the bit.
"""

from __future__ import annotations

import csv
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from figures import Figure, Size, report, size_asked
from PIL import Image

from mlcil.data.poison import poisoned, with_negatives
from mlcil.data.protocol import Protocol
from mlcil.data.sources import load
from mlcil.methods.base import Method
from mlcil.methods.registry import all_methods
from mlcil.serving.learning import LearnOptions, learn
from mlcil.testing import LARGE_BASE, TINY, _same_outcome
from mlcil.training.config import RunConfig, make_config
from mlcil.training.run import run

PROTOCOLS = {"equal sessions": TINY["protocol"], "a large first session": LARGE_BASE}
ATTENTION = {"width": 16, "heads": 4, "labels_per_image": 2.5}
PROMPTS = {"backbone": "test_vit", "image_size": 32, "pool": 4, "length": 2, "chosen": 2}
DATA = "digits:train=60,test=20,size=16"


def options_of(name: str) -> dict[str, Any]:
    """Settings that keep a method small."""
    if name in ("analytic", "adaptive"):
        return {"expansion": 16}
    return PROMPTS if name == "l2p" else ATTENTION if name.startswith(("krt", "class")) else {}


def buffers(method: type[Method], everything: bool) -> list[str]:
    """The buffers to try: with and without one, as far as the method allows it."""
    allowed = {"none": ["0"], "optional": ["3", "0"], "required": ["3"]}[method.buffer_use]
    return allowed if everything else allowed[:1]


def cases(size: Size) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """A name for each comparison, its settings, and whether images without a class are part of it."""
    for seed in range(size.seed, size.seed + size.of(1, 3)):
        for place, (name, method) in enumerate(all_methods().items()):
            for number, (protocol, text) in enumerate(PROTOCOLS.items()):
                for buffer in buffers(method, size.full):
                    # In short one half of the methods has them with one protocol, the other half with the other.
                    for negatives in (False, True) if size.full else ((place + number) % 2 == 1,):
                        values = {"method": name, "protocol": text, "buffer": buffer, "seed": seed, "epochs": 1}
                        words = f"{name}, {protocol}, buffer {buffer}, negatives {negatives}, seed {seed}"
                        yield words, TINY | values | {"checkpoint_seconds": 300.0}, negatives


def is_equal(values: dict[str, Any], negatives: bool, folder: Path) -> bool:
    """Whether a run ends the same with noise."""
    config: RunConfig = make_config(values, options_of(values["method"]))

    def plain(protocol: Protocol) -> Protocol:
        return with_negatives(protocol) if negatives else protocol

    run(config, folder / "plain", _change=plain)
    run(config, folder / "noisy", _change=lambda protocol: poisoned(plain(protocol)))
    return _same_outcome(folder / "plain", folder / "noisy")


def write_tables(folder: Path, seed: int) -> tuple[str, str]:
    """Two tables of the same pictures: the second has noise for all labels but 0 and for the test part."""
    chance, images = random.Random(seed), load(DATA).train
    assert images.pixels is not None
    rows: tuple[list[list[str]], list[list[str]]] = ([], [])
    for number, (pixels, labels) in enumerate(zip(images.pixels, images.labels, strict=True)):
        file, split = folder / f"{number}.png", "test" if number % 4 == 0 else "train"
        Image.fromarray(pixels).save(file)
        noise = [one for one in range(10) if chance.random() < 0.4]
        hidden = noise if split == "test" else [*([0] if labels[0] == 1 else []), *(one for one in noise if one)]
        for table, shown in zip(rows, (labels.nonzero()[0].tolist(), hidden), strict=True):
            table.append([str(file), ";".join(f"digit {one}" for one in shown), split])
    for name, table in zip(("true", "noisy"), rows, strict=True):
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([["path", "labels", "split"], *table])
    return str(folder / "true.csv"), str(folder / "noisy.csv")


def learned_alike(method: str, jobs: int, seed: int, folder: Path) -> bool:
    """Whether a tagger that learns one label of a table ends the same with noise for the others; twice in a row."""
    tables = write_tables(folder, seed)
    small = {"image_size": 16, "threads": 1, "jobs": jobs, "cache": str(folder / "cache"), "seed": seed}
    trained = {"epochs": 1, "batch_size": 16, "validation": 0.2} if method != "analytic" else {}
    settings = small | trained | options_of(method)
    options = LearnOptions(method=method, backbone="small_conv", settings=settings, labels=("digit 0",))
    made = [learn(None, table, options)[0] for table in tables]
    if method == "analytic":  # which also learns a label again
        more = LearnOptions(settings={"jobs": jobs, "cache": small["cache"]}, labels=("digit 0",))
        made = [learn(tagger, table, more)[0] for tagger, table in zip(made, tables, strict=True)]
    one, other = (tagger.method.state().tensors for tagger in made)
    same = one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    return same and bool((made[0].thresholds == made[1].thresholds).all())


def main() -> None:
    """Compare, and report."""
    size = size_asked(__doc__)
    found: dict[str, list[str]] = {"run": [], "learn": []}
    different: list[str] = []
    for words, values, negatives in cases(size):
        with tempfile.TemporaryDirectory() as name:
            found["run"].append(words)
            different += [] if is_equal(values, negatives, Path(name)) else [words]
    # `learn` keeps no photos, so no method that has to rehearse; with two processes, sums are made of shards.
    without = [name for name, one in all_methods().items() if one.buffer_use != "required" and not one.is_joint]
    ways = [("analytic", 2), *((name, 1) for name in without)]
    for seed in range(size.seed, size.seed + size.of(1, 3)):
        for method, jobs in ways:
            with tempfile.TemporaryDirectory() as name:
                words = f"learn with {method}, {jobs} processes, seed {seed}"
                found["learn"].append(words)
                different += [] if learned_alike(method, jobs, seed, Path(name)) else [words]
    counts = [Figure(f"comparisons of {way}", len(ones)) for way, ones in found.items()]
    counts += [Figure("methods", len(all_methods())), Figure("different", len(different), "0", not different)]
    report("Noise in place of hidden labels", counts, size, different=different, comparisons=found)


if __name__ == "__main__":
    main()
