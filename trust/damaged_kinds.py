"""One small example of each kind of file that mlcil reads again, and the reader whose answer must not change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from PIL import Image

from mlcil import Tagger
from mlcil.core.cache import DiskCache
from mlcil.data.contents import Contents
from mlcil.data.features import FeatureFeed, KeptStem, Views
from mlcil.data.file_index import Stamp
from mlcil.data.images import LabelledImages
from mlcil.data.loading import Preparation
from mlcil.data.pixels import MemoryPixels, open_pixels
from mlcil.evaluation.results import load_results
from mlcil.evaluation.scores import load_scores
from mlcil.methods.shard_sums import SumShard, read_sums
from mlcil.models.backbone import Backbone
from mlcil.serving import predicted_parts
from mlcil.serving.learning import LearnOptions, learn
from mlcil.serving.predicting import Wish
from mlcil.teaching.journal import Journal
from mlcil.teaching.photo_index import LookedAt, PhotoIndex
from mlcil.training.bases import SharedBase
from mlcil.training.config import make_config
from mlcil.training.data_record import read_record
from mlcil.training.run import run
from mlcil.training.states import load_session, load_state, save_state

CPU = torch.device("cpu")
RUN = make_config(
    {
        "method": "analytic",
        "data": "digits:train=24,test=16,size=16",
        "protocol": "0,1|2|3",
        "backbone": "small_conv",
        "image_size": 16,
        "threads": 1,
        "options": {"expansion": 0, "window": 0, "remember": "fingerprints"},
    }
)


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: of the kind, in words.
        folder: holds all that the reader may touch.
        files: that are damaged; the reader needs each of them, or does not read it at all.
        read: what the files hold, comparable by ==; it may repair them.
        trials: in the short size and in the full one.
    """

    name: str
    folder: Path
    files: Sequence[Path]
    read: Callable[[], Any]
    trials: tuple[int, int]


def make_kinds(folder: Path) -> list[Kind]:
    """Make an example of each kind below a folder."""
    os.environ["MLCIL_CACHE"] = str(folder / "cache")
    photos = _photos(folder / "photos")
    whole = folder / "run"
    run(RUN, whole)
    return [
        _states(folder / "states"),
        _base(folder / "bases"),
        *_of_run(whole),
        *_caches(folder / "caches", photos),
        _file_index(folder / "index", photos),
        _photo_index(folder / "photo-index"),
        _journal(folder / "journal"),
        *_of_tagger(folder, photos),
    ]


