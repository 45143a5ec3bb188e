"""The server of a tagger: the engine and whatever talks to it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from ..core.errors import UserError
from ..serving.tagger import Tagger
from .access import LOOPBACK, Access
from .app import make_app
from .bodies import MAX_BODY
from .engine import QUEUE, Engine
from .label_studio import Opener, label_studio_router
from .metrics import Metrics
from .photoprism import photoprism_router
from .predict_api import predict_router


@dataclass(frozen=True)
class More:
    """What else the server understands, for other programs.

    Attributes:
        photoprism, label_studio: whether it answers these programs.
        data_root: the folder of images that Label Studio names by path.
        label_studio_host: the URL from which it may fetch images.
    """

    photoprism: bool = False
    label_studio: bool = False
    data_root: Path | None = None
    label_studio_host: str | None = None


def access_of(host: str, port: int, token: str | None, allowed: Sequence[str], page_token: str) -> Access:
    """Who may ask a server that listens on this host: by the names of this machine, and by those that are allowed."""
    everywhere = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not listened on
    own = (socket.gethostname(),) if host in everywhere else (f"[{host}]" if ":" in host else host,)
    names = (*LOOPBACK, *own, *allowed)
    if any("/" in name or (":" in name and not name.startswith("[")) for name in names):
        raise UserError(f"got --allow-host {', '.join(allowed)}, expected names without http:// and without ports")
    return Access(names, port, token, page_token)


def make_tagger_app(
    tagger: Tagger, access: Access, more: More | None = None, max_body: int = MAX_BODY, most: int = QUEUE
) -> FastAPI:
    """A server with its engine running.

    Arguments:
        max_body: bytes that a request may have.
        most: images that may be at work at once.

    Raises:
        UserError: `more` does not fit together.
    """
    more = more or More()
    metrics = Metrics()
    engine = Engine(tagger, metrics, most)
    routers = [predict_router(engine)]
    if more.photoprism:
        routers.append(photoprism_router(engine))
    if more.label_studio:
        routers.append(label_studio_router(engine, Opener(more.data_root, more.label_studio_host)))
    elif more.data_root is not None or more.label_studio_host is not None:
        raise UserError("--data-root and --label-studio-host are for Label Studio: add --label-studio")
    engine.start()
    return make_app(
        "mlcil", access, routers, "predict.html", max_body, engine.close, lambda: engine.is_running, metrics
    )
