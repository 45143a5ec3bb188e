"""What all measurements share: medians of interleaved repetitions, and a table of ratios beside what they should be.

Ratios are taken within one run: a busy machine blurs them but favours neither side.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Path("runs/speed")
Job = Callable[[], float | None]
"""Does its work once. It may return the seconds that count; else all of it does."""


@dataclass(frozen=True)
class Ratio:
    """A measured figure.

    Attributes:
        name: what it is.
        value: measured.
        at_least, at_most: what it should be, if anything was asked.
        unit: after the value, "x" for a ratio.
    """

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"

    @property
    def wanted(self) -> str:
        """What was asked, in words."""
        parts = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return ", ".join(parts)

    @property
    def shown(self) -> str:
        """The figure to three digits."""
        return f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.3g}"

    @property
    def is_met(self) -> bool:
        """Whether it is as asked."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)


class Worker:
    """A job in a process of its own, with its own allocator, that waits until it is called.

    Arguments:
        factory: importable; builds the job in the new process.
        arguments: for it, picklable.
    """

    def __init__(self, factory: Callable[..., Job], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, factory, arguments), daemon=True)
        self._process.start()
        self._pipe.recv()  # built

    def __call__(self) -> float:
        """Do the work once; returns its seconds, as the process itself measured them."""
        self._pipe.send(True)
        return float(self._pipe.recv())

    def close(self) -> None:
        """End the process."""
        self._pipe.send(False)
        self._process.join()


def medians(jobs: Mapping[str, Job], rounds: int = 5, warm_up: int = 1) -> dict[str, float]:
    """Seconds of each job, the median over interleaved rounds after some to warm up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for place in range(rounds + warm_up):
        for name, job in jobs.items():
            seconds = timed(job)
            if place >= warm_up:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(job: Job) -> float:
    """Seconds that a job takes, or says that it took."""
    began = time.perf_counter()
    told = job()
    return time.perf_counter() - began if told is None else told


def report(name: str, title: str, ratios: Sequence[Ratio], **further: Any) -> None:
    """Print a table and its JSON, and keep the JSON in runs/speed.

    Arguments:
        name: of the file.
        further: what else belongs into the JSON, such as a profile.
    """
    table = Table("what", "measured", "asked", "", title=title)
    for one in ratios:
        mark = ("yes" if one.is_met else "NO") if one.wanted else ""
        table.add_row(one.name, f"{one.shown} {one.unit}", one.wanted, mark)
    Console().print(table)
    found = {"title": title, "ratios": [asdict(one) for one in ratios], **further}
    print(json.dumps(found))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def _serve(pipe: Any, factory: Callable[..., Job], arguments: Sequence[Any]) -> None:
    job = factory(*arguments)
    pipe.send(True)
    while pipe.recv():
        pipe.send(timed(job))
