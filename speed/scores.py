"""What a session does besides training, at the size of COCO, against literal versions of it. `make speed` runs this.

The threshold of pseudo labels, the choice of exemplars and average precision, on made-up features and scores. Each
literal version must give the same result; if one does not, this ends with an error.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from measure import Ratio, medians, report
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torch import Tensor

from mlcil.data.published import BENCHMARKS
from mlcil.evaluation.metrics import average_precision
from mlcil.memory.herding import herd
from mlcil.methods.pseudo_labels import TOLERANCE, find_threshold

IMAGES, TEST_IMAGES, CLASSES, WIDTH, BATCH = 80_000, 40_000, 80, 2048, 64
TARGET, START, STEP, CAP = BENCHMARKS["coco"].labels_per_image, 0.8, 0.01, 1000
OF_A_CLASS, PICKS = 2_900, 20  # images that show a class, when each shows 2.9 of 80; exemplars of a class

Scores = NDArray[Any]


@dataclass
class Inference:
    """The head of a tagger over the pooled features of all images, batch after batch; it counts its passes.

    Attributes:
        features: (N, C).
        head: (C, K).
        bias: the same for all classes.
        passes: how often it was called.
    """

    features: Tensor
    head: Tensor
    bias: float
    passes: int = 0

    @classmethod
    def made_up(cls) -> Inference:
        """Logits are normal, so far below 0 that the target is met near 0.5."""
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(IMAGES, WIDTH, generator=generator)
        return cls(features, torch.randn(WIDTH, CLASSES, generator=generator) * 2 / WIDTH**0.5, -3.6)

    def __call__(self) -> Scores:
        """(N, K) probabilities."""
        self.passes += 1
        return torch.cat(
            [torch.sigmoid(one @ self.head + self.bias) for one in torch.split(self.features, BATCH)]
        ).numpy()


def literal_threshold(
    infer: Callable[[], Scores], target: float, start: float, step: float, tolerance: float
) -> tuple[float, int]:
    """KRT's algorithm 1 as written, with the old model's scores computed anew at every move; also says the moves."""
    threshold = start
    for moves in range(CAP):
        mean = (infer() > np.float64(threshold)).sum(axis=1).mean()
        if abs(mean - target) <= tolerance:
            return threshold, moves
        threshold += step if mean > target else -step
    raise SystemExit(f"the walk did not end within {CAP} moves")


def literal_herding(features: NDArray[np.float32], count: int) -> list[int]:
    """iCaRL's algorithm 4 as written: the image that brings the mean of the picks nearest to that of the class."""
    points = features.astype(np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    mean, picks = points.mean(axis=0), list[int]()
    for number in range(1, count + 1):
        means = (points + points[picks].sum(axis=0)) / number  # (N, C), with each image as the next pick
        picks.append(int(np.linalg.norm(mean - means, axis=1).argmin()))
    return picks


def thresholds() -> list[Ratio]:
    """How often and how long both searches look at the images, and how long they take on scores that are there."""
    once = Inference.made_up()
    again, scores, rounds, found = replace(once, passes=0), once(), 3, dict[str, float]()
    once.passes = 0

    def literal(name: str, infer: Callable[[], Scores]) -> None:
        found[name], found["moves"] = literal_threshold(infer, TARGET, START, STEP, TOLERANCE)

    def ours(name: str, infer: Callable[[], Scores]) -> None:
        found[name] = find_threshold(infer(), TARGET, START, STEP).value

    whole = medians({"literal": lambda: literal("literal", again), "ours": lambda: ours("ours", once)}, rounds, 0)
    search = medians(
        {"literal": lambda: literal("cached", lambda: scores), "ours": lambda: ours("ours, cached", lambda: scores)}
    )
    moves = found.pop("moves")
    if len({*found.values()}) > 1:
        raise SystemExit(f"the thresholds differ: {found}")
    return [
        Ratio("pseudo labels: moves of the walk", moves, 20, 40, unit=""),
        Ratio("pseudo labels: passes, literal", again.passes / rounds, unit=""),
        Ratio("pseudo labels: passes, ours", once.passes / rounds, at_most=1, unit=""),
        Ratio("pseudo labels: literal / ours", whole["literal"] / whole["ours"], at_least=20),
        Ratio("pseudo labels, the search alone: literal / ours", search["literal"] / search["ours"]),
        Ratio("pseudo labels: the search / a pass of the head", search["ours"] / (whole["ours"] - search["ours"])),
    ]


def exemplars() -> list[Ratio]:
    """The time to choose the exemplars of a class."""
    generator = np.random.default_rng(0)
    features = np.abs(generator.standard_normal((OF_A_CLASS, WIDTH), np.float32))  # pooled after a ReLU
    found: dict[str, list[int]] = {}

    def literal() -> None:
        found["literal"] = literal_herding(features, PICKS)

    def ours() -> None:
        found["ours"] = herd(features, PICKS).tolist()

    seconds = medians({"literal": literal, "ours": ours}, rounds=3)
    if found["literal"] != found["ours"]:
        raise SystemExit(f"the picks differ: {found}")
    return [
        Ratio(f"herding, {PICKS} of {OF_A_CLASS}: literal / ours", seconds["literal"] / seconds["ours"]),
        Ratio(f"herding of {CLASSES} classes: literal", CLASSES * seconds["literal"], unit="s"),
        Ratio(f"herding of {CLASSES} classes: ours", CLASSES * seconds["ours"], unit="s"),
    ]


def precision(name: str, scores: Scores, labels: NDArray[np.int8]) -> list[Ratio]:
    """Time and memory of the average precision of all classes, and how far it is from scikit-learn's."""
    found: dict[str, Scores] = {}

    def literal() -> None:
        found["literal"] = np.array([average_precision_score(labels[:, k], scores[:, k]) for k in range(CLASSES)])

    def ours() -> None:
        found["ours"] = average_precision(scores, labels)

    seconds = medians({"literal": literal, "ours": ours}, rounds=3)
    tracemalloc.start()
    ours()
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    difference = float(np.abs(found["literal"] - found["ours"]).max())
    if not difference <= 1e-12:
        raise SystemExit(f"average precision, {name}, differs from scikit-learn's by {difference:g}")
    return [
        Ratio(f"mAP, {name}: seconds", seconds["ours"], at_most=0.5, unit="s"),
        Ratio(f"mAP, {name}: scikit-learn / ours", seconds["literal"] / seconds["ours"]),
        Ratio(f"mAP, {name}: largest difference", difference, at_most=1e-12, unit=""),
        Ratio(f"mAP, {name}: memory on top", megabytes, at_most=100, unit="MB"),
    ]


def main() -> None:
    """Measure all, print and keep it."""
    generator = np.random.default_rng(0)
    labels = (generator.random((TEST_IMAGES, CLASSES)) < TARGET / CLASSES).astype(np.int8)
    logits = generator.standard_normal(labels.shape, np.float32) * 2 - 4 + 3 * labels
    scores = 1 / (1 + np.exp(-logits.astype(np.float32)))
    ratios = thresholds() + exemplars()
    ratios += precision("no ties", scores, labels) + precision("ties", scores.round(2), labels)
    report("scores", f"a session's scores at the size of COCO, {torch.get_num_threads()} threads", ratios)


if __name__ == "__main__":
    main()
