"""The frame of every server: its checks, its pages, its errors in one line, and how it is watched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..core.errors import UserError
from .access import Access, Guard
from .bodies import MAX_BODY, BodyLimit
from .errors import Busy
from .metrics import Measured, Metrics
from .page_files import page_router

__all__ = ["Access", "Busy", "make_app"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def make_app(
    title: str,
    access: Access,
    routers: Sequence[APIRouter],
    home: str,
    max_body: int = MAX_BODY,
    on_close: Callable[[], None] = lambda: None,
    is_ready: Callable[[], bool] = lambda: True,
    metrics: Metrics | None = None,
) -> FastAPI:
    """A server with checks, pages and errors as JSON {"detail": line}.

    Arguments:
        title: of the interface, for its description.
        routers: what the server does. A write to /api/ needs the page token, one to /v1/ or /api/v1/ does not.
        home: the file of the page at /.
        max_body: bytes that the body of a request may have.
        on_close: called once when the server stops.
        is_ready: whether requests can be answered, for /readyz.
        metrics: what /metrics shows; None for one of its own.
    """
    metrics = metrics or Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        on_close()

    # Every address has one spelling; to redirect from another, the framework would decode a query of any bytes.
    app = FastAPI(
        title=title, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for router in (*routers, page_router(home, access.page_token), _watching(metrics, is_ready)):
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, most=max_body)
    app.add_middleware(Guard, access=access)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Measured, metrics=metrics)
    _add_errors(app)
    return app


class SecurityHeaders:
    """Adds the headers that keep browsers careful to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and complete its answer."""

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, complete)


def _watching(metrics: Metrics, is_ready: Callable[[], bool]) -> APIRouter:
    router = APIRouter(tags=["watching"])

    @router.get("/healthz", summary="Whether the server is alive")
    def alive() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/readyz", summary="Whether the server can answer requests")
    def ready() -> dict[str, str]:
        if not is_ready():
            raise HTTPException(503, "not ready", {"Retry-After": "1"})
        return {"status": "ready"}

    @router.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    def figures() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return router


def _add_errors(app: FastAPI) -> None:
    """Make a line of every error."""

    @app.exception_handler(UserError)
    def wrong_input(_: Request, error: UserError) -> Response:
        return JSONResponse({"detail": str(error)}, 400)

    @app.exception_handler(Busy)
    def busy(_: Request, error: Busy) -> Response:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": str(error.seconds)})

    @app.exception_handler(RequestValidationError)
    def wrong_form(_: Request, error: RequestValidationError) -> Response:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": "; ".join(lines)[:500]}, 422)

    @app.exception_handler(Exception)
    def bug(_: Request, __: Exception) -> Response:  # the traceback is in the server's log, and only there
        return JSONResponse({"detail": "the server made a mistake; its log says more"}, 500, HEADERS)
