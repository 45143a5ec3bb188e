"""The pages: files of this package, and nothing else."""

from __future__ import annotations

import html
from pathlib import Path

from fastapi import APIRouter, HTTPException
from starlette.responses import Response

PAGES = Path(__file__).parent / "pages"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_router(home: str, page_token: str) -> APIRouter:
    """The routes of pages: / is the file `home`, /api-docs describes the interface, /pages/NAME is any other file."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def home_page() -> Response:
        return page(home, page_token)

    @router.get("/api-docs")
    def description() -> Response:
        return page("api-docs.html", page_token)

    @router.get("/pages/{name}")
    def file(name: str) -> Response:
        return page(name, page_token)

    return router


def page(name: str, page_token: str) -> Response:
    """A file of the folder of pages; in HTML, {{token}} becomes the token that writes need."""
    # Looked up among the names that exist, so that no name leads out of the folder.
    found = {one.name: one for one in PAGES.iterdir() if one.suffix in TYPES}.get(name)
    if found is None:
        raise HTTPException(404, "there is no such page")
    content = found.read_text(encoding="utf-8")
    if found.suffix == ".html":
        content = content.replace("{{token}}", html.escape(page_token, quote=True))
    caching = "no-store" if found.suffix == ".html" else "no-cache"
    return Response(content, media_type=TYPES[found.suffix], headers={"Cache-Control": caching})
