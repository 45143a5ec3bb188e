"""A thousand sessions of one label, and one session of five thousand, in closed form from made-up features.

What a session costs must not grow with the number of sessions, nor what is kept, beyond what each label and each image
adds; and the end must be what all images at once give. `make speed` runs this.

Some things must grow: a column of the sums for each label, which is solved for and gets a threshold, and with
fingerprints 8 bytes and the labels of each image. So a session is timed with all columns, and with those of the first
labels alone.
"""

from __future__ import annotations

import resource
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from measure import Ratio, medians, report
from numpy.typing import NDArray

from mlcil.models.ledger import OWN, Ledger
from mlcil.models.ridge import choose_ridge
from mlcil.models.score_model import score_model
from mlcil.models.sums import DescribedImages

WIDTH, IMAGES, BACK = 1025, 40, 4
MARKS = 30, 100, 300, 1000  # sessions of one label each that are looked at
LABELS, IMAGES_OF_LABELS = (80, 500, 5000), 2000  # of one session
NAMES = tuple(f"label {number}" for number in range(max(*MARKS, *LABELS)))


class Given(NamedTuple):
    """What a session is given."""

    prints: NDArray[np.int64]  # (n,)
    features: torch.Tensor  # (n, d), the last of which is 1
    told: NDArray[np.int8]  # (n, K)


@cache
def looks(labels: int) -> torch.Tensor:
    """(K, d) what each label adds to the features."""
    return torch.randn(labels, WIDTH, generator=torch.Generator().manual_seed(0))


def shown(present: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Features (n, d) of images that show labels (n, K)."""
    features = present @ looks(present.shape[1]) + 4 * torch.randn(len(present), WIDTH, generator=generator)
    features[:, -1] = 1
    return features.double()


def own(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (n, d) and labels (n, K) of the images of one label's session, from 1; half of them show it."""
    generator = torch.Generator().manual_seed(number)
    present = torch.zeros(IMAGES, max(MARKS))
    present[torch.arange(IMAGES), torch.randint(max(MARKS), (IMAGES,), generator=generator)] = 1
    present[: IMAGES // 2, number - 1] = 1
    return shown(present, generator), present


def given(number: int) -> Given:
    """One label's session: its own images, and some of the one before that come back."""
    (features, present), (old, old_present) = own(number), own(number - 1)
    back = slice(0, BACK if number > 1 else 0)
    told = np.full((IMAGES + back.stop, number), -1, np.int8)
    told[:, -1] = torch.cat([present, old_present[back]])[:, number - 1]
    prints = number * IMAGES + np.arange(IMAGES)
    return Given(np.append(prints, prints[back] - IMAGES), torch.cat([features, old[back]]), told)


def after(ledger: Ledger, number: int, one: Given, remembers: bool) -> Ledger:
    """The ledger with one session more."""
    ledger = ledger.with_classes(NAMES[: one.told.shape[1]])
    images = DescribedImages(lambda places: one.features[places], as_they_are, WIDTH)
    if remembers:
        return ledger.with_step(number, one.prints, one.told, images)
    return ledger.with_images(np.arange(len(one.told)), one.told, images)


def as_they_are(features: torch.Tensor) -> torch.Tensor:
    """The features, which need no expansion."""
    return features


def learn(ledger: Ledger, columns: int | None = None) -> None:
    """All that a session computes of its sums, for all labels or the first ones."""
    sums, names = ledger.sums(), ledger.classes
    if columns is not None:
        sums, names = sums.with_columns(range(columns)), names[:columns]
    score_model(sums, choose_ridge(sums, names)).best_thresholds()
    ledger.counts()


def kept(ledger: Ledger) -> dict[str, int]:
    """Bytes in memory: of matrices, of columns, and of what is known of each image."""
    known = *ledger.rows, *ledger.labels, *ledger.changes, ledger.fingerprints, ledger.group_of
    columns = [one for one in (*ledger.crosses, ledger.forgotten) if one is not None]
    parts = {"matrices": ledger.grams, "columns": columns, "images": known}
    return {name: sum(one.nbytes for one in values) for name, values in parts.items()}


def many_sessions(remembers: bool) -> tuple[list[Ratio], dict[str, object]]:
    """Of one label each."""
    ledger, before, used = Ledger(WIDTH), dict[int, Ledger](), dict[int, int]()
    total = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for number in range(1, max(MARKS) + 1):
        if number in MARKS:
            before[number], used[number] = ledger, memory()
        one = given(number)
        ledger = after(ledger, number, one, remembers)
        counted = one.features[:IMAGES] if remembers else one.features
        total.addmm_(counted.T, counted)
    tasks = {number: given(number) for number in MARKS}
    jobs = {
        f"{number}{name}": lambda number=number, columns=columns: learn(
            after(before[number], number, tasks[number], remembers), columns
        )
        for number in MARKS
        for name, columns in (("", None), (" without columns", MARKS[0]))
    }
    seconds = medians(jobs, rounds=7)
    sizes = {number: kept(before[number]) for number in MARKS}
    first, last, how = MARKS[0], MARKS[-1], "fingerprints" if remembers else "none"
    wrong = float((ledger.sums().matrix() - total.tril()).abs().max() / total.abs().max())
    name = f"remember {how}: session {last} / {first}"
    flat = seconds[f"{last} without columns"] / seconds[f"{first} without columns"]
    matrices = sizes[last]["matrices"] / sizes[first]["matrices"]
    process = used[last] / used[MARKS[1]]
    ratios = [
        Ratio(f"{name}, seconds but for columns", flat, at_most=1.5),
        Ratio(f"{name}, seconds", seconds[f"{last}"] / seconds[f"{first}"]),
        Ratio(f"{name}, bytes of matrices", matrices, at_most=(OWN + 1) / first if remembers else 1),
        Ratio(f"remember {how}: session {last} / {MARKS[1]}, memory of the process", process),
        Ratio(f"remember {how}: difference from all images at once", wrong, at_most=1e-9, unit=""),
    ]
    return ratios, {f"remember {how}": {"seconds": seconds, "bytes": sizes, "resident": used}}


def memory() -> int:
    """Bytes that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def many_labels() -> tuple[list[Ratio], dict[str, object]]:
    """In one session."""
    generator = torch.Generator().manual_seed(0)
    jobs, sizes = {}, {}
    for labels in LABELS:
        present = (torch.rand(IMAGES_OF_LABELS, labels, generator=generator) < 3 / labels).float()
        one = Given(np.arange(IMAGES_OF_LABELS), shown(present, generator), present.numpy().astype(np.int8))
        jobs[f"{labels}"] = lambda one=one: learn(after(Ledger(WIDTH), 1, one, True))
        sizes[labels] = kept(after(Ledger(WIDTH), 1, one, True))
    seconds = medians(jobs, rounds=3)
    first = seconds[f"{LABELS[0]}"]
    ratios = [Ratio(f"one session of {labels} / {LABELS[0]} labels", seconds[f"{labels}"] / first) for labels in LABELS]
    return ratios[1:], {"labels": {"seconds": seconds, "bytes": sizes}}


def main() -> None:
    """Learn, compare, print."""
    found = [many_sessions(True), many_sessions(False), many_labels()]
    ratios = [ratio for some, _ in found for ratio in some]
    further = {key: value for _, facts in found for key, value in facts.items()}
    title = f"closed form, {WIDTH} features, {torch.get_num_threads()} threads"
    report("sessions", title, ratios, **further)


if __name__ == "__main__":
    main()
