"""The interface for programs: images in, tags out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .. import __version__
from ..core.errors import UserError
from ..data.decoding import BadImage
from ..serving.explanation import check_has_maps
from ..serving.predicting import Wish
from ..serving.predictions import Tag
from ..serving.tagger import Tagger
from .engine import Engine, Seen
from .evidence import data_url, overlay
from .uploads import FORMATS, Upload, status_of
from .waiting import finished

FILES = 32  # images of one request
EVIDENCE = 20  # tags of one image whose evidence is shown
NAME_LENGTH = 255
_PRIVATE = ("measured",)  # facts about a label that may name files
_IMAGE = {"schema": {"type": "string", "format": "binary"}}
_FILES = {"type": "object", "properties": {"files": {"type": "array", "items": _IMAGE["schema"]}}}
_BODY = {"required": True, "content": {"image/*": _IMAGE, "multipart/form-data": {"schema": _FILES}}}


class InMemory(MultiPartParser):
    """A parser of forms that never writes to disk; the body's size is limited elsewhere."""

    spool_max_size = sys.maxsize


def predict_router(engine: Engine) -> APIRouter:
    """The routes of /v1."""
    router = APIRouter(prefix="/v1", tags=["tagging"])
    tagger = engine.tagger

    @router.post("/predict", summary="Tag images", openapi_extra={"requestBody": _BODY})
    async def predict(
        request: Request,
        top: Annotated[int | None, Query(ge=1, description="Give this many labels to each image.")] = None,
        threshold: Annotated[float | None, Query(ge=0, le=1, description="One threshold for all labels.")] = None,
        label: Annotated[list[str] | None, Query(description="Give these labels, and no others.")] = None,
        evidence: Annotated[bool, Query(description="Also show where each tag is, as PNG data URLs.")] = False,
    ) -> Response:
        """Tags of an image that is the body itself, or of each file of a form."""
        if evidence and not _has_evidence(tagger):
            raise HTTPException(400, "this tagger cannot say where its tags are; ask without evidence=true")
        answer = _Answer(tagger, Wish(top, threshold), _known(tagger, label))
        uploads, is_form = await read_uploads(request)
        found = await finished(request, engine.submit(uploads, evidence))
        if not is_form and isinstance(found[0], BadImage):
            raise HTTPException(status_of(found[0]), found[0].reason)
        images = await run_in_threadpool(lambda: [*map(answer.image, uploads, found)])  # drawing takes a while
        return JSONResponse({"images": images})

    @router.get("/tags", summary="List the labels")
    def tags() -> dict[str, Any]:
        """Every label with its threshold, and what is known about how well it is found."""
        facts = zip(tagger.labels, tagger.thresholds, strict=True)
        return {"tags": [_facts(asdict(one)) | {"threshold": float(threshold)} for one, threshold in facts]}

    @router.get("/model", summary="Describe the tagger")
    def model() -> dict[str, Any]:
        """What the tagger is and what it learned when."""
        return describe(tagger)

    return router


async def read_uploads(request: Request) -> tuple[list[Upload], bool]:
    """The images of a request, and whether it is a form.

    Raises:
        HTTPException: it is no proper form, or one with no or too many files.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return [Upload("image", await request.body())], False
    try:
        form = await InMemory(request.headers, request.stream(), max_files=FILES, max_fields=FILES).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None
    files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if not files:
        raise HTTPException(400, "the form has no file; expected one or several")
    uploads = [Upload((one.filename or "image")[:NAME_LENGTH], await one.read()) for one in files]
    await form.close()
    return uploads, True


def describe(tagger: Tagger) -> dict[str, Any]:
    """What a tagger is, without names of files or folders of this machine."""
    settings = tagger.config.settings
    steps = [
        {"number": one.number, "learned": one.learned, "images": one.images, "new_labels": list(one.new_labels)}
        for one in tagger.steps
    ]
    return {
        "name": name_of(tagger),
        "method": settings.method,
        "backbone": settings.backbone,
        "labels": list(tagger.classes),
        "steps": steps,
        "version": __version__,
        "image_size": tagger.size,
        "has_evidence": _has_evidence(tagger),
        "limits": {"files": FILES, "megapixels": settings.megapixels, "formats": list(FORMATS)},
    }


def name_of(tagger: Tagger) -> str:
    """The name of a tagger's folder."""
    return Path(str(tagger.path)).name if tagger.path is not None else "tagger"


@dataclass(frozen=True)
class _Answer:
    """How the images of one request are answered."""

    tagger: Tagger
    wish: Wish
    labels: set[str] | None  # that were asked for

    def image(self, upload: Upload, found: Seen | BadImage) -> dict[str, Any]:
        if isinstance(found, BadImage):
            return {"name": upload.name, "error": found.reason}
        tags = self._tags(found.scores)
        record = {"name": upload.name, "width": found.width, "height": found.height, "tags": [*map(_tag, tags)]}
        return record if found.maps is None else record | {"evidence": _evidence(found, tags)}

    def _tags(self, scores: NDArray[np.float32]) -> Sequence[Tag]:
        thresholds = self.tagger.thresholds_for(self.wish.threshold)
        if self.labels is None:
            return self.tagger.prediction("", scores, thresholds, self.wish.top).tags
        everything = self.tagger.prediction("", scores, thresholds, len(self.tagger.classes)).tags
        return [tag for tag in everything if tag.name in self.labels][: self.wish.top]


def _known(tagger: Tagger, labels: list[str] | None) -> set[str] | None:
    """The labels that were asked for, all of which the tagger knows."""
    return None if labels is None else {tagger.classes[tagger.column(name)] for name in labels}


def _tag(tag: Tag) -> dict[str, Any]:
    return {
        "label": tag.name,
        "score": tag.score,
        "probability": tag.probability,
        "threshold": tag.threshold,
        "present": tag.score > tag.threshold,
    }


def _evidence(found: Seen, tags: Sequence[Tag]) -> dict[str, str]:
    maps = found.maps or {}
    drawn = ((tag.name, overlay(maps[tag.name], found.width, found.height)) for tag in tags[:EVIDENCE])
    return {name: data_url(png) for name, png in drawn if png is not None}


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {"label": facts.pop("name")} | {name: value for name, value in facts.items() if name not in _PRIVATE}


def _has_evidence(tagger: Tagger) -> bool:
    try:
        check_has_maps(tagger)
    except UserError:
        return False
    return True
