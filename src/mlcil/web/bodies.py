"""Request bodies: no larger, no slower and no more of them at once than the machine can hold."""

from __future__ import annotations

import asyncio
import time

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import Busy

MAX_BODY = 64 * 2**20  # bytes
TOGETHER = 4  # so many of the largest bodies may be held at once
BODY_SECONDS = 120.0  # in which a body must have arrived
LISTEN_SECONDS = 5.0  # to a body that is too large, so that the client gets to read why it was refused


class BodyLimit:
    """Answers 413 to a body that is too large, whether it says so beforehand or not, and 408 to one too slow."""

    def __init__(self, app: ASGIApp, most: int = MAX_BODY) -> None:
        self.app, self.most = app, most
        self.held = 0  # bytes of all bodies whose requests are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body counted, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self.most:
            return await self._refuse(scope, receive, send)
        body = _Body(self, receive)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.held -= body.size

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "expect" not in Headers(scope=scope):  # else the client waits for our word before it sends anything
            await _listen(receive, 2 * self.most)
        answer = JSONResponse({"detail": self.line}, 413, {"Connection": "close"})
        await answer(scope, receive, send)

    @property
    def line(self) -> str:
        """What is said about a body that is too large."""
        return f"the request is too large: at most {self.most / 2**20:g} MB are allowed"


class _Body:
    """One body while it arrives."""

    def __init__(self, limit: BodyLimit, receive: Receive) -> None:
        self.limit, self.original = limit, receive
        self.size, self.is_whole = 0, False
        self.deadline = time.monotonic() + BODY_SECONDS

    async def receive(self) -> Message:
        """The next message."""
        if self.is_whole:
            return await self.original()  # the client's departure, whenever that is
        try:
            message = await asyncio.wait_for(self.original(), max(0.0, self.deadline - time.monotonic()))
        except TimeoutError:
            line = f"the request did not arrive within {BODY_SECONDS:g} seconds"
            raise HTTPException(408, line, {"Connection": "close"}) from None
        if message["type"] == "http.request":
            self.is_whole = not message.get("more_body", False)
            await self._count(len(message.get("body", b"")))
        return message

    async def _count(self, size: int) -> None:
        self.size += size
        self.limit.held += size
        if self.size > self.limit.most:
            if not self.is_whole:
                await _listen(self.original, 2 * self.limit.most)
            raise HTTPException(413, self.limit.line, {"Connection": "close"})
        if self.limit.held > TOGETHER * self.limit.most:
            raise Busy("the server holds as many uploads as it can; try again soon")


async def _listen(receive: Receive, most: int) -> None:
    """Take in a body without keeping it, for a while."""
    heard, deadline = 0, time.monotonic() + LISTEN_SECONDS
    while heard < most:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            return
        heard += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
