import base64

import pytest
from fastapi import APIRouter

from mlcil.web.access import LOOPBACK, Access
from mlcil.web.app import HEADERS, make_app

from .conftest import ACCESS, asked

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def router() -> APIRouter:
    made = APIRouter()

    @made.post("/api/mark")
    @made.post("/api/v1/vision/labels")
    @made.post("/v1/predict")
    def write() -> dict[str, bool]:
        return {"done": True}

    @made.get("/api/state")
    def read() -> dict[str, bool]:
        return {"done": True}

    return made


@pytest.fixture
def client(router):
    with asked(make_app("t", ACCESS, [router], "predict.html")) as made:
        yield made


@pytest.fixture
def guarded(router):
    access = Access((*LOOPBACK, "photos.home"), 8000, TOKEN, "page-token")
    with asked(make_app("t", access, [router], "predict.html")) as made:
        yield made


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:8000", "127.0.0.1:8000"])
def test_own_hosts_whatever_the_port(client, host):
    assert client.get("/api/state", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:8000", "127.0.0.1.evil.com", "localhost@evil.com", "127.0.0.1:x", "", "192.168.0.9"]
)
def test_foreign_hosts_are_refused(client, host):
    """As by DNS rebinding, where a foreign name points at this machine."""
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 421
    assert "page-token" not in answer.text


@pytest.mark.parametrize("path", ["/v1/predict", "/api/v1/vision/labels"])
def test_programs_need_no_page_token_on_loopback(client, path):
    assert client.post(path).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.com", "null", "http://127.0.0.1:9000", "http://127.0.0.1", "https://localhost:8000", "x"]
)
@pytest.mark.parametrize("path", ["/v1/predict", "/api/v1/vision/labels", "/api/mark"])
def test_pages_of_others_cannot_write(client, path, origin):
    headers = {"Origin": origin, "X-Mlcil-Token": "page-token"}
    assert client.post(path, headers=headers).status_code == 403


def test_own_pages_can_write(client):
    headers = {"Origin": "http://127.0.0.1:8000", "X-Mlcil-Token": "page-token"}
    assert client.post("/api/mark", headers=headers).status_code == 200
    assert client.post("/v1/predict", headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


def test_default_ports_belong_to_an_origin(client):
    assert client.post("/v1/predict", headers={"Host": "localhost", "Origin": "http://localhost"}).status_code == 200
    assert (
        client.post("/v1/predict", headers={"Host": "localhost:443", "Origin": "https://localhost"}).status_code == 200
    )


@pytest.mark.parametrize("token", [None, "", "page-toke", "page-token2", "pagé"])
def test_writes_of_pages_need_their_token(client, token):
    headers = {} if token is None else {"X-Mlcil-Token": token.encode()}
    answer = client.post("/api/mark", headers=headers)
    assert answer.status_code == 403
    assert "reload" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/", "/api/state", "/healthz", "/metrics", "/pages/look.css", "/openapi.json", "/no"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", f"Digest {TOKEN}", "Basic %%", "Basic"])
def test_every_request_needs_the_token(guarded, path, given):
    answer = guarded.get(path, headers={} if given is None else {"Authorization": given})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_token_in_a_header(guarded):
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    for given in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
        assert guarded.get("/api/state", headers={"Authorization": given}).status_code == 200


def test_token_by_visiting(guarded):
    answer = guarded.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"mlcil-token-8000={TOKEN};")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert guarded.get("/api/state").status_code == 200  # the client keeps cookies
    assert guarded.post("/api/mark").status_code == 403  # and still needs the page token


def test_a_wrong_token_sets_no_cookie(guarded):
    answer = guarded.get("/", params={"token": "wrong"}, follow_redirects=False)
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers


def test_with_a_token_any_address_but_not_any_name(guarded):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for host, status in (("192.168.0.9:8000", 200), ("photos.home", 200), ("evil.com", 421)):
        assert guarded.get("/api/state", headers=headers | {"Host": host}).status_code == status


def test_headers_stand_on_every_answer(client):
    for path, host in (("/", "localhost"), ("/api/state", "localhost"), ("/no", "localhost"), ("/", "evil.com")):
        answer = client.get(path, headers={"Host": host})
        for name in HEADERS:
            assert name in answer.headers
        assert "Access-Control-Allow-Origin" not in answer.headers
