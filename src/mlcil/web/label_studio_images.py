"""Opening the images of Label Studio's tasks: from one folder and one server, and from nowhere else."""

from __future__ import annotations

import os
import time
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, parse_qs, quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..core.errors import UserError, reason_of
from .bodies import MAX_BODY

LOCAL = "/data/local-files/"  # how Label Studio names files of its own folder
SECONDS = 10.0  # in which an image must have arrived
PIECE = 2**16  # bytes read at once
KEY = "LABEL_STUDIO_API_KEY"  # environment variable of the access token
_SAFE = "/%:@!$&'()*+,;=~"  # what a path may have as it is


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would lead to a server that nobody configured."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str) -> None:  # type: ignore[override]
        """Follow nothing."""


class Opener:
    """Opens what tasks name.

    Arguments:
        root: the folder that is Label Studio's LOCAL_FILES_DOCUMENT_ROOT, None to open no files.
        host: the URL of Label Studio, None to fetch nothing.

    Raises:
        UserError: there is no such folder, or the URL is none.
    """

    def __init__(self, root: Path | None = None, host: str | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UserError(f"--data-root {root} is not a folder")
        self.root = None if root is None else root.resolve()
        self.host = None if host is None else _origin(host)
        self._open = build_opener(_NoRedirect).open

    def read(self, place: str) -> bytes:
        """The bytes of an image, given as /data/local-files/?d=PATH, another path of the server, or a URL of it.

        Raises:
            UserError: it is elsewhere, missing, or too large.
        """
        try:
            parts = urlsplit(place)
        except ValueError:
            raise UserError(f"{place[:200]!r} is not a URL") from None
        is_own = not parts.netloc or (self.host is not None and (parts.scheme, parts.netloc) == self.host[:2])
        if is_own and parts.path == LOCAL and self.root is not None:
            return self._file(parse_qs(parts.query).get("d", [""])[0])
        if is_own and parts.path.startswith("/") and self.host is not None:
            return self._fetched(parts)
        raise UserError(
            f"{place[:200]!r} is not opened: give --data-root for {LOCAL}?d=..., or --label-studio-host for its server"
        )

    def _file(self, name: str) -> bytes:
        assert self.root is not None
        try:
            file = (self.root / name).resolve(strict=True)  # where links lead to counts
            if not file.is_relative_to(self.root) or not file.is_file():
                raise UserError(f"{name[:200]!r} is not a file in --data-root")
            if file.stat().st_size > MAX_BODY:
                raise UserError(f"{name[:200]!r} is too large")
            return file.read_bytes()
        except (OSError, ValueError):
            raise UserError(f"{name[:200]!r} is not a file in --data-root") from None

    def _fetched(self, parts: SplitResult) -> bytes:
        assert self.host is not None
        query = f"?{parts.query}" if parts.query else ""
        request = Request(  # noqa: S310 - `_origin` has made sure of http or https
            f"{self.host[0]}://{self.host[1]}{quote(parts.path, safe=_SAFE)}{query}"
        )
        if key := os.environ.get(KEY):
            request.add_header("Authorization", f"Token {key}")
        try:
            with self._open(request, timeout=SECONDS) as answer:
                return _limited(answer, parts.path)
        except HTTPError as error:
            hint = f"; is {KEY} set?" if error.code in (401, 403) else ""
            raise UserError(f"Label Studio answers {error.code} to {parts.path[:200]!r}{hint}") from None
        except (URLError, OSError, ValueError, HTTPException) as error:
            raise UserError(f"cannot fetch {parts.path[:200]!r} from Label Studio: {reason_of(error)}") from None


def _limited(answer: IO[bytes], path: str) -> bytes:
    content, deadline = bytearray(), time.monotonic() + SECONDS
    while piece := answer.read(PIECE):
        content += piece
        if len(content) > MAX_BODY or time.monotonic() > deadline:
            raise UserError(f"{path[:200]!r} of Label Studio is too large or too slow")
    return bytes(content)


def _origin(host: str) -> tuple[str, str]:
    parts = urlsplit(host)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise UserError(f"got --label-studio-host {host!r}, expected a URL such as http://localhost:8080")
    return parts.scheme, parts.netloc