def _photos(folder: Path) -> list[str]:
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
        os.utime(folder / f"{number}.png", (1000, 1000))  # the index does not remember what is very young
    rows = [f"{number}.png,{'odd' if number % 2 else 'even'}" for number in range(len(pixels))]
    (folder / "table.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    return [str(folder / f"{number}.png") for number in range(len(pixels))]


def _bytes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {key: (one.dtype, one.shape, one.contiguous().numpy().tobytes()) for key, one in sorted(tensors.items())}


def _states(folder: Path) -> Kind:
    paths = [folder / f"session-{number:02d}" / "state.safetensors" for number in (1, 2, 3)]
    first = {"frozen": torch.randn(4, 3), "head": torch.randn(3)}
    for number, path in enumerate(paths):
        save_state(path, first | {"head": torch.randn(3)}, {"step": number}, paths[number - 1] if number else None)

    def read() -> Any:
        return [(_bytes(tensors), values) for tensors, values in map(load_state, paths)]

    return Kind("checkpoints", folder, paths, read, (1000, 20_000))


def _base(folder: Path) -> Kind:
    trained, fabric = torch.nn.Linear(3, 2), Fabric(accelerator="cpu")
    tensors = {name: value.clone() for name, value in trained.state_dict().items()}
    file = folder / "base.safetensors"

    def read() -> Any:
        model = torch.nn.Linear(3, 2)
        base = SharedBase(file, SimpleNamespace(tagger=model), fabric)  # type: ignore[arg-type]
        values = base.take(lambda line: None)
        if values is None:  # as a run would, it trains and leaves what comes out
            model.load_state_dict(tensors)
            values = {"seconds": 1.5, "epochs": []}
            base.give(values.copy)
        return _bytes(model.state_dict()), values

    read()
    return Kind("shared first sessions", folder, [file], read, (600, 10_000))


def _of_run(folder: Path) -> list[Kind]:
    scores, states = sorted(folder.glob("session-*/scores.safetensors")), sorted(folder.glob("session-*/*.safetensors"))

    def read_scores() -> Any:
        return [[one.tobytes() for one in found[:3]] + [found.classes] for found in map(load_scores, scores)]

    def read_results() -> Any:
        return asdict(load_results(folder))

    def go_on() -> Any:
        result = run(RUN, folder)
        timeless = [asdict(replace(one, train_seconds=0.0)) for one in result.sessions]
        return _bytes(load_session(states[-1])[0]), read_scores(), timeless, result.last_map

    results, record = folder / "results.json", folder / "data.json"
    return [
        Kind("scores", folder, scores, read_scores, (600, 10_000)),
        Kind("results.json", folder, [results], read_results, (600, 10_000)),
        Kind("data.json", folder, [record], lambda: read_record(record), (600, 10_000)),
        Kind("a run that goes on", folder, [*states, results, record], go_on, (25, 500)),
    ]


def _caches(folder: Path, photos: Sequence[str]) -> list[Kind]:
    cache = DiskCache(folder, 10**9)
    images = LabelledImages(tuple(photos), np.zeros((len(photos), 1), np.int8), ("a",), "train")
    pixels = np.stack([np.asarray(Image.open(photo)) for photo in photos])
    backbone = Backbone("small_conv", 16)
    backbone.freeze("2")
    prepare = Preparation(backbone.mean, backbone.std, backbone.stem)

    def read_pixels() -> Any:
        return open_pixels(images, 16, cache=cache, contents=Contents()).store[np.arange(12)].tobytes()

    def features(averages: bool) -> FeatureFeed:
        stem = KeptStem(prepare, backbone.stem_digest(), 16, CPU, cache, averages)
        return FeatureFeed(stem.open(MemoryPixels(pixels, 16), Views("flip"), lambda line: None), CPU)

    def read_features(averages: bool) -> Any:
        return features(averages).features[np.arange(12)].tobytes()

    tagger = SimpleNamespace(width=65, mean=torch.zeros(1), describe=lambda one: one.flatten(1), expand=_with_one)
    work, values = SumShard(tagger, "x"), np.eye(12, 2, dtype=np.int8)  # type: ignore[arg-type]

    def read_shard() -> Any:
        sums = read_sums(work(features(averages=True), values), 65, 2)
        return sums.gram.numpy().tobytes(), sums.cross.numpy().tobytes()

    readers: dict[str, tuple[str, Callable[[], Any]]] = {
        "cached pixels": ("pixels-*", read_pixels),
        "cached features": ("features-*-16-flip-*", lambda: read_features(averages=False)),
        "cached mean features": ("features-*-mean-*", lambda: read_features(averages=True)),
        "sums of shards": ("sums-*", read_shard),
    }
    for _, read in readers.values():
        read()
    return [
        Kind(name, folder, sorted(folder.glob(f"{pattern}/*/*")), read, (250, 4000))
        for name, (pattern, read) in readers.items()
    ]


def _with_one(described: torch.Tensor) -> torch.Tensor:
    return torch.cat([described, described.new_ones(len(described), 1)], 1)


def _file_index(folder: Path, photos: Sequence[str]) -> Kind:
    index = folder / "files.sqlite"
    Contents(index).look(photos)
    return Kind("index of files", folder, [index], lambda: Contents(index).look(photos), (500, 8000))


def _photo_index(folder: Path) -> Kind:
    truth = {bytes([65 + number]) * 16: np.arange(4, dtype=np.float32) + number for number in range(12)}
    looked = [
        LookedAt(digest[:1].decode(), Stamp(1, 2, 3, 4), digest, None, 5, number + 1, digest * 9, vector)
        for number, (digest, vector) in enumerate(truth.items())
    ]
    paths = [one.digest[:1] for one in looked]

    def read() -> Any:
        """What the indexer takes in: photos that are known by path and content, and the others looked at again."""
        index = PhotoIndex(folder / "photos.sqlite", "kind")
        try:
            files, found = index.files(), dict(index.find([*truth]))
            known = [path in files and files[path].digest in found for path in paths]
            index.add(
                [one for one, is_known in zip(looked, known, strict=True) if not is_known],
                [path for path, is_known in zip(paths, known, strict=True) if not is_known],
            )
            taken = []
            for path, is_known, one in zip(paths, known, looked, strict=True):
                digest = files[path].digest if is_known else one.digest
                width, height, vector = found[digest] if is_known else (one.width, one.height, one.vector)
                taken.append((digest, width, height, np.asarray(vector).tobytes()))
                if index.thumbnail(digest) not in (None, digest * 9):
                    taken.append((b"the thumbnail of another photo", 0, 0, b""))
            return taken
        finally:
            index.close()

    read()
    return Kind("index of photos", folder, [folder / "photos.sqlite"], read, (500, 8000))


def _journal(folder: Path) -> Kind:
    file = folder / "marks.log"
    journal = Journal(file)
    for number in range(20):
        journal.add({"do": "mark", "label": f"label {number}", "yes": ["a"], "no": [], "unknown": []})
    return Kind("journal", folder, [file], lambda: [one["label"] for one in Journal(file).done], (800, 15_000))


def _of_tagger(folder: Path, photos: Sequence[str]) -> list[Kind]:
    options = LearnOptions(backbone="small_conv", settings={"image_size": 16, "threads": 1})
    tagger, _ = learn(None, str(folder / "photos" / "table.csv"), options)
    place, parts, urls = folder / "tagger", folder / "parts", [False]
    tagger.save(place)

    def load() -> Any:
        urls[0] = not urls[0]  # by turns from the folder and from its URL
        found = Tagger.load(f"file://{place}" if urls[0] else place)
        state = found.method.state()
        return _bytes(state.tensors), json.dumps(state.values), found.labels, found.thresholds.tolist(), found.config

    def predict() -> Any:
        made = predicted_parts.Parts(parts / "tags.csv", "me")
        made.fill(made.left(photos), lambda: tagger, Wish(), None, lambda done, total: None)
        return list(made.outcomes(photos))

    predicted_parts.PART = 4
    predict()
    files = sorted(parts.glob(".*/*.jsonl"))
    return [
        Kind("tagger", place, sorted(place.iterdir()), load, (150, 3000)),
        Kind("parts of predictions", parts, files, predict, (300, 5000)),
    ]
