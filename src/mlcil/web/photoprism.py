"""PhotoPrism's vision service: it sends a photo, or several pictures of it, and gets labels.

The shapes are those of its package internal/ai/vision, ApiRequest and ApiResponse.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .. import __version__
from ..core.errors import UserError
from ..data.decoding import BadImage
from ..serving.predictions import Tag
from .engine import Engine, Seen
from .predict_api import FILES, name_of
from .uploads import Upload, status_of
from .waiting import finished

TOPICALITY = 1.0  # every tag is about the photo as a whole


class LabelRequest(BaseModel):
    """What PhotoPrism sends; the rest of it is for language models."""

    id: str = Field("", max_length=200)
    model: str = ""
    images: list[str] = Field(min_length=1, max_length=FILES)


def photoprism_router(engine: Engine) -> APIRouter:
    """The route of /api/v1/vision/labels."""
    router = APIRouter(prefix="/api/v1/vision", tags=["PhotoPrism"])
    model = {"type": "labels", "name": name_of(engine.tagger), "version": __version__, "resolution": engine.tagger.size}

    @router.post("/labels", summary="Label a photo for PhotoPrism")
    async def labels(request: Request, wanted: LabelRequest) -> Response:
        """Labels of a photo that is given as data URLs; of several pictures, each label at its best."""
        try:
            uploads = [Upload("image", from_data_url(one)) for one in wanted.images]
        except UserError as error:
            return _failed(wanted.id, 400, str(error))
        found = await finished(request, engine.submit(uploads))
        seen = [one for one in found if not isinstance(one, BadImage)]
        if bad := next((one for one in found if isinstance(one, BadImage)), None):
            return _failed(wanted.id, status_of(bad), bad.reason)
        result = {"labels": [_label(tag) for tag in _best(engine, seen)]}
        return JSONResponse({"id": wanted.id, "code": 200, "model": model, "result": result})

    return router


def from_data_url(text: str) -> bytes:
    """The bytes of a data URL.

    Raises:
        UserError: it is another URL, which is never fetched, or not base64.
    """
    head, comma, data = text.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise UserError(
            "expected images as data:image/jpeg;base64,...; set FileScheme: data in PhotoPrism's vision.yml"
        )
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:  # also of letters that no base64 has
        raise UserError("the data URL of an image is not valid base64") from None


def _best(engine: Engine, seen: Sequence[Seen]) -> list[Tag]:
    """The tags of all pictures of a photo, each with its highest probability, the most probable first."""
    tagger, best = engine.tagger, dict[str, Tag]()
    for one in seen:
        for tag in tagger.prediction("", one.scores, tagger.thresholds, None).tags:
            if tag.name not in best or tag.probability > best[tag.name].probability:
                best[tag.name] = tag
    return sorted(best.values(), key=lambda tag: -tag.probability)


def _label(tag: Tag) -> dict[str, Any]:
    return {
        "name": tag.name,
        "source": "image",
        "confidence": round(tag.probability, 4),
        "topicality": TOPICALITY,
        "priority": 0,
        "categories": [],
    }


def _failed(identity: str, status: int, line: str) -> Response:
    return JSONResponse({"id": identity, "code": status, "error": line, "detail": line, "result": {}}, status)
