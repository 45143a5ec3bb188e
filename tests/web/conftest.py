"""Servers of the tagger of tiny digits, asked without a network or over a real one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from mlcil.serving.tagger import Tagger
from mlcil.web.access import LOOPBACK, Access
from mlcil.web.running import listen, make_server
from mlcil.web.tagger_server import make_tagger_app

from ..serving.conftest import digit_tables, digit_tagger, own_cache

__all__ = ["digit_tables", "digit_tagger", "own_cache"]

ACCESS = Access(LOOPBACK, 8000, None, "page-token")
EVIL = "<img src=x onerror=alert(1)>"  # a label that must never become a part of a page


@pytest.fixture(scope="session")
def tagger(digit_tagger) -> Tagger:
    return Tagger.load(digit_tagger)


@pytest.fixture(scope="session")
def evil_tagger(tagger) -> Tagger:
    return replace(tagger, labels=(replace(tagger.labels[0], name=EVIL), tagger.labels[1]))


@pytest.fixture(scope="session")
def picture(digit_tables) -> bytes:
    return (digit_tables / "150.png").read_bytes()


@contextmanager
def asked(app) -> Iterator[TestClient]:
    """A client of an app that is started and stopped."""
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def client(tagger) -> Iterator[TestClient]:
    with asked(make_tagger_app(tagger, ACCESS)) as made:
        yield made


@contextmanager
def served(app) -> Iterator[int]:
    """The port of an app that is served over the network of this machine."""
    listening = listen("127.0.0.1", 0)
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
