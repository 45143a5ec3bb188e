"""Telling people how far a run is: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ..core.escaping import printable
from ..core.progress import Show, duration, pace
from ..core.words import counted
from ..data.images import Finding, Level
from ..evaluation.results import SessionResult

PLAIN_SECONDS = 10.0  # between plain lines
FIRST_SECONDS = 5.0  # before the first plain line of a pass over images


class Reporter:
    """Prints what a run does.

    Arguments:
        console: where to.
        work: for each session, how many images its training will go over in all epochs; for the time left.
    """

    def __init__(self, console: Console, work: Sequence[int]) -> None:
        self.console, self.work = console, list(work)
        self._bar: Progress | None = None
        self._task: Any = None
        self._session, self._done_at_start, self._began = 0, 0.0, 0.0
        self._said = time.monotonic()
        self._losses = ""

    def say(self, text: str) -> None:
        """Print a line."""
        self._said = time.monotonic()
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def findings(self, findings: Sequence[Finding]) -> None:
        """Print what matters about the data, the worst first and so that it cannot be overlooked."""
        for level, text in sorted(findings):
            if level == Level.FIX_FIRST:
                self.console.print(Text(f"WARNING: {printable(text)}", style="bold red"), soft_wrap=True)
            elif level == Level.LOOK:
                self.say(f"note: {text}")

    def session(self, number: int, new_classes: Sequence[str], images: int, epochs: int, done: float) -> None:
        """A session's training begins, or goes on where a part `done` of it is behind."""
        self.work[number - 1] = images * epochs
        self._session, self._done_at_start, self._losses = number, done, ""
        self._began = time.monotonic()
        names = ", ".join(new_classes[:6]) + (f" and {len(new_classes) - 6} more" if len(new_classes) > 6 else "")
        self.say(f"session {number}/{len(self.work)}: {names or 'no new class'}; {images} images")
        if self.console.is_terminal:
            self._bar = self._bar or self._make_bar()
            self._task = self._bar.add_task(f"session {number}", total=100, completed=round(100 * done), text="")

    def step(self, epoch: int, done: float) -> None:
        """A part `done` of the session's training is behind."""
        if self._bar is not None:
            text = f"epoch {epoch + 1} {self._losses} {self._rate(done)}"
            self._bar.update(self._task, completed=100 * done, text=text)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self.say(f"  epoch {epoch + 1}, {done:.0%} of the session, {self._rate(done)}")

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch is done."""
        self._losses = ", ".join(f"{name} {value:.4f}" for name, value in record["losses"].items())
        rate = self._rate(record["epoch"] / epochs)
        self.say(f"  session {record['session']} epoch {record['epoch']}/{epochs}: {self._losses}, {rate}")

    def images(self, what: str) -> Show:
        """Begin a pass over images; call what this gives with how many are done and how many there are."""
        began, wait, task = time.monotonic(), FIRST_SECONDS, None

        def show(done: int, total: int) -> None:
            nonlocal wait, task
            text = pace(time.monotonic() - began, done, total)
            if self.console.is_terminal:
                self._bar = self._bar or self._make_bar()
                task = self._bar.add_task(what, text=text) if task is None else task
                self._bar.update(task, completed=done, total=total, text=text, visible=done < total)
            elif time.monotonic() - self._said >= wait:
                wait = PLAIN_SECONDS
                self.say(f"  {what}: {text}")

        return show

    def result(self, result: SessionResult) -> None:
        """A session is done and measured."""
        self.stop()
        forgotten = f", forgetting {result.metrics['forgetting']:.1f}" if result.session > 1 else ""
        classes = counted(len(result.classes), "class", "classes")
        self.say(
            f"  after session {result.session}: {_map_text(result.map)} over {classes} "
            f"on {result.test_images} test images{forgotten}"
        )

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _make_bar(self) -> Progress:
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
        bar = Progress(*columns, console=self.console, transient=True)
        bar.start()
        return bar

    def _rate(self, done: float) -> str:
        images = (done - self._done_at_start) * self.work[self._session - 1]
        rate = images / max(time.monotonic() - self._began, 1e-9)
        left = (1 - done) * self.work[self._session - 1] + sum(self.work[self._session :])
        return f"{rate:.0f} images/s, {duration(left / max(rate, 1e-9))} left"


def _map_text(value: float | None) -> str:
    return "no mAP, as every test image shows every class," if value is None else f"mAP {value:.2f}"
