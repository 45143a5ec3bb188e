"""Runs that were never trained, with weights large enough to matter, and pictures of noise."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from mlcil.core.state import prefixed
from mlcil.evaluation.results import evaluate
from mlcil.evaluation.scores import ScoredImages
from mlcil.serving.records import LabelFacts
from mlcil.serving.tagger import Tagger
from mlcil.training.config import make_config
from mlcil.training.prepare import prepare_method
from mlcil.training.states import save_state

DATA = "digits:train=20,test=40,size=32"
SIZES, CLASSES = (3, 2, 2), tuple("0123456")
OPTIONS = {"krt": {"width": 16, "heads": 4}, "ft": {}, "analytic": {"expansion": 20}, "adaptive": {"expansion": 20}}


def a_run(method, path=Path("run"), data=DATA, **changes):
    """A run that was never trained, with weights large enough to matter."""
    values = {"method": method, "data": data, "protocol": "0,1,2|3,4|5,6", "backbone": "small_conv", "image_size": 32}
    config = make_config(values | {"options": OPTIONS[method]} | changes)
    made, _ = prepare_method(config, len(CLASSES))
    for size in SIZES:
        made.tagger.grow(size)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.tagger.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    if method in ("analytic", "adaptive"):
        weights = torch.randn(made.tagger.width, len(CLASSES), generator=generator)
        made.tagger.set_solution(weights, torch.ones(len(CLASSES)), torch.zeros(len(CLASSES)))
    made.tagger.eval().requires_grad_(False)
    steps = np.repeat(np.arange(1, len(SIZES) + 1), SIZES).tolist()
    labels = tuple(LabelFacts(name, step) for name, step in zip(CLASSES, steps, strict=True))
    return Tagger(config, made, labels, path=path)


def stored(method, folder, **changes):
    """The same as a folder."""
    run = a_run(method, folder, **changes)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config.to_dict()))
    if method == "krt":
        run.method.rates = [0.5] * len(SIZES)
    tensors, values = run.method.state()
    tensors, values = prefixed("method.", tensors), {"method": values}
    scored = ScoredImages(np.eye(7, dtype=np.float32), np.eye(7, dtype=np.int8), np.arange(7), CLASSES)
    result = evaluate(scored, [], images=20, train_seconds=1.0, bytes_kept=0, notes={})
    for number in (1, 2, 3):
        found = values | {"result": asdict(result) | {"session": number}}
        save_state(folder / f"session-{number:02d}" / "state.safetensors", tensors, found)
    return folder


def picture(seed=0, shape=(32, 32, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def image_file(path, seed=0, shape=(32, 32, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(seed, shape)).save(path)
    return path
