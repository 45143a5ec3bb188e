"""Small jobs that a trial disturbs: what they are given, their commands, and what must be equal in the end."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mlcil.core.checksums import unsealed

TINY = (
    *("--data", "digits:train=24,test=12,size=16", "--backbone", "small_conv"),
    *("--image-size", "16", "--epochs", "2", "--batch-size", "8", "--set", "augment=flip", "--set", "threads=1"),
    *("--set", "checkpoint_seconds=0"),
)
ONE = (*TINY, "--protocol", "0,1,2|3,4", "--out", "run")
KRT = ("--set", "width=16", "--set", "heads=4", "--set", "labels_per_image=2.5", "--set", "buffer=2")
SMALL = (*("--backbone", "small_conv"), *("--set", "image_size=16", "--set", "threads=1", "--set", "expansion=16"))
PHOTOS = 24
CLOCKS = {
    "seconds",
    "train_seconds",
    "session_seconds",
    "processor_seconds",
    "peak_memory_mb",
    "gpu_memory_mb",
    "started",
    "time",
    "learned",
    "checksum",  # of a file with the others
}
# One entry per launch; what other files hold again, with their clocks; what no reader depends on.
IGNORED = re.compile(
    r"environment\.json|SHA256SUMS|tags\.csv|README\.md|.*\.(lock|sqlite.*)|seed-\d+\.log|answered|"
    r"lesson\.json|saved\.json|tagger\.json"
)


class Job(NamedTuple):
    """A job.

    Attributes:
        name: what it does, in words.
        commands: called in turn, in a process and a folder of its own; each may be repeated.
        needs_photos: whether there is a folder of photos with tables.
        patches: (module, name, value) to be set, so that little work has many parts.
        processes: over how many its deeds are divided.
    """

    name: str
    commands: Sequence[Callable[[], None]]
    needs_photos: bool = False
    patches: Sequence[tuple[str, str, Any]] = ()
    processes: int = 1


def command(*words: str) -> Callable[[], None]:
    """A command of mlcil."""

    def run() -> None:
        from mlcil.cli.app import main

        sys.argv = ["mlcil", *words]
        main()

    return run


def learn(table: str, out: str, *more: str) -> Callable[[], None]:
    """`mlcil learn`; nothing if the tagger is there."""
    do = command("learn", table, "--out", out, *more)
    return lambda: None if os.path.exists(out) else do()


def teach() -> None:
    """Mark photos one by one, as the page does, and save; what the journal has is not marked again."""
    from mlcil.core.errors import UserError

    try:
        _teach()
    except UserError as error:
        print(f"mlcil: {error}", file=sys.stderr)
        sys.exit(2)


def _teach() -> None:
    from mlcil.core.errors import UserError
    from mlcil.serving.tagger import Tagger
    from mlcil.teaching.workbench import Workbench

    photos = [f"photos/{number}.png" for number in range(PHOTOS)]
    bench = Workbench(Tagger.load("tagger-1"), photos, Path("tagger-1.teach"), "photos")
    bench.indexer.wait()
    answered = Path("answered")
    before = len(answered.read_bytes()) if answered.exists() else 0
    if len(bench.journal.done) < before:
        raise RuntimeError(f"{before} marks were answered and {len(bench.journal.done)} are kept")
    if len(bench.photos) < PHOTOS:
        raise UserError("some photos are gone")
    ids = [bench.photos.id(row) for row in range(PHOTOS)]
    for number in range(len(bench.journal.done), 8):
        bench.mark("new", *([ids[number]], []) if number % 2 else ([], [ids[number]]), [])
        with answered.open("wb") as file:
            file.write(b"." * (number + 1))
    if not os.path.exists("tagger-v1"):
        bench.save("tagger-v1")
    bench.close()


SHARDS = (
    ("mlcil.models.sums", "SHARD", 8),
    ("mlcil.methods.analytic", "SHARD", 8),
    ("mlcil.core.cached_rows", "BLOCK", 4),
    ("mlcil.serving.predicted_parts", "PART", 8),
)
FIRST, SECOND = learn("first.csv", "tagger-1", *SMALL), learn("second.csv", "tagger-2", "--from", "tagger-1")
PREDICT = command("predict", "tagger-2", "photos", "--out", "found.csv")
JOBS = [
    Job("run KRT-R", [command("run", "--method", "krt", *ONE, *KRT)]),
    Job("run analytic", [command("run", "--method", "analytic", *ONE, "--set", "expansion=16")]),
    Job("learn twice and predict", [FIRST, SECOND, PREDICT], True, SHARDS[2:]),
    Job("teach", [FIRST, teach], True),
    Job(
        "learn and predict by two processes",
        [
            learn("first.csv", "tagger-1", *SMALL, "--jobs", "2"),
            command("predict", "tagger-1", "photos", "--out", "found.csv", "--jobs", "2"),
        ],
        True,
        SHARDS,
        2,
    ),
    Job(
        "grid",
        [command("grid", "--methods", "ft,er:2", "--protocols", "0,1,2|3,4", "--no-report", *TINY, "--out", "grid")],
        processes=3,
    ),
]


def prepare(job: Job, folder: Path) -> None:
    """Make what a job is given."""
    folder.mkdir(parents=True, exist_ok=True)
    if not job.needs_photos:
        return
    rng = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(PHOTOS):
        pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
        pixels[..., number % 3] |= 128
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    for name, labels in (("first", ("red", "")), ("second", ("", "green"))):
        rows = [f"photos/{number}.png,{labels[number % 3] if number % 3 < 2 else ''}" for number in range(PHOTOS)]
        (folder / f"{name}.csv").write_text("\n".join(["path,labels", *rows]) + "\n")


def outcome(folder: Path) -> dict[str, Any]:
    """What must be equal in the end: the content of each file by its path, without clocks."""
    found = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        # The cache removes them after a day; elsewhere whatever is written next does, which here may be nothing.
        is_orphan = ".partial" in str(place) and place.parts[0].endswith(("cache", ".teach", "grid"))
        if path.is_file() and place.parts[0] != "photos" and not IGNORED.fullmatch(path.name) and not is_orphan:
            found[str(place)] = _content(path, str(folder))
    return found


def _content(path: Path, folder: str) -> Any:
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        about = {name: unsealed(path, value)[0] for name, value in header.pop("__metadata__", {}).items()}
        return without_clocks(about), header, data[8 + size :]
    if path.name == "marks.log":
        return [without_clocks(json.loads(line.partition(b" ")[2])) for line in data.splitlines()]
    if path.suffix == ".jsonl":
        return [without_clocks(json.loads(line)) for line in data.splitlines()]
    if path.suffix == ".json":
        return without_clocks(json.loads(data.replace(folder.encode(), b"FOLDER")))
    return data.replace(folder.encode(), b"FOLDER")


def without_clocks(value: Any) -> Any:
    """A value of JSON without what depends on the time of day or on speed."""
    if isinstance(value, dict):
        return {key: without_clocks(one) for key, one in value.items() if key not in CLOCKS}
    return [without_clocks(one) for one in value] if isinstance(value, list) else value
