"""The folder of a tagger: what it holds, written whole or not at all, and readable by other programs.

config.json            valid for timm; label names; all that mlcil adds stands under the key "mlcil"
model.safetensors      the backbone alone, with timm's own names
tagger.safetensors     heads, sums, whatever else the method keeps
preprocessing.json     how a photo becomes the network's input
tags.csv               the labels: since when, from how many photos, how well
README.md              a model card
SHA256SUMS             for `sha256sum --check`
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..core.config import as_dict, identity
from ..core.errors import UserError, reason_of
from ..core.files import read_json, sha256_of, write_folder, write_json, write_text
from ..core.kinds import check_kinds
from ..core.state import State, divided
from ..evaluation.calibration import Calibration
from ..models.backbone import Backbone
from ..training.config import make_config
from ..training.states import MISFITS, load_state, save_state
from .model_card import card, tags_csv
from .records import LabelFacts, Step
from .restoring import restored
from .tagger import Tagger

FORMAT = 1  # raise it when an older version could not read what is written
CONFIG, MODEL, STATE, PREPROCESSING = "config.json", "model.safetensors", "tagger.safetensors", "preprocessing.json"
SUMS = "SHA256SUMS"
READ = (CONFIG, MODEL, STATE, PREPROCESSING)  # the files that make a tagger
_BACKBONE = "tagger.backbone.net."
_OWN = ("data", "images", "weights")  # names on one machine: of no use elsewhere, and nobody else's business


def save(tagger: Tagger, path: Path, slim: bool = False) -> Path:
    """Write the folder; see `Tagger.save`."""
    tagger = replace(tagger, slim=slim or tagger.slim)  # what a slim one lacks does not come back
    state = tagger.method.state()
    if tagger.slim:
        state, _ = divided(state, tagger.method.only_for_learning)
    backbone = {name: value for name, value in state.tensors.items() if name.startswith(_BACKBONE)}
    others = {name: value for name, value in state.tensors.items() if name not in backbone}

    def fill(folder: Path) -> None:
        save_state(folder / MODEL, {name.removeprefix(_BACKBONE): value for name, value in backbone.items()}, {})
        save_state(folder / STATE, others, {})
        write_json(folder / CONFIG, _config(tagger, state))
        write_json(folder / PREPROCESSING, preprocessing(tagger))
        write_text(folder / "tags.csv", tags_csv(tagger))
        write_text(folder / "README.md", card(tagger, path.name))
        names = sorted(one.name for one in folder.iterdir())
        write_text(folder / SUMS, "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names))

    write_folder(path, fill)
    return path


def load_folder(path: Path, url: str | None = None) -> Tagger:
    """Read the folder of a tagger.

    Arguments:
        url: where it was fetched from.

    Raises:
        UserError: a file is missing or damaged, or a later version wrote it.
    """
    origin = url or path
    _check(path, origin)
    config = read_json(path / CONFIG)
    try:
        own = config["mlcil"]
        if own["format"] > FORMAT:
            raise UserError(f"tagger {origin} was written by a later version of mlcil ({own['version']}); update mlcil")
        tensors = {_BACKBONE + name: value for name, value in load_state(path / MODEL)[0].items()}
        tensors |= load_state(path / STATE)[0]
        run = make_config({"runtime": "torch"} | own["settings"], where=f"{origin}/{CONFIG}")
        calibration = None if own["calibration"] is None else Calibration.from_values(own["calibration"])
        labels = tuple(LabelFacts(**one) for one in own["labels"])
        for one in labels:
            check_kinds(one)
        names = tuple(one.name for one in labels)
        method = restored(run, State(tensors, own["state"]), names, calibration)
        steps = tuple(Step(**{key: _tuple(value) for key, value in one.items()}) for one in own["steps"])
        for step in steps:
            check_kinds(step)
        _take_normalisation(method.tagger.backbone, read_json(path / PREPROCESSING))
        return Tagger(run, method, labels, steps, calibration, own["chosen"], own["weights"], origin, own["slim"])
    except MISFITS as error:
        raise UserError(f"tagger {origin} is damaged: {reason_of(error)}") from error


def preprocessing(tagger: Tagger) -> dict[str, Any]:
    """How a photo becomes the network's input, in words that other programs can follow."""
    backbone = tagger.method.tagger.backbone
    return {
        "orientation": "EXIF",
        "color": "RGB, transparency on white",
        "size": [tagger.size, tagger.size],
        "resize": "stretch",
        "filter": "bilinear, antialiased",
        "scale": 1 / 255,
        "mean": list(backbone.mean),
        "std": list(backbone.std),
    }


def _config(tagger: Tagger, state: State) -> dict[str, Any]:
    from .. import __version__

    backbone: Backbone = tagger.method.tagger.backbone
    shared = {
        "architecture": backbone.name.split(".")[0],
        "num_classes": 0,
        "num_features": backbone.channels,
        "label_names": list(tagger.classes),
        "model_args": _model_args(backbone),
        "pretrained_cfg": {
            "input_size": [3, tagger.size, tagger.size],
            "mean": list(backbone.mean),
            "std": list(backbone.std),
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "squash",
            "num_classes": 0,
        },
    }
    settings = {key: value for key, value in identity(tagger.config.settings).items() if key not in _OWN}
    settings["runtime"] = backbone.runtime  # features of another one differ, on whatever machine it learns more
    own = {
        "format": FORMAT,
        "version": __version__,
        "slim": tagger.slim,
        "settings": settings | {"options": as_dict(tagger.config.options)},
        "labels": [asdict(one) for one in tagger.labels],
        "steps": [asdict(one) for one in tagger.steps],
        "chosen": tagger.chosen,
        "weights": tagger.weights,
        "calibration": None if tagger.calibration is None else tagger.calibration.to_values(),
        "state": state.values,
    }
    return shared | {"mlcil": own}


def _model_args(backbone: Backbone) -> dict[str, Any]:
    """The arguments with which timm makes the same network."""
    return {"num_classes": 0} | ({"img_size": backbone.image_size} if backbone.takes_image_size else {})


def _check(path: Path, origin: Path | str) -> None:
    """Compare the files that are read with their checksums."""
    listed = path / SUMS
    if not listed.is_file():
        raise UserError(f"tagger {origin} is incomplete: {SUMS} is missing")
    lines = (line.partition("  ") for line in listed.read_text(errors="replace").splitlines())
    sums = {name: digest for digest, _, name in lines}
    for name in READ:
        if not (path / name).is_file():
            raise UserError(f"tagger {origin} is incomplete: {name} is missing")
        if sha256_of(path / name) != sums.get(name):
            raise UserError(f"tagger {origin} is damaged: {name} does not have the SHA-256 that {SUMS} states")


def _take_normalisation(backbone: Backbone, found: dict[str, Any]) -> None:
    mean, std = tuple(map(float, found["mean"])), tuple(map(float, found["std"]))
    if (
        len(mean) != 3
        or len(std) != 3
        or not all(map(math.isfinite, mean))
        or not all(0 < one < math.inf for one in std)
    ):
        raise ValueError(f"{PREPROCESSING} has no mean and deviation of three colours")
    backbone.mean, backbone.std = mean, std


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
