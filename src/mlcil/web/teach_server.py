"""The server of `mlcil teach`."""

from __future__ import annotations

from fastapi import FastAPI

from ..teaching.workbench import Workbench
from .access import Access
from .app import make_app
from .teach_api import teach_router

MAX_BODY = 1_000_000  # bytes; marks are short, and photos are not sent


def make_teach_app(bench: Workbench, access: Access) -> FastAPI:
    """The page and its interface; closing the server closes the workbench."""
    return make_app("mlcil teach", access, [teach_router(bench)], "teach.html", MAX_BODY, bench.close)
