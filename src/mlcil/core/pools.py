"""One piece of work for many items, by this process, by several on this machine, or by a Ray cluster.

The outcome of an item may depend on nothing but the item, so who does it, in which order and how often does not matter.
What is large goes to files; an outcome is small.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, Protocol, TypeVar

from .errors import UserError, unknown_name

ENGINES = ("local", "ray")
ATTEMPTS = 3  # times that an item may be under way when a process is lost, before it is held to be the reason
AHEAD = 2  # items that each process has to do or is doing

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
        todo, lost = list(range(len(items)))[::-1], Counter[int]()
        while todo:
            under_way: dict[Future[Any], int] = {}
            pool = ProcessPoolExecutor(
                min(self.jobs, len(todo)), multiprocessing.get_context("spawn"), _begin, (self.threads, make)
            )
            try:
                while todo or under_way:
                    while todo and len(under_way) < AHEAD * self.jobs:
                        under_way[pool.submit(_work, items[todo[-1]])] = todo[-1]
                        todo.pop()  # not before: a broken pool takes nothing
                    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                        outcome = future.result()
                        yield under_way.pop(future), outcome
            except BrokenProcessPool:
                lost.update(under_way.values())
                todo += sorted(under_way.values(), reverse=True)
                if max(lost.values(), default=ATTEMPTS) >= ATTEMPTS:
                    raise UserError(
                        f"processes that do the work were ended {ATTEMPTS} times; there may be too little memory for "
                        f"{self.jobs} of them, see --jobs"
                    ) from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


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
            outcome = pickle.loads(row["outcome"])
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
            outcome = self.work(pickle.loads(row["item"]))
        except UserError as error:  # Ray would wrap it, and try again
            outcome = error
        return {"place": row["place"], "outcome": pickle.dumps(outcome)}


_own: Callable[[Any], Any]  # the work of this process


def _begin(threads: int, make: Make[Any, Any]) -> None:
    """Prepare a process of `LocalPool`."""
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the first process ends the others
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait_for([parent.sentinel]), os._exit(1)), daemon=True).start()
    try:
        _set_threads(threads)
        _own = make()
    except Exception as error:  # raised here, it would end the process without a word
        _own = _Failing(error)


class _Failing:
    """Work that cannot be done in this process."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, item: Any) -> Any:
        raise self.error


def _work(item: Any) -> Any:
    return _own(item)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
