"""Three hundred sessions of one class each, learned in closed form from made-up features. `make speed` runs this.

What a session costs must not grow with the number of sessions, nor what is kept beyond a column for each class, and
the end must be what all images at once give. An early and a late session are timed in turns: with one solution each,
and with the search for a strength, which takes three to five of them.
"""

from __future__ import annotations

import numpy as np
import torch
from measure import Ratio, medians, report
from numpy.typing import NDArray

from mlcil.models.ledger import Ledger
from mlcil.models.ridge import Solution, choose_ridge, solve

SESSIONS, IMAGES, WIDTH, EARLY, LATE = 300, 100, 1024, 45, 285
NAMES = tuple(f"class {number}" for number in range(SESSIONS))


def made_up() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, d) with a constant last, and labels (N, K): a session's images show its class, some others too."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.eye(SESSIONS).repeat_interleave(IMAGES, 0)
    labels[torch.rand(len(labels), SESSIONS, generator=generator) < 0.01] = 1
    centres = torch.randn(SESSIONS, WIDTH, generator=generator)
    features = labels @ centres + 2 * torch.randn(len(labels), WIDTH, generator=generator)
    features[:, -1] = 1
    return features.double(), labels.double()


def told_in_turn(labels: torch.Tensor) -> NDArray[np.int8]:
    """(N, K) what is told: a session its own class alone."""
    own = torch.eye(SESSIONS, dtype=torch.bool).repeat_interleave(IMAGES, 0)
    return np.asarray(labels.where(own, 0.0).numpy().astype(np.int8))


def seconds(before: dict[int, Ledger], features: torch.Tensor, told: NDArray[np.int8]) -> dict[str, float]:
    """Of an early and a late session, by name, from the sums before each."""

    def once(number: int, ridge: float) -> None:
        solve(after(before[number], number, features, told).sums(), ridge)

    def search(number: int) -> None:
        chosen(after(before[number], number, features, told))

    ridge = chosen(before[EARLY]).ridge
    jobs = {f"one {number}": lambda number=number: once(number, ridge) for number in before}
    jobs |= {f"search {number}": lambda number=number: search(number) for number in before}
    return medians(jobs, rounds=15)


def chosen(ledger: Ledger) -> Solution:
    """The solution with a strength that is searched for."""
    return choose_ridge(ledger.sums(), ledger.classes)


def after(ledger: Ledger, number: int, features: torch.Tensor, told: NDArray[np.int8]) -> Ledger:
    """The ledger with one session more."""
    part = slice(number * IMAGES, (number + 1) * IMAGES)
    return ledger.with_classes(NAMES[: number + 1]).with_images(features[part], told[part, : number + 1], as_they_are)


def as_they_are(features: torch.Tensor) -> torch.Tensor:
    """The features, which need no expansion."""
    return features


def size(ledger: Ledger) -> int:
    """Bytes that are kept."""
    return sum(value.numel() * value.element_size() for value in (*ledger.grams, *ledger.crosses))


def main() -> None:
    """Learn, compare, print."""
    features, labels = made_up()
    told = told_in_turn(labels)
    ledger, before, kept = Ledger(WIDTH), dict[int, Ledger](), list[int]()
    for number in range(SESSIONS):
        if number in (EARLY, LATE):
            before[number] = ledger
        ledger = after(ledger, number, features, told)
        kept.append(size(ledger))
    batch = chosen(Ledger(WIDTH).with_classes(NAMES).with_images(features, told, as_they_are))
    difference = float((chosen(ledger).weights - batch.weights).abs().max())
    of_classes = [8 * WIDTH * count for count in (1, SESSIONS)]
    shared = (kept[-1] - of_classes[-1]) / (kept[0] - of_classes[0])
    found = seconds(before, features, told)
    ratios = [
        Ratio("late / early seconds, one solution", found[f"one {LATE}"] / found[f"one {EARLY}"], at_most=1.5),
        Ratio("late / early seconds, with the search", found[f"search {LATE}"] / found[f"search {EARLY}"]),
        Ratio("bytes kept beside those of the classes, last / first session", shared, at_most=1),
        Ratio("largest difference from all at once", difference, at_most=1e-8, unit=""),
    ]
    further = {"sessions": SESSIONS, "bytes": [kept[0], kept[-1]], "bytes_of_classes": of_classes, "seconds": found}
    report("sessions", f"{SESSIONS} sessions in closed form, {torch.get_num_threads()} threads", ratios, **further)


if __name__ == "__main__":
    main()
