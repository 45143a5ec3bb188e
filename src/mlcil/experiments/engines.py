"""What carries out the runs of a grid: processes on this machine, or a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..core.errors import UserError, unknown_name


class Work(NamedTuple):
    """A run to carry out.

    Attributes:
        config: file of its settings.
        out: its folder.
        log: file for what it prints.
        processors: it computes with so many threads.
        devices: processes or GPUs that it spreads over.
    """

    config: Path
    out: Path
    log: Path
    processors: int
    devices: int


class Engine(Protocol):
    """Starts runs and tells when they have ended."""

    def start(self, work: Work, slot: int) -> Any:
        """Begin a run in one of the grid's slots, numbered from 0; returns a handle."""
        ...

    def ended(self, handle: Any) -> str | None:
        """None while it runs, "" when it is done, else a line that says how it failed."""
        ...

    def stop(self, handle: Any) -> None:
        """End it now."""
        ...

    def close(self) -> None:
        """Nothing more is to be run."""
        ...


class LocalEngine:
    """Each run is a process of this machine, with GPUs of its own where there are some.

    Arguments:
        gpus: how many GPUs there are.
    """

    def __init__(self, gpus: int = 0) -> None:
        self.gpus = gpus

    def start(self, work: Work, slot: int) -> tuple[subprocess.Popen[bytes], Path]:
        """Begin a run."""
        return _start(work, visible_gpus(slot, work.devices, self.gpus)), work.log

    def ended(self, handle: tuple[subprocess.Popen[bytes], Path]) -> str | None:
        """How it stands."""
        process, log = handle
        if process.poll() is None:
            return None
        _close_input(process)
        return _verdict(process.returncode, log)

    def stop(self, handle: tuple[subprocess.Popen[bytes], Path]) -> None:
        """Close its standard input, which ends it."""
        process, _ = handle
        _close_input(process)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Nothing is held."""


class RayEngine:
    """Each run is a task of a Ray cluster: that of RAY_ADDRESS, or one on this machine.

    All machines need mlcil, the data and the grid's folder under the same paths.

    Arguments:
        processors: that a cluster on this machine has to give.

    Raises:
        UserError: Ray is not installed or cannot be started.
    """

    def __init__(self, processors: int) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("--engine ray needs Ray; install mlcil with its extra: mlcil[ray]") from None
        self.ray: Any = ray
        is_ours = not os.environ.get("RAY_ADDRESS")
        # Nothing is passed between runs: the least store that Ray allows, some 80 MB, is enough.
        ours = {"num_cpus": processors, "include_dashboard": False, "object_store_memory": 100_000_000}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # telling the makers of Ray is for the user to choose
        try:
            self.ray.init(log_to_driver=False, logging_level=logging.ERROR, **(ours if is_ours else {}))
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"Ray cannot be started: {str(error).splitlines()[0]}") from error
        self.nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def start(self, work: Work, slot: int) -> Any:
        """Begin a run wherever the cluster has room."""
        gpus = work.devices if any(node.get("GPU") for node in self.nodes) else 0
        wanted = {"CPU": work.processors, "GPU": gpus}
        if not any(all(node.get(kind, 0) >= count for kind, count in wanted.items()) for node in self.nodes):
            raise UserError(
                f"no machine of the Ray cluster has {work.processors} processors and {gpus} GPUs for one run; "
                "lower --set threads=N or --devices"
            )
        task = self.ray.remote(num_cpus=work.processors, num_gpus=gpus, max_retries=0)(_run_to_end)
        return task.remote(work)

    def ended(self, handle: Any) -> str | None:
        """How it stands."""
        ready, _ = self.ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            return str(self.ray.get(handle))
        except self.ray.exceptions.RayError as error:  # the machine is gone, or memory ran out
            return str(error).strip().splitlines()[0]

    def stop(self, handle: Any) -> None:
        """End it now."""
        self.ray.cancel(handle, force=True)

    def close(self) -> None:
        """Leave the cluster."""
        self.ray.shutdown()


def make_engine(name: str, processors: int, count_gpus: Callable[[], int]) -> Engine:
    """The engine of that name.

    Arguments:
        processors: that all runs at a time need together.
        count_gpus: counts the GPUs of this machine.

    Raises:
        UserError: there is none of that name, or it cannot be used here.
    """
    if name == "local":
        return LocalEngine(count_gpus())
    if name == "ray":
        return RayEngine(processors)
    raise unknown_name("engine", name, ("local", "ray"))


def visible_gpus(slot: int, devices: int, gpus: int) -> dict[str, str]:
    """Which GPUs the run in a slot sees, as a change to its environment; slots share where there are too few."""
    if gpus < 2:
        return {}
    mine = os.environ.get("CUDA_VISIBLE_DEVICES")  # somebody may have given us some of the machine's
    names = mine.split(",") if mine else [str(number) for number in range(gpus)]
    chosen = [names[(slot * devices + place) % gpus] for place in range(min(devices, gpus))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def _start(work: Work, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    work.log.parent.mkdir(parents=True, exist_ok=True)
    threads = {"OMP_NUM_THREADS": str(max(1, work.processors // work.devices))}
    with work.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "mlcil.experiments.child", str(work.config), str(work.out)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **threads, "PYTHONUNBUFFERED": "1", **environment},
        )


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def _run_to_end(work: Work) -> str:
    """What a Ray worker does; when it dies, the run's standard input closes and ends the run."""
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
    """The last line of a file that says something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
