"""The interface of `mlcil teach`: what its page reads and writes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from ..core.errors import UserError
from ..data.decoding import decode_to_fit
from ..serving.explanation import evidence_for
from ..serving.tagger import PHOTO_SIDE
from ..teaching.exporting import export_onnx_of, tags_csv, write_sidecars_of
from ..teaching.indexing import THUMBNAIL
from ..teaching.workbench import Workbench
from . import teach_views
from .evidence import overlay
from .teach_lists import Wanted, listed_photos

LARGE = 1600  # pixels of the longer side of one photo
QUALITY = 88  # of a JPEG
AT_ONCE = 2000  # photos in one mark
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # an id stands for a content
Name = Annotated[str, Field(max_length=400)]
Photos = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=AT_ONCE)]


class Mark(BaseModel):
    """What a person says about photos for a label."""

    label: Name
    yes: Photos = []
    no: Photos = []
    unknown: Photos = []


class OfLabel(BaseModel):
    """A label; for undo the one that is looked at, if any."""

    label: Name | None = None


class Threshold(BaseModel):
    """A probability above which a label is given; None for the label's own."""

    label: Name
    value: float | None


class Rename(BaseModel):
    """A label and its new name."""

    label: Name
    to: Name


class Merge(BaseModel):
    """A label and the one that it becomes part of."""

    label: Name
    into: Name


class Save(BaseModel):
    """The name of a new version; None for the next free one."""

    name: Name | None = None


class Export(BaseModel):
    """What to write, and of which version."""

    kind: str
    version: Name | None = None


def teach_router(bench: Workbench) -> APIRouter:
    """All routes."""
    router = APIRouter(tags=["teaching"])
    _add_reading(router, bench)
    _add_pictures(router, bench)
    _add_marking(router, bench)
    _add_changing(router, bench)
    _add_saving(router, bench)
    return router


def _add_reading(router: APIRouter, bench: Workbench) -> None:
    @router.get("/api/state", summary="Labels, progress, and what can be undone")
    def state() -> dict[str, Any]:
        return teach_views.state(bench)

    @router.get("/api/label", summary="Rows of photos for a label, and what to expect of it")
    def label(name: Annotated[str, Query(max_length=400)]) -> dict[str, Any]:
        return teach_views.view(bench, name)

    @router.get("/api/photos", summary="A list of photos")
    def photos(
        show: str = "all",
        label: Annotated[str | None, Query(max_length=400)] = None,
        like: str | None = None,
        search: Annotated[str, Query(max_length=400)] = "",
        offset: int = 0,
        limit: int = 200,
    ) -> dict[str, Any]:
        return listed_photos(bench, Wanted(show, label or None, like or None, search, offset, limit))

    @router.get("/api/photo", summary="One photo with all its labels")
    def photo(id: str) -> dict[str, Any]:
        return teach_views.photo(bench, row_of(bench, id))


def _add_pictures(router: APIRouter, bench: Workbench) -> None:
    @router.get("/thumb/{photo}", summary="A photo, made small")
    def thumbnail(photo: str) -> Response:
        row = row_of(bench, photo)
        found = bench.index.thumbnail(bench.photos.digest(row))
        return _jpeg(found if found is not None else _fitted(bench, row, THUMBNAIL))

    @router.get("/photo/{photo}", summary="A photo")
    def whole(photo: str) -> Response:
        return _jpeg(_fitted(bench, row_of(bench, photo), LARGE))

    @router.get("/evidence/{photo}", summary="Where the evidence for a label is, to lay over the photo")
    def evidence(photo: str, label: Annotated[str, Query(max_length=400)]) -> Response:
        row = row_of(bench, photo)
        _, found, _ = bench.view(label)
        if found is None:
            raise HTTPException(404, f"{label!r} has too few marks to say where it is seen")
        pixels = np.asarray(decode_to_fit(bench.photos.path(row), PHOTO_SIDE, bench.tagger.config.settings.megapixels))
        png = overlay(evidence_for(bench.tagger, pixels, found.weights), pixels.shape[1], pixels.shape[0])
        if png is None:
            raise HTTPException(404, "the evidence is the same everywhere in this photo")
        return Response(png, media_type="image/png")


