"""One piece of work for many items, by this process, by several on this machine, or by a Ray cluster.

The outcome of an item may depend on nothing but the item, so who does it, in which order and how often does not matter.
What is large goes to files; an outcome is small. Pickle is for these processes alone: it reads nothing that outlasts
them or comes from elsewhere.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .errors import UserError, unknown_name

ENGINES = ("local", "ray")
ATTEMPTS = 3  # times that the process of an item may die before the item is held to be the reason

NO_RAY = UserError("--engine ray needs Ray; install mlcil with its extra: pip install 'mlcil[ray]'")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Make = Callable[[], Callable[[Item], Outcome]]
"""Makes what does the work, once in each process; picklable, and so are items and outcomes."""


class Pool(Protocol):
    """Processes that work on items."""

    def map(self, make: Make[Item, Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        """Yield the place of each item with its outcome, as they are done.

        Raises:
            UserError: the work on an item has raised it, or has ended its process again and again.
        """
        ...


def make_pool(engine: str, jobs: int, threads: int = 1) -> Pool | None:
    """The processes of an engine; None where the calling process is to do all.

    Arguments:
        jobs: how many processes; with Ray, 0 for as many as the cluster has processors for.
        threads: that each of them computes with.
    """
    if engine == "ray":
        return RayPool(jobs, threads)
    if engine != "local":
        raise unknown_name("engine", engine, ENGINES)
    return LocalPool(jobs, threads) if jobs > 1 else None


class LocalPool:
    """Processes on this machine. One that dies is replaced, and what it was doing is done again."""

    def __init__(self, jobs: int, threads: int = 1) -> None:
        self.jobs, self.threads = jobs, threads

    def map(self, make: Make[Item, Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        """See `Pool`."""
        with tempfile.NamedTemporaryFile() as file:  # read by all at once; through pipes they would begin in turn
            file.write(pickle.dumps(make))
            file.flush()
            yield from self._map(file.name, items)

    def _map(self, make: str, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        todo, deaths = list(range(len(items)))[::-1], Counter[int]()
        workers = [_Worker(make, self.threads) for _ in range(min(self.jobs, len(items)))]
        busy: dict[Any, _Worker] = {}
        try:
            while todo or busy:
                while todo and (idle := [one for one in workers if one.pipe not in busy]):
                    place = todo.pop()
                    idle[0].start(place, items[place])
                    busy[idle[0].pipe] = idle[0]
                for pipe in wait(list(busy)):
                    worker = busy.pop(pipe)
                    try:
                        outcome = worker.outcome()
                    except (EOFError, ConnectionResetError):
                        deaths[worker.place] += 1
                        if deaths[worker.place] == ATTEMPTS:
                            raise UserError(
                                f"the work on one of {len(items)} parts has ended its process {ATTEMPTS} times; there "
                                f"may be too little memory for {self.jobs} processes, see --jobs"
                            ) from None
                        todo.append(worker.place)
                        worker.close()
                        workers[workers.index(worker)] = _Worker(make, self.threads)
                    else:
                        yield worker.place, outcome
        finally:
            for worker in workers:
                worker.close()


class _Worker:
    """A process that works on one item after another.

    Arguments:
        make: the file that holds what makes the work.
    """

    def __init__(self, make: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.place = -1
        self._process = context.Process(target=_serve, args=(theirs, make, threads), daemon=True)
        self._process.start()
        theirs.close()  # so that the death of the process ends the pipe

    def start(self, place: int, item: Any) -> None:
        """Let it work on an item."""
        self.place = place
        with suppress(BrokenPipeError):  # it is dead, as `outcome` will find
            self.pipe.send(item)

    def outcome(self) -> Any:
        """What became of it; raises what the work has raised, EOFError if the process has died."""
        is_error, outcome = self.pipe.recv()
        if is_error:
            raise outcome
        return outcome

    def close(self) -> None:
        """End the process, whatever it is doing: files are written whole or not at all."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Any, make: str, threads: int) -> None:
    """What a process does until it is ended or its parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the first process ends the others
    problem, work = None, None
    try:
        _set_threads(threads)
        work = pickle.loads(Path(make).read_bytes())()  # noqa: S301 - the file that our parent has just written
    except Exception as error:
        problem = error
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            item = pipe.recv()
            try:
                pipe.send((True, problem) if work is None else (False, work(item)))
            except Exception as error:
                pipe.send((True, error))


class RayPool:
    """Actors of the Ray cluster at RAY_ADDRESS, or of a new one on this machine.

    All machines need mlcil, and the files that the work reads and writes under the same paths.

    Raises:
        UserError: Ray is not installed or cannot be started.
    """

    def __init__(self, jobs: int, threads: int = 1) -> None:
        self.ray = start_ray(threads * jobs or os.cpu_count() or 1)
        processors = sum(node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"])
        self.jobs, self.threads = jobs or max(1, int(processors) // threads), threads

    def map(self, make: Make[Item, Outcome], items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
        """See `Pool`."""
        if not items:
            return
        try:
            from ray import data
        except ImportError:  # Ray without its part for data
            raise NO_RAY from None
        data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        kept = [self.ray.put(make)]  # it may be large, and an actor that dies needs it again
        rows = [{"place": place, "item": pickle.dumps(item)} for place, item in enumerate(items)]
        found = data.from_items(rows, override_num_blocks=len(rows)).map(
            _RayWorker,  # type: ignore[arg-type]
            fn_constructor_args=(kept, self.threads),
            compute=data.ActorPoolStrategy(size=min(self.jobs, len(items))),
            num_cpus=self.threads,
        )
        for row in found.iter_rows():
            outcome = pickle.loads(row["outcome"])  # noqa: S301 - of our own worker
            if isinstance(outcome, UserError):
                raise outcome
            yield int(row["place"]), outcome


def start_ray(processors: int) -> Any:
    """Join the Ray cluster at RAY_ADDRESS, or start one on this machine with so many processors; returns the module.

    Raises:
        UserError: Ray is not installed or cannot be started.
    """
    try:
        import ray
    except ImportError:
        raise NO_RAY from None
    if ray.is_initialized():
        return ray
    # Items are paths and the like, so the smallest object store that Ray allows, about 80 MB, is enough.
    ours = {"num_cpus": processors, "include_dashboard": False, "object_store_memory": 100_000_000}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sharing statistics is the user's choice
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it warns of what Ray Data itself does
    on_sigterm = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else ours
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"Ray cannot be started: {str(error).splitlines()[0]}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own there, which takes long
    return ray


class _RayWorker:
    """The work in an actor."""

    def __init__(self, kept: Sequence[Any], threads: int) -> None:
        import ray

        _set_threads(threads)
        self.work = ray.get(kept[0])()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            outcome = self.work(pickle.loads(row["item"]))  # noqa: S301 - of the process that started us
        except UserError as error:  # Ray would wrap it, and try again
            outcome = error
        return {"place": row["place"], "outcome": pickle.dumps(outcome)}


def _set_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for torch if it is still to be imported, which takes seconds
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
