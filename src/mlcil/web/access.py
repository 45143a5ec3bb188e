"""Who may ask: the checks that every request passes before anything else looks at it."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # names by which a machine calls itself
COOKIE_SECONDS = 30 * 24 * 3600
_READS = {"GET", "HEAD", "OPTIONS"}  # methods that change nothing
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\s]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Access:
    """Who may ask a server.

    Attributes:
        hosts: names that the Host header may have, without ports, such as 127.0.0.1, localhost and [::1].
        port: of the server. Browsers share cookies between the ports of a machine, so it is part of a cookie's name.
        token: needed with every request where the server can be reached from other machines; None on loopback.
        page_token: what the server's own pages send with writes, in the header X-Mlcil-Token.
    """

    hosts: tuple[str, ...]
    port: int
    token: str | None
    page_token: str

    @property
    def cookie(self) -> str:
        """The name of the cookie that holds the token."""
        return f"mlcil-token-{self.port}"


class Guard:
    """Turns away what must not come in: foreign hosts, foreign pages, and whoever lacks a token."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        refusal = refusal_of(scope, self.access)
        await (self.app if refusal is None else refusal)(scope, receive, send)


def refusal_of(scope: Scope, access: Access) -> Response | None:
    """The answer to a request that must not come in, None for one that may."""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not _is_own_host(host, access):
        return _refuse(421, "the Host header names another server; start this one with --allow-host for other names")
    if access.token is not None and not _has_token(scope, headers, access):
        return _login(scope, access)
    if scope["method"] in _READS:
        return None
    origin = headers.get("origin")
    if origin is not None and not _is_same_origin(origin, host):
        return _refuse(403, "the request comes from a page of another server")
    if _needs_page_token(scope["path"]) and not _is_equal(headers.get("x-mlcil-token", ""), access.page_token):
        return _refuse(403, "the request lacks the token of this server's pages; reload the page")
    return None


def _refuse(status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    # Its body stays unread, so the connection cannot be used again.
    return JSONResponse({"detail": line}, status, {"Connection": "close"} | (headers or {}))


def _is_own_host(host: str, access: Access) -> bool:
    """Whether a Host header is one of ours; else a foreign name may have been pointed at this machine (DNS rebinding).

    An address is no name that could be pointed elsewhere, so with a token any is fine.
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower()
    return name in {one.lower() for one in access.hosts} or (access.token is not None and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_same_origin(origin: str, host: str) -> bool:
    """Whether the Origin of a page is the server that it calls; behind a proxy, only the page knows of https."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        return False
    default = ":443" if match[1].lower() == "https" else ":80"
    return match[2].lower().removesuffix(default) == host.lower().removesuffix(default)


def _needs_page_token(path: str) -> bool:
    """Whether only our pages may write there; /v1 and /api/v1 are for programs."""
    return path.startswith("/api/") and not path.startswith("/api/v1/")


def _has_token(scope: Scope, headers: Headers, access: Access) -> bool:
    cookies = cookie_parser(headers.get("cookie", ""))
    given = (_from_authorization(headers.get("authorization", "")), cookies.get(access.cookie, ""))
    return any(_is_equal(one, access.token or "") for one in given)


def _from_authorization(value: str) -> str:
    """The token of a header `Bearer TOKEN`, or the password of `Basic`, as some programs can only send that."""
    scheme, _, given = value.partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _is_equal(given: str, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _login(scope: Scope, access: Access) -> Response:
    """Let in whoever opens /?token=...: a cookie keeps the token, and the address bar does not."""
    given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
    if scope["path"] == "/" and scope["method"] == "GET" and _is_equal(given, access.token or ""):
        answer = RedirectResponse("/", 303)
        answer.set_cookie(access.cookie, given, max_age=COOKIE_SECONDS, httponly=True, samesite="strict")
        return answer
    line = "this server needs its token: open /?token=TOKEN once, or send the header Authorization: Bearer TOKEN"
    return _refuse(401, line, {"WWW-Authenticate": 'Bearer realm="mlcil"'})