def _add_marking(router: APIRouter, bench: Workbench) -> None:
    @router.post("/api/mark", summary="Say yes, no or unknown to photos; it is on disk when this answers")
    def mark(said: Mark) -> dict[str, Any]:
        with bench.lock:
            bench.mark(said.label, said.yes, said.no, said.unknown)
            return teach_views.view(bench, said.label)

    def undo_or_redo(looked_at: OfLabel, again: bool) -> dict[str, Any]:
        with bench.lock:
            undone = bench.undo(again)
            view = teach_views.view(bench, looked_at.label) if looked_at.label else None
            return {"undone": undone, "view": view, "state": teach_views.state(bench)}

    @router.post("/api/undo", summary="Take back what was done last")
    def undo(looked_at: OfLabel) -> dict[str, Any]:
        return undo_or_redo(looked_at, False)

    @router.post("/api/redo", summary="Do again what was taken back last")
    def redo(looked_at: OfLabel) -> dict[str, Any]:
        return undo_or_redo(looked_at, True)

    @router.post("/api/threshold", summary="Choose a threshold")
    def threshold(chosen: Threshold) -> dict[str, Any]:
        with bench.lock:
            bench.do({"do": "threshold", "label": chosen.label, "value": chosen.value})
            return teach_views.view(bench, chosen.label)


def _add_changing(router: APIRouter, bench: Workbench) -> None:
    def done(entry: dict[str, Any]) -> dict[str, Any]:
        with bench.lock:
            bench.do(entry)
            return teach_views.state(bench)

    @router.post("/api/rename", summary="Give a label another name")
    def rename(asked: Rename) -> dict[str, Any]:
        return done({"do": "rename", "label": asked.label, "to": asked.to})

    @router.post("/api/merge", summary="Make two labels one")
    def merge(asked: Merge) -> dict[str, Any]:
        return done({"do": "merge", "label": asked.label, "into": asked.into})

    @router.post("/api/delete", summary="Forget a label")
    def delete(asked: OfLabel) -> dict[str, Any]:
        return done({"do": "delete", "label": asked.label or ""})


def _add_saving(router: APIRouter, bench: Workbench) -> None:
    @router.post("/api/save", summary="Write a new version of the tagger")
    def save(asked: Save) -> dict[str, Any]:
        made, lines = bench.save(asked.name)
        name = Path(str(made.path)).name
        return {"name": name, "labels": len(made.classes), "lines": lines, "state": teach_views.state(bench)}

    @router.get("/export/tags.csv", summary="The tags of all photos as they are now")
    def export_csv() -> Response:
        return Response(
            tags_csv(bench),
            media_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="tags.csv"'},
        )

    kinds: dict[str, Callable[[Workbench, str | None], list[str]]] = {"xmp": write_sidecars_of, "onnx": export_onnx_of}

    @router.post("/api/export", summary="Write sidecars beside the photos, or an ONNX model of a saved version")
    def export(asked: Export) -> dict[str, Any]:
        if asked.kind not in kinds:
            raise UserError(f"got kind {asked.kind!r}, expected {' or '.join(kinds)}")
        return {"lines": kinds[asked.kind](bench, asked.version)}


def row_of(bench: Workbench, photo: str) -> int:
    """The row of a photo by its id; 404 if there is none."""
    row = bench.photos.row(photo)
    if row is None:
        raise HTTPException(404, "there is no such photo")
    return row


def _fitted(bench: Workbench, row: int, longest: int) -> bytes:
    """A photo as a JPEG file with sides of at most this many pixels."""
    stream = io.BytesIO()
    image = decode_to_fit(bench.photos.path(row), longest, bench.tagger.config.settings.megapixels)
    image.save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()


def _jpeg(content: bytes) -> Response:
    return Response(content, media_type="image/jpeg", headers=FOREVER)
