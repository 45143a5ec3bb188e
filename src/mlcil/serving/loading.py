"""From a folder to a tagger: its own folder, or that of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.files import sha256_of
from ..core.remote import fetched, path_or_url
from ..core.state import State, part_of
from ..evaluation.calibration import Calibration
from ..evaluation.results import SessionResult
from ..evaluation.scores import load_scores, scores_file
from ..models.backbone import SMALL, Backbone
from ..training.config import RunConfig, make_config, read_config
from ..training.folder import RunFolder
from ..training.states import fitting, load_session
from .measuring import measured
from .records import LabelFacts, Step
from .restoring import restored
from .tagger import Tagger
from .tagger_files import CONFIG, READ, SUMS, load_folder


def load(place: str | Path, session: int | None = None) -> Tagger:
    """Load a tagger; see `Tagger.load`."""
    path = path_or_url(place)
    if isinstance(path, str):
        return _load_url(path, session)
    if not path.exists():
        raise UserError(f"{path} does not exist; expected the folder of a tagger or of a run")
    if (path / CONFIG).is_file():
        if session is not None:
            raise UserError(f"{path} is a tagger, which has no sessions to choose from; leave out session {session}")
        return load_folder(path)
    if (path / "config.yaml").is_file():
        return open_run(path, session)
    raise UserError(f"{path} is neither a tagger nor the folder of a run: it has no {CONFIG} and no config.yaml")


def _load_url(url: str, session: int | None) -> Tagger:
    with fetched(url, (*READ, SUMS)) as folder:
        if not (folder / CONFIG).exists():
            raise UserError(f"{url} is not a tagger: it has no {CONFIG}; only taggers, and no runs, are read from URLs")
        if session is not None:
            raise UserError(f"{url} is a tagger, which has no sessions to choose from; leave out session {session}")
        return load_folder(folder, url)


def open_run(path: Path, session: int | None = None) -> Tagger:
    """The model of a run after a session, by default the last one; neither its data nor its weight file is needed.

    Raises:
        UserError: the folder holds no run, the session is not finished, or a file is damaged.
    """
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
    config = make_config(read_config(path / "config.yaml"), where=str(path / "config.yaml"))
    folder = RunFolder(path)
    finished = folder.finished_sessions()
    if not finished:
        raise UserError(f"run {path} has no finished session yet, so there is no model to load")
    number = finished if session is None else session
    if not 1 <= number <= finished:
        raise UserError(f"run {path}: got session {number}, expected 1 to {finished}, the sessions that are finished")
    file = folder.state_file(number)
    with fitting(file):
        tensors, values = load_session(file)
        classes = tuple(str(name) for name in values["result"]["classes"])
        found = values.get("calibration")
        calibration = None if found is None else Calibration.from_values(found)
        method = restored(config, State(part_of(tensors, "method."), values["method"]), classes, calibration)
    _take_normalisation(method.tagger.backbone, config.settings.weights)
    results = [folder.result_after(one) for one in range(1, number + 1)]
    steps = tuple(_step_of(one, config.settings.data, folder) for one in results)
    first = [steps[min(place, number - 1)] for place, size in enumerate(method.tagger.sizes) for _ in range(size)]
    facts = tuple(LabelFacts(name, step.number, step.learned) for name, step in zip(classes, first, strict=True))
    is_slim = not set(method.only_for_learning) <= set(values["method"]["saved"])
    tagger = Tagger(config, method, facts, steps, calibration, None, weights_text(config), path, is_slim)
    return _with_test_results(tagger, scores_file(path, number))


def _step_of(result: SessionResult, data: str, folder: RunFolder) -> Step:
    seconds = folder.state_file(result.session).stat().st_mtime
    when = datetime.fromtimestamp(int(seconds), UTC).isoformat()
    return Step(result.session, when, data, result.images, 0, tuple(result.new_classes), tuple(result.new_classes))


def _with_test_results(tagger: Tagger, file: Path) -> Tagger:
    """With what the run measured on its test images, if it kept their scores."""
    if not file.is_file():
        return tagger
    scored = load_scores(file)
    return tagger.with_label_facts(measured(tagger, scored.scores, scored.labels, "test images of the run"))


def weights_text(config: RunConfig) -> str:
    """Where the pretrained weights of a configuration come from, in words."""
    given, backbone = config.settings.weights, config.settings.backbone
    if given is None:
        return "no pretrained weights"
    if Path(given).is_file():
        return f"the file {Path(given).name} (SHA-256 {sha256_of(Path(given))}); its licence is that of its source"
    import timm

    name = backbone if given == "pretrained" else f"{backbone.split('.')[0]}.{given}"
    known: Any = timm.get_pretrained_cfg(name) if timm.is_model_pretrained(name) else None
    licence = getattr(known, "license", None) or "see its page on the hub"
    return f"timm's {name}, licence: {licence}"


def _take_normalisation(backbone: Backbone, weights: str | None) -> None:
    """Use the normalisation of the pretrained weights: it may differ by timm tag, and no checkpoint holds it."""
    if weights is None or backbone.name == SMALL:
        return
    import timm

    name = f"{backbone.name.split('.')[0]}.{weights}"
    if name in timm.list_pretrained(f"{backbone.name.split('.')[0]}.*"):
        configuration: Any = timm.get_pretrained_cfg(name)
        backbone.mean, backbone.std = tuple(configuration.mean), tuple(configuration.std)
