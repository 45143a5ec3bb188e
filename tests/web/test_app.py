import asyncio
import json

import pytest
from fastapi import APIRouter, HTTPException

from mlcil.core.errors import UserError
from mlcil.web.app import HEADERS, Busy, make_app
from mlcil.web.page_files import PAGES

from .conftest import ACCESS, asked


@pytest.fixture
def router() -> APIRouter:
    made = APIRouter()

    @made.get("/fail/{how}")
    def fail(how: str, number: int = 0) -> None:
        raise {"user": UserError("x is wrong"), "busy": Busy("full", 3), "bug": KeyError("secret")}[how]

    @made.get("/forbidden")
    def forbidden() -> None:
        raise HTTPException(418, "no")

    return made


@pytest.fixture
def client(router):
    with asked(make_app("t", ACCESS, [router], "predict.html")) as made:
        yield made


def test_errors_are_one_line(client):
    assert (client.get("/fail/user").status_code, client.get("/fail/user").json()) == (400, {"detail": "x is wrong"})
    busy = client.get("/fail/busy")
    assert (busy.status_code, busy.json(), busy.headers["Retry-After"]) == (503, {"detail": "full"}, "3")
    assert client.get("/forbidden").json() == {"detail": "no"}
    wrong = client.get("/fail/user", params={"number": "many"})
    assert wrong.status_code == 422
    assert isinstance(wrong.json()["detail"], str)
    assert "number" in wrong.json()["detail"]


def test_a_query_may_hold_any_bytes(router):
    """A server in front may pass on what no client library sends."""
    scope = {"type": "http", "method": "GET", "path": "/forbidden/", "query_string": b"\xed\xa0\x80", "root_path": ""}
    scope |= {"headers": [(b"host", b"127.0.0.1:8000")], "scheme": "http", "server": ("127.0.0.1", 8000)}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(make_app("t", ACCESS, [router], "predict.html")(scope, receive, send))
    assert sent[0]["status"] == 404
    assert b"".join(one.get("body", b"") for one in sent[1:]) == b'{"detail":"Not Found"}'


def test_a_bug_tells_nothing(client):
    answer = client.get("/fail/bug")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_home_has_the_page_token(router, monkeypatch, tmp_path):
    (tmp_path / "home.html").write_text('<meta content="{{token}}">')
    monkeypatch.setattr("mlcil.web.page_files.PAGES", tmp_path)
    access = type(ACCESS)(ACCESS.hosts, 1, None, '"><script>')
    with asked(make_app("t", access, [], "home.html")) as client:
        answer = client.get("/")
        assert answer.text == '<meta content="&quot;&gt;&lt;script&gt;">'
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("name", "kind"), [("predict.html", "text/html"), ("look.css", "text/css"), ("predict.js", "text/javascript")]
)
def test_pages_have_their_types(client, name, kind):
    answer = client.get(f"/pages/{name}")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith(kind)


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "", "no.css", "..\\app.py", "/etc/passwd", "a%00.css"]
)
def test_only_files_of_the_folder(client, name):
    answer = client.get(f"/pages/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_pages_need_nothing_from_elsewhere():
    for file in [*PAGES.glob("predict*"), *PAGES.glob("api-docs*"), PAGES / "look.css"]:
        text = file.read_text()
        assert "http://" not in text, file
        assert "https://" not in text, file
        assert "innerHTML" not in text, file


def test_description_works_offline(client):
    assert client.get("/docs").status_code == 404
    assert client.get("/redoc").status_code == 404
    assert "/pages/api-docs.js" in client.get("/api-docs").text
    assert "/fail/{how}" in json.loads(client.get("/openapi.json").text)["paths"]


def test_alive_ready_and_closed(router):
    state = {"ready": False, "closed": 0}

    def close() -> None:
        state["closed"] += 1

    with asked(make_app("t", ACCESS, [], "predict.html", on_close=close, is_ready=lambda: state["ready"])) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        state["ready"] = True
        assert client.get("/readyz").status_code == 200
        assert state["closed"] == 0
    assert state["closed"] == 1
