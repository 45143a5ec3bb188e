import asyncio
import http.client
import socket
import time

import pytest
from fastapi import APIRouter
from starlette.requests import Request

from mlcil.web import bodies
from mlcil.web.app import make_app

from .conftest import ACCESS, asked, served

MOST = 1000


@pytest.fixture
def app():
    router = APIRouter()

    @router.post("/v1/size")
    async def size(request: Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    return make_app("t", ACCESS, [router], "predict.html", max_body=MOST)


def in_pieces(size: int):
    """A body whose length nobody says beforehand."""
    for start in range(0, size, 300):
        yield b"x" * min(300, size - start)


def in_pieces_slowly(size: int):
    """The same from a client that is still sending when the server knows that the body is too large."""
    for piece in in_pieces(size):
        time.sleep(0.02)
        yield piece


def test_sizes_with_and_without_a_length(app):
    with asked(app) as client:
        for make in (lambda size: b"x" * size, in_pieces):
            assert client.post("/v1/size", content=make(MOST)).json() == {"size": MOST}
            answer = client.post("/v1/size", content=make(MOST + 1))
            assert answer.status_code == 413
            assert "too large" in answer.json()["detail"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("length", ["9999999999999999999", "1000000000"])
def test_a_length_is_believed_before_anything_is_read(app, monkeypatch, length):
    monkeypatch.setattr(bodies, "LISTEN_SECONDS", 0.2)
    with served(app) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(f"POST /v1/size HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\nabc".encode())
        assert b" 413 " in raw.recv(2000).split(b"\r\n")[0]


def test_a_large_body_over_the_network_is_answered(app):
    with served(app) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        pieces = in_pieces_slowly(3 * MOST - 300)
        connection.request("POST", "/v1/size", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        connection.request("POST", "/v1/size", b"x" * (MOST + 1))
        assert connection.getresponse().status == 413
        connection.close()
        connection.request("POST", "/v1/size", b"x")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_slow_body_is_given_up(app, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    with served(app) as port, socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(b"POST /v1/size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        assert b" 408 " in raw.recv(2000).split(b"\r\n")[0]


def test_all_bodies_together_are_limited():
    """Five requests that each hold nearly as much as one may."""
    limit = bodies.BodyLimit(held, MOST)

    async def ask() -> list[object]:
        return await asyncio.gather(
            *(limit({"type": "http", "headers": []}, sent, sent) for _ in range(5)), return_exceptions=True
        )

    async def sent(message: object = None) -> dict[str, object]:
        return {"type": "http.request", "body": b"x" * MOST, "more_body": False}

    outcomes = asyncio.run(ask())
    assert [type(one).__name__ for one in outcomes] == ["NoneType"] * bodies.TOGETHER + ["Busy"]
    assert limit.held == 0


async def held(scope, receive, send) -> None:
    await receive()
    await asyncio.sleep(0.01)
