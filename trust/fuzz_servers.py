"""Readers that take requests: the servers of `mlcil serve` and `mlcil teach`, asked without a network."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuzz_child import Reader, Trial, Wrong, line_problem
from fuzz_saved import tagger_folder

from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench
from mlcil.web.access import LOOPBACK, Access
from mlcil.web.labelling_config import choices_of
from mlcil.web.tagger_server import More, make_tagger_app
from mlcil.web.teach_server import make_teach_app

ACCESS = Access(LOOPBACK, 8000, None, "page-token")
LABELLING = '<View><Image name="image" value="$photo"/><Choices name="tags" toName="image" choice="multiple">\
<Choice value="red"/><Choice alias="green" value="Green"/></Choices></View>'
FORM = b"multipart/form-data; boundary=cut"
_LOOP = asyncio.new_event_loop()


def ask(app: Any, method: str, path: bytes, body: bytes = b"", kind: bytes = b"application/json") -> tuple[int, bytes]:
    """Send a request straight to an app; returns status and body."""
    plain, _, query = path.partition(b"?")
    headers = [(b"host", b"127.0.0.1:8000"), (b"x-mlcil-token", b"page-token"), (b"content-type", kind)]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": plain.decode("latin-1"),
        "raw_path": plain,
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "root_path": "",
    }
    sent: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(3600)  # the client stays
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    _LOOP.run_until_complete(app(scope, receive, send))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


def check(status: int, body: bytes) -> None:
    """Make sure that an answer is a result or a refusal in one line."""
    if status >= 500:
        raise Wrong(f"status {status}: {body[:200]!r}")
    if status >= 400:
        detail = json.loads(body).get("detail")
        if not isinstance(detail, str) or (problem := line_problem(detail)):
            raise Wrong(f"status {status}: {problem if isinstance(detail, str) else body[:200]!r}")


def _serve(method: str, path: bytes, seeds: Callable[[bytes], Sequence[bytes]], kind: bytes) -> Callable[[Path], Trial]:
    """A trial of one route of `mlcil serve`; its seeds are made of a picture."""

    def make(folder: Path) -> Trial:
        tagger = Tagger.load(tagger_folder(folder.parent))
        photos = folder.parent / "photos"
        more = More(photoprism=True, label_studio=True, data_root=photos)
        (folder.parent / "secret.png").write_bytes((photos / "00.png").read_bytes())
        app = make_tagger_app(tagger, ACCESS, more)
        picture = (photos / "00.png").read_bytes()
        return Trial(seeds(picture), lambda data: check(*ask(app, method, path, data, kind)))

    return make


def _form(picture: bytes) -> list[bytes]:
    head = b'--cut\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\nContent-Type: image/png\r\n\r\n'
    return [head % b"a.png" + picture + b"\r\n" + head % b"b.png" + picture + b"\r\n--cut--\r\n"]


def _photoprism(picture: bytes) -> list[bytes]:
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    asked = {"id": "abc", "model": "labels", "images": [url, url]}
    other = {"id": "é", "model": "labels", "images": ["data:image/png;base64,é"]}
    return [json.dumps(asked).encode(), json.dumps(other, ensure_ascii=False).encode()]


def _label_studio(_: bytes) -> list[bytes]:
    places = (
        "/data/local-files/?d=00.png",
        "/data/local-files/?d=../secret.png",
        "/data/upload/1.png",
        "file:///secret",
    )
    tasks = [{"id": number, "data": {"photo": place}} for number, place in enumerate(places)]
    return [json.dumps({"tasks": tasks, "label_config": LABELLING, "project": "1", "params": {}}).encode()]


def _labelling(folder: Path) -> Trial:
    return Trial([LABELLING.encode()], lambda data: _void(choices_of(data.decode(errors="replace"))))


def _void(_: object) -> None:
    pass


def _queries(folder: Path) -> Trial:
    app = make_tagger_app(Tagger.load(tagger_folder(folder.parent)), ACCESS)
    picture = (folder.parent / "photos" / "00.png").read_bytes()
    seeds = [b"top=1&threshold=0.5&label=red&evidence=true", b"top=2", b"label=red&label=green"]
    return Trial(seeds, lambda data: check(*ask(app, "POST", b"/v1/predict?" + data, picture, b"image/png")))


def _teach(folder: Path) -> Trial:
    """The first line of an input is the method and the route, the rest is the body."""
    tagger = Tagger.load(tagger_folder(folder.parent))
    photos = sorted(map(str, (folder.parent / "photos").glob("*.png")))[:12]
    bench = Workbench(tagger, photos, folder / "tagger.teach", "photos")
    bench.indexer.wait()
    app = make_teach_app(bench, ACCESS)
    ids = [bench.photos.id(row) for row in range(4)]
    posts: dict[str, dict[str, Any]] = {
        "mark": {"label": "fox", "yes": ids[:2], "no": ids[2:3], "unknown": ids[3:]},
        "undo": {"label": "fox"},
        "redo": {"label": None},
        "threshold": {"label": "red", "value": 0.25},
        "rename": {"label": "red", "to": "crimson"},
        "merge": {"label": "fox", "into": "green"},
        "delete": {"label": "fox"},
        "export": {"kind": "xmp", "version": None},
    }
    gets = ["api/state", "api/label?name=red", "api/photos?show=tagged&label=red&search=0&offset=1&limit=5"]
    gets += [f"api/photos?like={ids[0]}", f"api/photo?id={ids[0]}", f"thumb/{ids[0]}", f"photo/{ids[1]}"]
    gets += [f"evidence/{ids[0]}?label=red", "export/tags.csv", "static/../secret.png", "healthz", "openapi.json"]
    seeds = [f"POST /api/{name}\n{json.dumps(body)}".encode() for name, body in posts.items()]
    seeds += [f"GET /{one}\n".encode() for one in gets]

    def call(data: bytes) -> None:
        head, _, body = data.partition(b"\n")
        method, _, path = head.partition(b" ")
        check(*ask(app, method.decode("latin-1") or "GET", path, body))

    return Trial(seeds, call)


SERVERS = (
    Reader(
        "serve: one image", "bytes", 200, _serve("POST", b"/v1/predict?evidence=true", lambda one: [one], b"image/png")
    ),
    Reader("serve: a form", "bytes", 250, _serve("POST", b"/v1/predict", _form, FORM)),
    Reader("serve: options", "text", 150, _queries),
    Reader(
        "serve: PhotoPrism", "json", 200, _serve("POST", b"/api/v1/vision/labels", _photoprism, b"application/json")
    ),
    Reader("serve: Label Studio", "json", 250, _serve("POST", b"/predict", _label_studio, b"application/json")),
    Reader("labelling configurations", "xml", 250, _labelling),
    Reader("teach: requests", "request", 500, _teach),
)
