"""Readers of what mlcil itself has saved: runs, states, taggers, weights, what was taught, and its indexes."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from fuzz_child import Reader, Trial
from PIL import Image

import mlcil
from mlcil.core.checksums import CHECKSUM, digest_of, with_checksum
from mlcil.data.file_index import FileIndex, Stamp
from mlcil.evaluation.scores import load_scores
from mlcil.models.backbone import Backbone
from mlcil.models.weights import load_weights
from mlcil.reports.collect import collect
from mlcil.reports.report import _commands
from mlcil.reports.table import to_csv, to_latex, to_markdown
from mlcil.reports.tables import (
    comparison_tables,
    cost,
    environment,
    forgetting,
    per_class,
    pseudo_labels,
    published,
    session_table,
)
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.loading import load, open_run
from mlcil.serving.model_card import card, tags_csv
from mlcil.serving.predicted_parts import Parts
from mlcil.serving.tagger import Tagger
from mlcil.serving.tagger_files import READ, SUMS
from mlcil.teaching.book import Book, words
from mlcil.teaching.journal import Journal
from mlcil.teaching.photo_index import LookedAt, PhotoIndex
from mlcil.teaching.teaching_folder import TeachingFolder
from mlcil.training import environment as launches
from mlcil.training.config import make_config, read_config
from mlcil.training.data_record import read_record
from mlcil.training.run import run

SIZE = 16


@cache
def tagger_folder(base: Path) -> Path:
    """A tagger of two labels that learned from a few small pictures, which are in base/photos."""
    photos = base / "photos"
    photos.mkdir(exist_ok=True)
    rng, rows = np.random.default_rng(0), ["path,labels"]
    for number in range(40):
        pixels = rng.integers(0, 120, (SIZE, SIZE, 3), np.uint8)
        pixels[:, :, number % 2] += 100
        Image.fromarray(pixels).save(photos / f"{number:02}.png")
        rows.append(f"{number:02}.png,{'red' if number % 2 == 0 else 'green'}")
    (photos / "table.csv").write_text("\n".join(rows))
    options = LearnOptions(backbone="small_conv", settings={"image_size": SIZE, "threads": 1})
    return learn(None, str(photos / "table.csv"), options)[0].save(base / "tagger")


@cache
def run_folder(base: Path) -> Path:
    """A short run of two sessions."""
    settings: dict[str, Any] = {"image_size": SIZE, "epochs": 1, "batch_size": 16, "augment": "none", "threads": 1}
    mlcil.run("lwf", f"digits:train=60,test=40,size={SIZE}", base / "run", protocol="B0-C5", **settings)
    return base / "run"


def _in_run(name: str, use: Callable[[Path], object]) -> Callable[[Path], Trial]:
    """A trial that spoils a file of a run, and states the right checksum of what came out."""

    def make(folder: Path) -> Trial:
        run = folder / "run"
        shutil.copytree(run_folder(folder.parent), run, dirs_exist_ok=True)
        file = run / name
        seed = file.read_bytes()

        def call(data: bytes) -> None:
            file.write_bytes(_with_seal(data) if name.endswith(".safetensors") else _with_checksum(data))
            use(run)

        return Trial([_without_seal(seed) if name.endswith(".safetensors") else seed], call)

    return make


def _with_checksum(data: bytes) -> bytes:
    """A record in JSON with the right checksum in place of the one that it states; anything else as it is."""
    try:
        record = json.loads(data)
        return json.dumps(with_checksum(record)).encode() if record.pop(CHECKSUM, None) else data
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return data


def _without_seal(data: bytes) -> bytes:
    """A file of arrays whose header has its texts without their checksums, so that they are spoilt as what they are."""
    return _with_texts(data, lambda text: text.partition(" ")[2])


def _with_seal(data: bytes) -> bytes:
    """The inverse; what has no such header stays as it is."""
    try:
        return _with_texts(data, lambda text: f"{digest_of(text.encode(errors='surrogatepass'))} {text}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return data


def _with_texts(data: bytes, change: Callable[[str], str]) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = {name: change(text) for name, text in header["__metadata__"].items()}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def _go_on(folder: Path) -> None:
    """Continue a run, without asking git for the version."""
    with patch.object(launches, "_git_revision", return_value=None):
        run(make_config(read_config(folder / "config.yaml")), folder)


def _compare(run: Path) -> None:
    """All tables that are shown of runs."""
    other = run.parent.parent / "run"
    for found in (collect([run]), collect([run, other])):
        results = [one.result for group in found.groups for one in group.runs]
        tables = [session_table(results[0]), *comparison_tables(found), published(found), pseudo_labels(found)]
        tables += [cost(found), environment(found)]
        for setting in found.settings:
            tables += [per_class(found, setting), forgetting(found, setting)]
        for table in filter(None, tables):
            for write in (to_markdown, to_latex, to_csv):
                write(table)
        for group in found.groups:
            _commands(group)


def _in_tagger(name: str) -> Callable[[Path], Trial]:
    """A trial that spoils a file of a tagger and states the right checksum of it."""

    def make(folder: Path) -> Trial:
        tagger = folder / "tagger"
        shutil.copytree(tagger_folder(folder.parent), tagger, dirs_exist_ok=True)
        photo = str(folder.parent / "photos" / "00.png")
        lines = (tagger / SUMS).read_text().splitlines()
        seed = (tagger / name).read_bytes()

        def call(data: bytes) -> None:
            (tagger / name).write_bytes(data)
            if name != SUMS:
                digest = hashlib.sha256(data).hexdigest()
                sums = [f"{digest}  {name}" if one.endswith(f"  {name}") else one for one in lines]
                (tagger / SUMS).write_text("\n".join(sums) + "\n")
            loaded = load(tagger)
            loaded.predict([photo])
            tags_csv(loaded)
            card(loaded, "name")

        return Trial([seed], call)

    return make


def _weights(name: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        backbone, file = Backbone("small_conv", SIZE), folder / name
        state = backbone.net.state_dict()
        if name.endswith(".pth"):
            torch.save({"state_dict": state}, file)
        else:
            from safetensors.torch import save_file

            said = {"classes": json.dumps(["cat", "dog"]), "labels": "a, b", "num_classes": "7"}
            save_file({key: value.contiguous() for key, value in state.items()}, file, said)

        def call(data: bytes) -> None:
            file.write_bytes(data)
            load_weights(backbone, str(file), [80], [["dog", "cow", "sheep"]])

        return Trial([file.read_bytes()], call)

    return make


def _beside_weights(folder: Path) -> Trial:
    backbone, file = Backbone("small_conv", SIZE), folder / "weights.pth"
    torch.save(backbone.net.state_dict(), file)
    said = {"num_classes": 1000, "pretrained_cfg": {"num_classes": 7, "label_names": ["cat", "dog", "cow"]}}

    def call(data: bytes) -> None:
        (folder / "config.json").write_bytes(data)
        load_weights(
            backbone, str(file), [80], [["dog", "cow", "cat", "horse", "pig", "hen", "ox"], ["red", "green", "blue"]]
        )

    return Trial([json.dumps(said).encode(), json.dumps({"id2label": {"0": "red"}}).encode()], call)


def _journal(folder: Path) -> Trial:
    file = folder / "marks.log"
    photo = "ab" * 16
    entries = [
        {"do": "mark", "label": "fox", "yes": [photo], "no": [], "unknown": [], "asked": [photo], "time": "2026"},
        {"do": "rename", "label": "fox", "to": "red fox"},
        {"do": "threshold", "label": "red fox", "value": 0.5},
        {"do": "merge", "label": "red fox", "into": "red"},
        {"do": "undo"},
        {"do": "redo"},
        {"do": "delete", "label": "green"},
    ]

    def call(data: bytes) -> None:
        lines = data.split(b"\n")  # with the right checksums, or nothing else would be looked at
        file.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(one), one) for one in lines if one))
        journal = Journal(file)
        book = Book(("red", "green"), {}, journal.done)
        for entry in (*journal.done, *journal.undone):
            words(entry)
        for label in book.labels.values():
            label.yes  # noqa: B018 - as the page asks for it
        file.write_bytes(data)
        Journal(file)

    return Trial(["\n".join(map(json.dumps, entries)).encode()], lambda data: _journal_line(data, call))


def _journal_line(data: bytes, call: Callable[[bytes], None]) -> None:
    from mlcil.core.errors import UserError

    try:
        call(data)
    except UserError as error:
        if "is damaged" not in str(error):
            raise


def _teaching(name: str) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        tagger = Tagger.load(tagger_folder(folder.parent))
        made = TeachingFolder(folder / "teach", tagger)
        made.note_save(3, "tagger-v2")
        made.close()
        file = folder / "teach" / name

        def call(data: bytes) -> None:
            file.write_bytes(data)
            opened = TeachingFolder(folder / "teach", tagger)
            try:
                opened.saved_until()
                opened.versions()
            finally:
                opened.close()

        return Trial([file.read_bytes()], call)

    return make


def _photo_index(folder: Path) -> Trial:
    file, digest = folder / "photos.sqlite", b"d" * 16
    index = PhotoIndex(file, "kind")
    stamp = Stamp(1, 2, 3, 4)
    index.add([LookedAt("a.jpg", stamp, digest, None, 4, 3, b"jpeg", np.ones(8, np.float32))], [b"a.jpg"])
    index.close()

    def call(data: bytes) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
        file.write_bytes(data)
        opened = PhotoIndex(file, "kind")
        try:
            opened.files()
            list(opened.find([digest]))
            opened.thumbnail(digest)
            opened.add([LookedAt("b.jpg", stamp, b"e" * 16, "damaged")], [b"b.jpg"])
        finally:
            opened.close()

    return Trial([file.read_bytes()], call)


def _file_index(folder: Path) -> Trial:
    from mlcil.data.file_index import Entry

    file, stamp = folder / "files.sqlite", Stamp(1, 2, 3, 4)
    FileIndex(file).add({"a.jpg": (stamp, Entry(b"d" * 16, 4, 3, "JPEG"))})

    def call(data: bytes) -> None:
        file.write_bytes(data)
        index = FileIndex(file)
        index.find({"a.jpg": stamp})
        index.add({"b.jpg": (stamp, Entry(b"d" * 16, 4, 3, "JPEG"))})
        index.forget("a.jpg")

    return Trial([file.read_bytes()], call)


def _parts(folder: Path) -> Trial:
    tags = [{"name": "fox", "score": 0.9, "probability": 0.9, "threshold": 0.5}]
    lines = [{"image": "a.jpg", "tags": tags}, {"image": "b.jpg", "tags": [], "error": "damaged"}]
    place = folder / ".out.csv.parts"
    place.mkdir(exist_ok=True)

    def call(data: bytes) -> None:
        (place / "identity").write_text("me")
        (place / f"{'0' * 32}.jsonl").write_bytes(f"{digest_of(data)}\n".encode() + data)
        parts = Parts(folder / "out.csv", "me")
        done = [photo for photo in ("a.jpg", "b.jpg") if photo not in parts.left(["a.jpg", "b.jpg"])]
        list(parts.outcomes(done))

    return Trial(["\n".join(map(json.dumps, lines)).encode()], call)


SAVED = (
    Reader("run: results.json", "json", 500, _in_run("results.json", _compare)),
    Reader("run: config.yaml", "yaml", 200, _in_run("config.yaml", _compare)),
    Reader("run: metrics.jsonl", "json lines", 200, _in_run("metrics.jsonl", _compare)),
    Reader("run: environment.json", "json", 200, _in_run("environment.json", _compare)),
    Reader("run: data.json", "json", 150, _in_run("data.json", lambda run: read_record(run / "data.json"))),
    Reader("run: states", "safetensors", 200, _in_run("session-02/state.safetensors", open_run)),
    Reader("run: a state to go on from", "safetensors", 20, _in_run("session-02/state.safetensors", _go_on)),
    Reader(
        "run: scores",
        "safetensors",
        100,
        _in_run("session-02/scores.safetensors", lambda run: load_scores(run / "session-02" / "scores.safetensors")),
    ),
    *(
        Reader(f"tagger: {name}", "json" if name.endswith("json") else "safetensors", 150, _in_tagger(name))
        for name in READ
    ),
    Reader("tagger: checksums", "text", 50, _in_tagger(SUMS)),
    Reader("weights: safetensors", "safetensors", 150, _weights("weights.safetensors")),
    Reader("weights: torch", "zip", 100, _weights("weights.pth")),
    Reader("weights: config.json", "json", 150, _beside_weights),
    Reader("teaching: journal", "json lines", 300, _journal),
    Reader("teaching: tagger.json", "json", 50, _teaching("tagger.json")),
    Reader("teaching: saved.json", "json", 50, _teaching("saved.json")),
    Reader("teaching: photo index", "bytes", 150, _photo_index),
    Reader("index of files", "bytes", 150, _file_index),
    Reader("parts of predictions", "json lines", 150, _parts),
)
