"""Three hundred sessions of one class each, learned in closed form from made-up features. `make speed` runs this.

What a session costs must not grow with the number of sessions, nor what is kept beyond a column for each class, and
the end must be what all images at once give. An early and a late session are timed in turns: with one solution each,
and with the search for a strength, which takes three to five of them.
"""

from __future__ import annotations

import torch
from measure import Ratio, medians, report
from mlcil.models.statistics import Statistics

from mlcil.models.ridge import choose_ridge, solve

SESSIONS, IMAGES, WIDTH, EARLY, LATE = 300, 100, 1024, 45, 285
NAMES = [f"class {number}" for number in range(SESSIONS)]


def made_up() -> tuple[torch.Tensor, torch.Tensor]:
    """Features (N, d) with a constant last, and labels (N, K): a session's images show its class, some others too."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.eye(SESSIONS).repeat_interleave(IMAGES, 0)
    labels[torch.rand(len(labels), SESSIONS, generator=generator) < 0.01] = 1
    centres = torch.randn(SESSIONS, WIDTH, generator=generator)
    features = labels @ centres + 2 * torch.randn(len(labels), WIDTH, generator=generator)
    features[:, -1] = 1
    return features.double(), labels.double()


def told_in_turn(labels: torch.Tensor) -> torch.Tensor:
    """(N, K) what is told: a session its own class alone."""
    own = torch.eye(SESSIONS, dtype=torch.bool).repeat_interleave(IMAGES, 0)
    return labels.where(own, 0.0)


def seconds(before: dict[int, Statistics], features: torch.Tensor, told: torch.Tensor) -> dict[str, float]:
    """Of an early and a late session, by name, from the sums before each."""

    def once(number: int, ridge: float) -> None:
        solve(after(before[number], number, features, told), ridge)

    def search(number: int) -> None:
        choose_ridge(after(before[number], number, features, told))

    ridge = choose_ridge(before[EARLY]).ridge
    jobs = {f"one {number}": lambda number=number: once(number, ridge) for number in before}
    jobs |= {f"search {number}": lambda number=number: search(number) for number in before}
    return medians(jobs, rounds=15)


def after(sums: Statistics, number: int, features: torch.Tensor, told: torch.Tensor) -> Statistics:
    """The sums with one session more."""
    part = slice(number * IMAGES, (number + 1) * IMAGES)
    return sums.with_classes(NAMES[: number + 1]).with_images(features[part], told[part, : number + 1])


def size(sums: Statistics) -> int:
    """Bytes that are kept."""
    return sum(value.numel() * value.element_size() for value in vars(sums).values() if isinstance(value, torch.Tensor))


def main() -> None:
    """Learn, compare, print."""
    features, labels = made_up()
    told = told_in_turn(labels)
    sums, before, kept = Statistics.empty(WIDTH), dict[int, Statistics](), list[int]()
    for number in range(SESSIONS):
        if number in (EARLY, LATE):
            before[number] = sums
        sums = after(sums, number, features, told)
        kept.append(size(sums))
    batch = choose_ridge(Statistics.empty(WIDTH).with_classes(NAMES).with_images(features, told))
    difference = float((choose_ridge(sums).weights - batch.weights).abs().max())
    of_classes = [8 * (WIDTH + 2) * count for count in (1, SESSIONS)]
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
