"""Hostile input: every reader of mlcil gets files, requests and options that were spoilt by their structure or bytes.

Each input must end in a result or in one line for the user (a 4xx answer of a server), within ten seconds of processor
time and 1.5 GB, without a write outside the folder of the trial, without another program and without a network.
Anything else is a finding; its input is printed, and kept in runs/trust/findings. Readers run in a process of their
own, which is started again if it dies. 10,000 inputs, or 100,000 with --full; READERS="images,grids" in the environment
tries some readers alone.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from figures import OUT, Figure, Size, report, size_asked
from fuzz_child import ROOM, SECONDS, Reader, work
from rich.console import Console

PATIENCE = 6 * SECONDS  # without a word from the process: it is stuck where no alarm reaches it
NOBODY = "none"
DEATHS = 5  # of the process at one reader, after which that is left alone
SHOWN = 120  # characters of an input that are printed


class Found:
    """What came of all inputs."""

    def __init__(self) -> None:
        self.inputs: collections.Counter[str] = collections.Counter()
        self.deaths: collections.Counter[str] = collections.Counter()
        self.lines: dict[str, int] = {}
        self.findings: dict[tuple[str, str], list[Any]] = {}  # reader, what -> details, input, how often
        self.slowest, self.largest = (0.0, ""), (0, "")

    def add(self, reader: str, what: str, details: str, data: bytes) -> None:
        """Note a finding, and print the first of its kind."""
        if (reader, what) in self.findings:
            self.findings[reader, what][2] += 1
            return
        self.findings[reader, what] = [details, data, 1]
        folder = OUT / "findings"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{reader.replace(' ', '-').replace('/', '-')}-{hashlib.sha256(data).hexdigest()[:8]}"
        file.write_bytes(data)
        shown = base64.b64encode(data[:SHOWN]).decode()
        Console(width=200).print(f"{reader}: {what}: {details}\n  {file} ({len(data)} bytes): {shown}", markup=False)

    def note(self, reader: str, seconds: float, grown: int, lines: int) -> None:
        """Count an input."""
        self.inputs[reader] += 1
        self.lines[reader] = max(lines, self.lines.get(reader, 0))
        self.slowest, self.largest = max(self.slowest, (seconds, reader)), max(self.largest, (grown, reader))


def feed(readers: list[Reader], size: Size, folder: Path) -> Found:
    """Let processes feed all readers, one process after another."""
    found, tries = Found(), 0
    left = {one.name: one.share * size.of(1, 8) for one in readers}
    while left:
        tries += 1
        here, there = multiprocessing.Pipe(duplex=False)
        arguments = (list(left.items()), size.seed * 1000 + tries, folder, there)
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
        process.start()
        there.close()
        last, words = _listen(here, left, found)
        process.kill() if words else process.join()
        process.join()
        if words:
            data = (folder / "input").read_bytes() if (folder / "input").exists() else b""
            found.add(last, f"{words} (exit code {process.exitcode})", "", data)
            left[last] = left.get(last, 0) - (1 if found.deaths[last] < DEATHS else left.get(last, 0))
            found.deaths[last] += 1
        left = {name: count for name, count in left.items() if count > 0 and words}
    return found


def _listen(here: Connection, left: dict[str, int], found: Found) -> tuple[str, str]:
    """Take in what a process tells until it is done; returns the reader it was at and how it died, if it did."""
    reader = NOBODY
    while True:
        try:
            if not here.poll(PATIENCE if reader != NOBODY else 10 * PATIENCE):  # importing takes a while
                return reader, "the process is stuck"
            kind, *rest = here.recv()
        except EOFError:
            return reader, "the process died"
        if kind == "end":
            return reader, ""
        reader = rest[0]
        if kind == "finding":
            found.add(*rest)
        elif kind == "given up":
            left[reader] = 0
        elif kind == "done":
            found.note(*rest)
            left[reader] -= 1
        elif kind == "setup":
            print(f"{reader} ...", file=sys.stderr, flush=True)


def main() -> None:
    """Feed, report."""
    size = size_asked(__doc__)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    from fuzz_readers import READERS

    with tempfile.TemporaryDirectory(prefix="mlcil-fuzzing-") as name:
        os.environ["MLCIL_CACHE"] = str(Path(name, "cache"))
        chosen = [one for one in READERS if one.name in os.environ.get("READERS", one.name).split(",")]
        found = feed(chosen, size, Path(name))
    total = sum(found.inputs.values())
    figures = [
        Figure("inputs", total, f"{size.of(10_000, 100_000):,} or more", total >= size.of(10_000, 100_000)),
        Figure("findings", len(found.findings), "0", not found.findings),
        Figure(
            "slowest input, seconds of processor time",
            found.slowest[0],
            f"below {SECONDS:g}",
            found.slowest[0] < SECONDS,
        ),
        Figure("slowest input is of", found.slowest[1]),
        Figure(
            "most memory for an input, MB", found.largest[0] / 2**20, f"below {ROOM / 2**20:g}", found.largest[0] < ROOM
        ),
        Figure("most memory is for", found.largest[1]),
        *(Figure(f"{name}: inputs", count) for name, count in found.inputs.items()),
    ]
    findings = [[*key, *details[::2]] for key, details in found.findings.items()]
    report("Hostile input", figures, size, findings=findings, lines_of_mlcil_reached=found.lines)


if __name__ == "__main__":
    main()
