"""The process that feeds inputs to readers: with bounded memory and time, and a record of what it writes and asks.

What a reader does with an input must be a result or one line for its user. Inputs that reach lines of mlcil which none
reached before are kept and spoilt further.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from fuzz_mutations import mutated

SECONDS = 10.0  # of processor time that an input may take: other programs may keep the machine busy
ROOM = 1536 * 2**20  # bytes that an input may ask for, beside what the process has already
LONGEST = 3000  # characters of an error
KEPT = 400  # inputs that are spoilt further, per reader
OPENED = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PLACES = {  # audit event -> the arguments that are paths which it changes
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"), (0,)),
    **dict.fromkeys(("os.rename", "os.link", "shutil.move"), (0, 1)),
    **dict.fromkeys(("os.symlink", "shutil.copyfile"), (1,)),
    "sqlite3.connect": (0,),
}
FORBIDDEN = {
    *("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"),
}


class Trial(NamedTuple):
    """A reader that is set up: inputs that it takes, and what reads an input."""

    seeds: Sequence[bytes]
    call: Callable[[bytes], None]


class Reader(NamedTuple):
    """A reader of mlcil.

    Attributes:
        kind: of its inputs, see `fuzz_mutations.KINDS`; any other is spoilt by bytes alone.
        share: how many of 10,000 inputs it gets.
        make: sets it up in a folder.
    """

    name: str
    kind: str
    share: int
    make: Callable[[Path], Trial]


class Wrong(Exception):  # noqa: N818 - what a trial says of an outcome
    """An outcome that no reader may have."""


class Hang(BaseException):
    """Time is up."""


class Watch:
    """Notes which paths outside a folder are written to, and which programs and servers are asked."""

    def __init__(self, folder: Path) -> None:
        self.inside = str(folder.resolve())
        self.seen: list[str] = []
        self.is_on = False
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(one in mode for one in "wax+") if isinstance(mode, str) else bool(flags & OPENED)
            if writes or "secret" in str(path):
                self._check(event, path)
        elif event in PLACES:
            for place in PLACES[event]:
                self._check(event, arguments[place])
        elif event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:200])

    def _check(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        name = os.path.abspath(os.fsdecode(path))
        if name != "/dev/null" and (not name.startswith(self.inside) or "secret" in name):
            self.seen.append(f"{event} {name}"[:200])


class Coverage:
    """Which lines of mlcil have run."""

    def __init__(self) -> None:
        self.lines: set[tuple[CodeType, int]] = set()
        self._is_ours: dict[CodeType, bool] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Note the lines that run inside."""
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in self._is_ours:
            self._is_ours[code] = f"{os.sep}mlcil{os.sep}" in code.co_filename
        return self._line if self._is_ours[code] else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code, frame.f_lineno))
        return self._line


def work(readers: Sequence[tuple[str, int]], seed: int, folder: Path, told: Connection) -> None:
    """Feed each reader so many inputs; tell ("next", reader), ("finding", ...), ("done", reader, figures)."""
    from fuzz_readers import READERS

    sys.dont_write_bytecode = True
    os.chdir(folder)
    signal.signal(signal.SIGPROF, _time_is_up)
    watch = Watch(folder)
    by_name = {one.name: one for one in READERS}
    for name, count in readers:
        told.send(("setup", name))
        place = folder / name.replace(" ", "-").replace("/", "-")
        place.mkdir(exist_ok=True)
        reader = by_name[name]
        try:
            trial = reader.make(place)
            for data in trial.seeds:  # what is not spoilt must be taken, or only the first check would be tried
                trial.call(data)
        except Exception as error:
            told.send(("finding", name, "the trial cannot begin", f"{type(error).__name__}: {error}"[:300], b""))
            told.send(("given up", name))
            continue
        resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + ROOM, resource.RLIM_INFINITY))
        _feed(reader, trial, count, random.Random(f"{seed} {name}"), watch, told, folder / "input")
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    told.send(("end",))


def _feed(
    reader: Reader, trial: Trial, count: int, rng: random.Random, watch: Watch, told: Connection, note: Path
) -> None:
    corpus, cover = list(trial.seeds), Coverage()
    for _ in range(count):
        data = mutated(reader.kind, corpus, rng)
        note.write_bytes(data)  # for whoever finds this process dead
        told.send(("next", reader.name))
        _reset_peak()
        before, began, known = _status("VmRSS"), time.process_time(), len(cover.lines)
        watch.is_on = True
        finding = _outcome(trial, data, cover)
        watch.is_on = False
        seconds, grown = time.process_time() - began, _status("VmHWM") - before
        if watch.seen:
            finding = finding or ("it reached outside", "; ".join(watch.seen[:3]))
            watch.seen.clear()
        if finding:
            told.send(("finding", reader.name, *finding, data))
        elif len(cover.lines) > known and len(corpus) < KEPT and len(data) < 2**18:
            corpus.append(data)
        told.send(("done", reader.name, seconds, grown, len(cover.lines)))


def _outcome(trial: Trial, data: bytes, cover: Coverage) -> tuple[str, str] | None:
    """What is wrong with what a reader makes of an input: a key, and details; None if nothing is."""
    from mlcil.core.errors import UserError
    from mlcil.data.xmp import BadSidecar

    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with cover():
            trial.call(data)
    except (UserError, BadSidecar) as error:
        return line_problem(str(error))
    except Wrong as error:
        return str(error)[:60], str(error)
    except BaseException as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if "mlcil" in one.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside mlcil"
        return f"{type(error).__name__} at {place}", str(error)[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def line_problem(text: str) -> tuple[str, str] | None:
    """What is wrong with the text of an error."""
    if len(text) > LONGEST:
        return "an error of too many characters", f"{len(text)}: {text[:200]}"
    harmless = str.maketrans("\u00a0", " ", "\u200c\u200d")  # and what Persian words and emoji are written with
    if len(text.splitlines()) != 1 or not text.translate(harmless).isprintable():
        return "an error that is not one line of text", repr(text[:300])
    return None


def _time_is_up(*_: object) -> None:
    raise Hang(f"{SECONDS:g} seconds")


def _status(key: str) -> int:
    """A figure of this process in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{key}:"))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
