"""Engines carry out the runs of a grid: as processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import UserError, unknown_name
from ..core.pools import start_ray


class Work(NamedTuple):
    """A run to carry out.

    Attributes:
        config: file with its settings.
        out: its folder.
        log: file for its output.
        processors: number of threads it computes with.
        devices: number of GPUs or processes it uses.
    """

    config: Path
    out: Path
    log: Path
    processors: int
    devices: int


class LocalRun(NamedTuple):
    """A run in a process on this machine."""

    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> str | None:
        """None while the run is in progress, "" when it is done, else one line that says how it failed."""
        if self.process.poll() is None:
            return None
        _close_input(self.process)
        return _verdict(self.process.returncode, self.log)

    def stop(self) -> None:
        """Stop the run now."""
        _close_input(self.process)  # which ends the run
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RayRun(NamedTuple):
    """A run in a task of a Ray cluster."""

    ray: Any  # the module: Ray has no types
    task: Any

    def ended(self) -> str | None:
        """As for `LocalRun`."""
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            return str(self.ray.get(self.task))
        except self.ray.exceptions.RayError as error:  # the machine was lost, or memory ran out
            return str(error).strip().splitlines()[0]

    def stop(self) -> None:
        """Stop the run now."""
        self.ray.cancel(self.task, force=True)


class LocalEngine:
    """Each run is a process on this machine, with its own GPUs if there are several."""

    def start(self, work: Work, slot: int) -> LocalRun:
        """Start a run in one of the grid's slots, numbered from 0."""
        import torch

        return LocalRun(_start(work, visible_gpus(slot, work.devices, torch.cuda.device_count())), work.log)

    def close(self) -> None:
        """There is nothing to release."""


class RayEngine:
    """Each run is a task of a Ray cluster: the one at RAY_ADDRESS, or a new one on this machine.

    All machines need mlcil, the data and the grid's folder under the same paths.

    Arguments:
        processors: number of processors of a cluster on this machine.

    Raises:
        UserError: Ray is not installed or cannot be started.
    """

    def __init__(self, processors: int) -> None:
        self.ray = start_ray(processors)
        self.nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def start(self, work: Work, slot: int) -> RayRun:
        """Start a task wherever the cluster has room."""
        gpus = work.devices if any(node.get("GPU") for node in self.nodes) else 0
        wanted = {"CPU": work.processors, "GPU": gpus}
        if not any(all(node.get(kind, 0) >= count for kind, count in wanted.items()) for node in self.nodes):
            raise UserError(
                f"no machine of the Ray cluster has {work.processors} processors and {gpus} GPUs for one run; "
                "lower --set threads=N or --devices"
            )
        task = self.ray.remote(num_cpus=work.processors, num_gpus=gpus, max_retries=0)(_run_to_end)
        return RayRun(self.ray, task.remote(work))

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()


Running = LocalRun | RayRun
Engine = LocalEngine | RayEngine


def make_engine(name: str, processors: int) -> Engine:
    """Make the engine with this name, for runs that together need this number of processors.

    Raises:
        UserError: there is no engine with this name, or it cannot be used here.
    """
    if name == "local":
        return LocalEngine()
    if name == "ray":
        return RayEngine(processors)
    raise unknown_name("engine", name, ("local", "ray"))


def visible_gpus(slot: int, devices: int, gpus: int) -> dict[str, str]:
    """The GPUs that the run in a slot may use, as a change to its environment; slots share if there are too few."""
    if gpus < 2:
        return {}
    mine = os.environ.get("CUDA_VISIBLE_DEVICES")  # we may have been given only some of the machine's
    names = mine.split(",") if mine else [str(number) for number in range(gpus)]
    chosen = [names[(slot * devices + place) % gpus] for place in range(min(devices, gpus))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def _start(work: Work, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    work.log.parent.mkdir(parents=True, exist_ok=True)
    threads = {"OMP_NUM_THREADS": str(max(1, work.processors // work.devices))}
    with work.log.open("ab") as log, _interrupts_held_back():
        return subprocess.Popen(  # noqa: S603 - ourselves, and no shell
            [sys.executable, "-m", "mlcil.experiments.child", str(work.config), str(work.out)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads, "PYTHONUNBUFFERED": "1", **environment},
        )


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process started here never gets Ctrl-C, which the terminal sends to all: it ends when the grid does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _run_to_end(work: Work) -> str:
    """The task of a Ray worker; if the worker dies, the run's standard input closes, which ends the run."""
    process = _start(work, {})
    try:
        return _verdict(process.wait(), work.log)
    finally:
        _close_input(process)


def _verdict(code: int, log: Path) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return last_line(log).removeprefix("mlcil: ") or f"ended with code {code}"


def last_line(log: Path) -> str:
    """The last line of a file that is not blank."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
