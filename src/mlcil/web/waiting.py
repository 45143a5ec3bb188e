"""Waiting for results as long as somebody waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request

from ..data.decoding import BadImage

T = TypeVar("T")


async def finished(request: Request, futures: Sequence[Future[T]]) -> list[T | BadImage]:
    """The results of images, each what was found or why it cannot be read.

    The body of the request must have been read. If the client goes away, what is not done yet is cancelled.
    """
    if not futures:
        return []
    everything = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    departure = asyncio.ensure_future(_departure(request))
    try:
        both: set[asyncio.Future[Any]] = {everything, departure}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            raise HTTPException(499, "the client has gone")  # which nobody reads
        return [_readable(one) for one in everything.result()]
    finally:
        departure.cancel()
        for one in futures:
            one.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _readable(outcome: T | BaseException) -> T | BadImage:
    if isinstance(outcome, BaseException) and not isinstance(outcome, BadImage):
        raise outcome
    return outcome
