import asyncio
import base64
import io
import json
import struct
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest
from PIL import Image

from mlcil.serving.predicting import score_photos
from mlcil.web import engine
from mlcil.web.tagger_server import make_tagger_app

from .conftest import ACCESS, EVIL, asked, served


def png_of(width: int, height: int) -> bytes:
    """A PNG of one colour with its true number of pixels, which takes next to no room."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)  # one bit per pixel
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def as_format(picture: bytes, name: str) -> bytes:
    stream = io.BytesIO()
    Image.open(io.BytesIO(picture)).save(stream, name)
    return stream.getvalue()


def test_one_image_as_the_body(client, tagger, picture, digit_tables):
    answer = client.post("/v1/predict", params={"top": 2}, content=picture)
    assert answer.status_code == 200
    (image,) = answer.json()["images"]
    assert (image["name"], image["width"], image["height"]) == ("image", 32, 32)
    (scores,) = score_photos(tagger, [str(digit_tables / "150.png")])
    expected = dict(zip(tagger.classes, scores.tolist(), strict=True))
    assert {tag["label"]: tag["score"] for tag in image["tags"]} == expected  # to the bit
    for tag in image["tags"]:
        assert tag["present"] == (tag["score"] > tag["threshold"])
    assert [tag["probability"] for tag in image["tags"]] == sorted(
        (t["probability"] for t in image["tags"]), reverse=True
    )


def test_scores_are_those_of_predict_to_the_bit(client, tagger, digit_tables):
    files = [digit_tables / f"{number}.png" for number in range(140, 156)]
    form = [("files", (file.name, file.read_bytes())) for file in files]
    images = client.post("/v1/predict", params={"top": 2}, files=form).json()["images"]
    predicted = tagger.predict(files, top=2)
    assert [image["name"] for image in images] == [file.name for file in files]
    for image, one in zip(images, predicted, strict=True):
        found = [(tag["label"], tag["score"], tag["probability"], tag["threshold"]) for tag in image["tags"]]
        assert found == [tuple(tag) for tag in one.tags]


def test_thresholds_and_labels(client, tagger, picture):
    def labels(**query: object) -> list[str]:
        return [
            tag["label"]
            for tag in client.post("/v1/predict", params=query, content=picture).json()["images"][0]["tags"]
        ]

    assert labels(threshold=1) == []
    assert sorted(labels(threshold=0)) == sorted(tagger.classes)
    assert labels(label=tagger.classes[1]) == [tagger.classes[1]]
    assert len(labels(top=1)) == 1
    wrong = client.post("/v1/predict", params={"label": "digit 9"}, content=picture)
    assert (wrong.status_code, "unknown label 'digit 9'" in wrong.json()["detail"]) == (400, True)
    for query in ({"top": 0}, {"threshold": 2}, {"threshold": "nan"}, {"evidence": "perhaps"}):
        assert client.post("/v1/predict", params=query, content=picture).status_code == 422


def test_evidence_is_a_picture_in_the_photos_proportions(client, tagger, picture):
    wide = as_format(picture, "PNG")
    stream = io.BytesIO()
    Image.open(io.BytesIO(wide)).resize((120, 40)).save(stream, "PNG")
    (image,) = client.post("/v1/predict", params={"top": 2, "evidence": True}, content=stream.getvalue()).json()[
        "images"
    ]
    assert set(image["evidence"]) <= set(tagger.classes)
    assert image["evidence"]
    for url in image["evidence"].values():
        drawn = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
        assert (drawn.mode, drawn.size) == ("RGBA", (480, 160))
        assert np.asarray(drawn)[..., 3].min() < 100 < np.asarray(drawn)[..., 3].max()


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "MPO"])
def test_formats_that_are_read(client, picture, name):
    assert client.post("/v1/predict", content=as_format(picture, name)).status_code == 200


def test_heic_is_read(client):
    heif = pytest.importorskip("pillow_heif")
    stream = io.BytesIO()
    heif.from_pillow(Image.new("RGB", (64, 64), "red")).save(stream)
    assert client.post("/v1/predict", content=stream.getvalue()).status_code == 200


@pytest.mark.parametrize("name", ["PPM", "TGA", "ICO", "PDF", "EPS"])
def test_formats_that_are_not_read(client, picture, name):
    content = as_format(picture, name)
    assert client.post("/v1/predict", content=content).status_code == 415


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (b"", 400, "empty"),
        (b"This is a text.", 415, "not an image of an allowed format"),
        (png_of(8000, 7500), 413, "60.0 megapixels, more than the limit of 50"),
        (b"\xff\xd8\xff\xe0 cut short", 400, "truncated"),
    ],
)
def test_bad_bodies(client, content, status, reason):
    began = time.monotonic()
    answer = client.post("/v1/predict", content=content, headers={"Content-Type": "image/jpeg"})
    assert answer.status_code == status
    assert reason in answer.json()["detail"]
    form = client.post("/v1/predict", files={"files": ("photo.jpg", content, "image/jpeg")})
    assert form.status_code == 200
    assert reason in form.json()["images"][0]["error"]
    assert time.monotonic() - began < 5


def test_one_bad_file_harms_no_other(client, picture):
    form = [("a", ("a.png", picture)), ("b", ("photo.jpg", b"a text")), ("c", ("c.png", picture))]
    first, bad, last = client.post("/v1/predict", files=form).json()["images"]
    assert first["tags"] == last["tags"]
    assert set(bad) == {"name", "error"}
    assert bad["name"] == "photo.jpg"


def test_forms_that_are_none(client, picture):
    assert "no file" in client.post("/v1/predict", files={"x": (None, "text")}).json()["detail"]
    assert client.post("/v1/predict", content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 400
    many = client.post("/v1/predict", files=[("f", ("x.png", picture))] * 33)
    assert (many.status_code, "Too many files" in many.json()["detail"]) == (400, True)


def test_bodies_that_are_too_large(tagger, picture):
    with asked(make_tagger_app(tagger, ACCESS, max_body=10_000)) as client:
        assert client.post("/v1/predict", content=picture).status_code == 200
        for body in (b"x" * 20_000, (b"x" * 5_000 for _ in range(4))):
            assert client.post("/v1/predict", content=body).status_code == 413
        assert client.post("/v1/predict", files={"f": ("x.png", b"x" * 20_000)}).status_code == 413
        boundary = {"Content-Type": "multipart/form-data; boundary=b"}
        assert (
            client.post("/v1/predict", content=(b"--b\r\n" * 1000 for _ in range(4)), headers=boundary).status_code
            == 413
        )


def test_nothing_is_written_to_disk(client, monkeypatch):
    """A photo of three megabytes, which the usual parser of forms would write to a temporary file."""
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    assert len(stream.getvalue()) > 2_500_000

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp", "mkdtemp"):
        monkeypatch.setattr(tempfile, name, fail)
    monkeypatch.setattr("builtins.open", fail)
    form = client.post("/v1/predict", params={"top": 1}, files={"f": ("x.png", stream.getvalue())})
    raw = client.post("/v1/predict", params={"top": 1}, content=stream.getvalue())
    assert (form.status_code, raw.status_code) == (200, 200)
    assert form.json()["images"][0]["tags"] == raw.json()["images"][0]["tags"]


def test_what_the_tagger_is(client, tagger, digit_tagger, digit_tables):
    tags = client.get("/v1/tags").json()["tags"]
    assert [tag["label"] for tag in tags] == list(tagger.classes)
    assert [tag["threshold"] for tag in tags] == tagger.thresholds.tolist()
    model = client.get("/v1/model").json()
    assert (model["name"], model["method"], model["backbone"]) == ("digits", "analytic", "small_conv")
    assert (model["labels"], model["image_size"]) == (list(tagger.classes), 32)
    for text in (client.get("/v1/tags").text, client.get("/v1/model").text):
        assert str(digit_tagger.parent) not in text
        assert str(digit_tables) not in text


def test_a_label_is_only_ever_text(evil_tagger, picture):
    with asked(make_tagger_app(evil_tagger, ACCESS)) as client:
        answer = client.post("/v1/predict", params={"top": 2}, files={"f": (EVIL, picture)})
        assert answer.headers["Content-Type"] == "application/json"
        (image,) = answer.json()["images"]
        assert EVIL in [tag["label"] for tag in image["tags"]]
        assert image["name"] == EVIL
        assert EVIL in client.get("/v1/model").json()["labels"]
        assert EVIL not in client.get("/").text


def test_fifty_at_once(tagger, digit_tables):
    files = [(digit_tables / f"{number}.png").read_bytes() for number in range(140, 190)]
    with served(make_tagger_app(tagger, ACCESS)) as port, ThreadPoolExecutor(50) as pool:
        alone = [post(port, content) for content in files[:5]]
        together = list(pool.map(lambda content: post(port, content), files))
    assert {status for status, _ in together} == {200}
    assert together[:5] == alone


def post(port: int, content: bytes) -> tuple[int, dict]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/predict?top=2", content)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


@pytest.fixture
def gate(monkeypatch):
    """Decoding waits until it is opened."""
    made, original = threading.Event(), engine.decoded
    monkeypatch.setattr(engine, "decoded", lambda *given: (made.wait(20), original(*given))[1])
    return made


def test_a_full_queue_says_when_to_come_back(tagger, picture, gate):
    with asked(make_tagger_app(tagger, ACCESS, most=2)) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/v1/predict", content=picture) for _ in range(2)]
        while "mlcil_queue_images 2" not in client.get("/metrics").text:
            time.sleep(0.01)
        answer = client.post("/v1/predict", content=picture)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert client.get("/readyz").status_code == 200
        gate.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert client.post("/v1/predict", content=picture).status_code == 200


def test_work_of_a_client_that_left_is_cancelled(tagger, picture, gate):
    with served(make_tagger_app(tagger, ACCESS)) as port:

        async def leave() -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(picture)}\r\n\r\n"
            writer.write(head.encode() + picture)
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.close()

        async def all_leave() -> None:
            await asyncio.gather(*(leave() for _ in range(6)))

        asyncio.run(all_leave())
        time.sleep(0.2)
        gate.set()
        while "mlcil_queue_images 0" not in (figures := metrics_of(port)):
            time.sleep(0.01)
        assert "mlcil_images_total 0" in figures  # two had begun to be decoded, none was computed


def metrics_of(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_ready_as_long_as_the_engine_runs(tagger):
    app = make_tagger_app(tagger, ACCESS)
    with asked(app) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
