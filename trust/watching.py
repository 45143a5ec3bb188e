"""What a process takes over a long time: memory, descriptors, threads, processes and disk, step by step."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from figures import Figure

TICKS = os.sysconf("SC_CLK_TCK")
WARM = 0.1  # part of a trial that may still fill caches
MEGABYTE = 1e6
CHECKPOINT = "progress.safetensors"  # comes when some seconds have passed, is replaced, and goes with its session
# A file may just be written when a process is looked at, and a pool starts a thread when it first needs it.
MORE = {"descriptors": 1, "threads": 2, "processes": 0}


class Sample(NamedTuple):
    """What a process has after some steps.

    Attributes:
        step: sessions, epochs, requests, lessons or marks so far.
        seconds: of its processors so far; other work on the machine does not count.
        memory: resident, in megabytes.
        disk: of the files that it has written, in megabytes.
    """

    step: int
    seconds: float
    memory: float
    descriptors: int
    threads: int
    processes: int
    disk: float


def sample(step: int, folder: Path, process: int | None = None) -> Sample:
    """Look at a process, by default this one, and at the folder that it writes to."""
    place = Path("/proc", str(process or os.getpid()))
    times = (place / "stat").read_text().rpartition(")")[2].split()  # its name may have spaces
    tasks = list((place / "task").iterdir())
    return Sample(
        step,
        (int(times[11]) + int(times[12])) / TICKS,
        int((place / "statm").read_text().split()[1]) * resource.getpagesize() / MEGABYTE,
        len(os.listdir(place / "fd")),
        len(tasks),
        sum(len(_children(task)) for task in tasks),
        size_of(folder) / MEGABYTE,
    )


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # a thread that has just ended
        return []


def size_of(folder: Path) -> int:
    """Bytes in the files of a folder but for a run's checkpoint; one that vanishes meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in set(names) - {CHECKPOINT}:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def watched(process: int, folder: Path, steps: Callable[[], int], is_running: Callable[[], bool]) -> list[Sample]:
    """Look at another process after each of its steps, as far as one can keep up, until it ends."""
    found: list[Sample] = []
    while is_running():
        step = steps()
        if not found or step > found[-1].step:
            try:
                found.append(sample(step, folder, process))
            except (FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
                break
        time.sleep(0.05)
    return found


def judged(name: str, samples: Sequence[Sample], unit: str, more: float, disk: float) -> list[Figure]:
    """What became of a process after it had warmed up.

    Arguments:
        unit: what a step is.
        more: megabytes that its memory may grow by.
        disk: kilobytes that a step may add, in the second half.
    """
    last = samples[-1].step
    warm = [one for one in samples if one.step >= WARM * last]
    early = [one for one in warm if one.step <= 2 * WARM * last] or warm[:1]
    late = [one for one in warm if one.step >= (1 - WARM) * last]
    half = next(one for one in samples if one.step >= last / 2)
    grown = statistics.median(one.memory for one in late) - statistics.median(one.memory for one in early)
    slope = statistics.linear_regression([one.step for one in warm], [one.memory for one in warm]).slope
    end = samples[-2]  # with the last step, what is written at the end may be there already
    added = 1000 * (end.disk - half.disk) / max(end.step - half.step, 1)
    return [
        Figure(f"{name}: {unit}s", last),
        Figure(f"{name}: memory early on, MB", statistics.median(one.memory for one in early)),
        Figure(f"{name}: memory in the end, MB more", grown, f"at most {more:g}", grown <= more),
        Figure(f"{name}: memory, MB more per 1,000 {unit}s", 1000 * slope),
        *(
            Figure(
                f"{name}: {what}, median early and late, most",
                f"{_middle(early, what):g}, {_middle(late, what):g}, {max(getattr(one, what) for one in warm)}",
                f"at most {most} more" if most else "no more",
                _middle(late, what) <= _middle(early, what) + most,
            )
            for what, most in MORE.items()
        ),
        Figure(f"{name}: disk, kB more per {unit} late", added, f"at most {disk:g}", added <= disk),
        Figure(f"{name}: processor ms per {unit}, early and late", f"{_pace(early):.1f}, {_pace(late):.1f}"),
    ]


def _middle(samples: Sequence[Sample], what: str) -> float:
    return float(statistics.median_high(getattr(one, what) for one in samples))


def _pace(samples: Sequence[Sample]) -> float:
    """Milliseconds per step."""
    first, last = samples[0], samples[-1]
    return 1000 * (last.seconds - first.seconds) / max(last.step - first.step, 1)
