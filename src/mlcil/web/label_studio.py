"""Label Studio's backend for predictions: it sends tasks, and gets tags for its annotators to confirm.

The shapes are those of HumanSignal's label_studio_ml/api.py; its package is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from .. import __version__
from ..core.errors import UserError
from ..data.decoding import BadImage
from ..evaluation.metrics import Floats
from ..serving.tagger import Tagger
from .engine import Engine, Seen
from .label_studio_images import Opener
from .labelling_config import Choices, choices_of
from .predict_api import FILES, name_of
from .uploads import Upload
from .waiting import finished

__all__ = ["Opener", "label_studio_router"]

EVENTS = {"ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATION_DELETED", "START_TRAINING"}


class Task(BaseModel):
    """A task; `data` names its image."""

    id: int | str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class PredictRequest(BaseModel):
    """What Label Studio sends to /predict."""

    tasks: list[Task] = Field(max_length=FILES)
    label_config: str = Field(max_length=2**20)


class SetupRequest(BaseModel):
    """What Label Studio sends to /setup."""

    schema_: str = Field("", alias="schema", max_length=2**20)


class Event(BaseModel):
    """What Label Studio sends to /webhook."""

    action: str = ""


def label_studio_router(engine: Engine, opener: Opener) -> APIRouter:
    """The routes /health, /setup, /predict and /webhook."""
    router = APIRouter(tags=["Label Studio"])
    version = f"{name_of(engine.tagger)}-{__version__}"

    @router.get("/health", summary="Whether the backend is up")
    def health() -> dict[str, str]:
        return {"status": "UP", "model_class": "mlcil"}

    @router.post("/setup", summary="Check a labelling configuration")
    def setup(given: SetupRequest) -> dict[str, str]:
        if given.schema_.strip():
            choices_of(given.schema_)
        return {"model_version": version}

    @router.post("/predict", summary="Tag tasks")
    async def predict(request: Request, given: PredictRequest) -> dict[str, Any]:
        choices = choices_of(given.label_config)
        opened = await run_in_threadpool(_open_all, opener, given.tasks, choices.key)
        uploads = [one for one in opened if isinstance(one, Upload)]
        seen = await finished(request, engine.submit(uploads))
        found = iter(seen)
        outcomes: list[Seen | UserError] = [next(found) if isinstance(one, Upload) else one for one in opened]
        _check_any(outcomes)
        return {"results": [_result(engine.tagger, choices, version, one) for one in outcomes]}

    @router.post("/webhook", status_code=201, summary="Take note of an annotation")
    def webhook(event: Event) -> dict[str, str]:
        known = "ok" if event.action in EVENTS else "Unknown event"
        return {"status": known, "result": "nothing was learned: export the annotations and use mlcil learn"}

    return router


def _open_all(opener: Opener, tasks: Sequence[Task], key: str) -> list[Upload | UserError]:
    return [_open(opener, task, key) for task in tasks]


def _open(opener: Opener, task: Task, key: str) -> Upload | UserError:
    place = task.data.get(key)
    if not isinstance(place, str):
        return UserError(f"task {task.id} has no text under data.{key}")
    try:
        return Upload(f"image of task {task.id}", opener.read(place))
    except UserError as error:
        return error


def _check_any(outcomes: Sequence[Seen | UserError]) -> None:
    """Say why nothing could be opened, which would otherwise look like photos without tags."""
    problems = [one for one in outcomes if isinstance(one, UserError)]
    if outcomes and len(problems) == len(outcomes):
        raise HTTPException(400, str(problems[0]))


def _result(tagger: Tagger, choices: Choices, version: str, outcome: Seen | UserError) -> dict[str, Any]:
    if isinstance(outcome, UserError):
        line = outcome.reason if isinstance(outcome, BadImage) else str(outcome)
        return {"model_version": version, "score": 0.0, "result": [], "error": line}
    tags = tagger.prediction("", outcome.scores, tagger.thresholds, None).tags
    chosen = choices.chosen([tag.name for tag in tags])
    one = {
        "from_name": choices.name,
        "to_name": choices.to_name,
        "type": "choices",
        "value": {"choices": chosen},
    }
    columns = [k for k, name in enumerate(tagger.classes) if choices.choice_of(name) is not None]
    score = certainty(outcome.scores[columns], tagger.thresholds[columns])
    return {"model_version": version, "score": score, "result": [one] if chosen else []}


def certainty(scores: NDArray[np.float32], thresholds: Floats) -> float:
    """How far the label that is nearest to its threshold is from it, as a part of the way to 0 or to 1.

    Label Studio shows tasks with low scores first, so those come first about which the tagger is least sure.
    """
    if not len(scores):
        return 0.0
    room = np.where(scores > thresholds, 1 - thresholds, thresholds)
    return float(np.min(np.abs(scores - thresholds) / np.maximum(room, 1e-9)).clip(0, 1))
