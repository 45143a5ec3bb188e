"""Three hundred sessions of one class each, learned in closed form from made-up features. `make bench` runs this.

What a session costs must not grow with the number of sessions, and the end must be what all images at once give. The
times of early and late sessions are compared as ratios of medians within one run: with one solution each, and with the
search for a strength, which takes three to five of them.
"""

from __future__ import annotations

import json
import statistics
import time

import torch

from mlcil.memory.statistics import Statistics
from mlcil.models.ridge import choose_ridge, solve

SESSIONS, IMAGES, WIDTH, WINDOW = 300, 100, 1024, 30


def made_up() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, d) with a constant last, and labels (N, K): a session's images show its class, some others too."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.eye(SESSIONS).repeat_interleave(IMAGES, 0)
    labels[torch.rand(len(labels), SESSIONS, generator=generator) < 0.01] = 1
    centres = torch.randn(SESSIONS, WIDTH, generator=generator)
    features = labels @ centres + 2 * torch.randn(len(labels), WIDTH, generator=generator)
    features[:, -1] = 1
    return features.double(), labels.double()


def late_to_early(seconds: list[float]) -> float:
    """The median of the last sessions over that of early ones."""
    return round(statistics.median(seconds[-WINDOW:]) / statistics.median(seconds[WINDOW : 2 * WINDOW]), 2)


def main() -> None:
    """Learn, compare, print."""
    features, labels = made_up()
    names = [f"class {number}" for number in range(SESSIONS)]
    told = torch.zeros_like(labels)  # a session is told its own class alone
    for number in range(SESSIONS):
        part = slice(number * IMAGES, (number + 1) * IMAGES)
        told[part, number] = labels[part, number]
    sums, once, whole, kept = Statistics.empty(WIDTH), [], [], []
    for number in range(SESSIONS):
        began = time.perf_counter()
        part = slice(number * IMAGES, (number + 1) * IMAGES)
        sums = sums.with_classes(names[: number + 1]).with_images(features[part], told[part, : number + 1])
        added = time.perf_counter()
        solution = choose_ridge(sums)
        searched = time.perf_counter()
        solve(sums, solution.ridge)
        once.append(added - began + time.perf_counter() - searched)
        whole.append(searched - began)
        kept.append(sum(tensor.numel() * tensor.element_size() for tensor in sums.state()[0].values()))
    batch = choose_ridge(Statistics.empty(WIDTH).with_classes(names).with_images(features, told))
    found = {
        "sessions": SESSIONS,
        "late / early seconds, one solution": late_to_early(once),
        "late / early seconds, with the search": late_to_early(whole),
        "bytes kept, first and last session": [kept[0], kept[-1]],
        "of which for the classes": 8 * (WIDTH + 2) * SESSIONS,
        "largest difference from all at once": float((solution.weights - batch.weights).abs().max()),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
