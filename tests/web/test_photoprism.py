"""Requests in the shape of PhotoPrism's internal/ai/vision: ApiRequest as JSON, with thumbnails as data URLs."""

import base64

import pytest

from mlcil.web.tagger_server import More, make_tagger_app

from .conftest import ACCESS, asked


@pytest.fixture(scope="module")
def client(tagger):
    with asked(make_tagger_app(tagger, ACCESS, More(photoprism=True))) as made:
        yield made


def request_of(*images: bytes) -> dict:
    """What NewApiRequestImages makes; its client adds the model's name."""
    urls = ["data:image/jpeg;base64," + base64.b64encode(one).decode() for one in images]
    identity = "3b1f6a54-9d6c-4b55-9c0f-8a4f6c9d1e20"
    return {"id": identity, "model": "mytagger", "suffix": "", "stream": False, "images": urls}


def test_labels_of_a_photo(client, tagger, digit_tables):
    file = next(
        digit_tables / f"{number}.png"
        for number in range(140, 200)
        if len(tagger.predict(digit_tables / f"{number}.png")[0].tags) == 2
    )
    answer = client.post("/api/v1/vision/labels", json=request_of(file.read_bytes()))
    assert answer.status_code == 200
    found = answer.json()
    assert (found["id"], found["code"]) == (request_of()["id"], 200)
    assert found["model"]["name"] == "digits"
    (expected,) = tagger.predict(file)
    labels = found["result"]["labels"]
    assert [one["name"] for one in labels] == list(expected.names)
    for one, tag in zip(labels, expected.tags, strict=True):
        assert set(one) == {"name", "source", "confidence", "topicality", "priority", "categories"}
        assert one["source"] == "image"
        assert one["confidence"] == pytest.approx(tag.probability, abs=1e-4)


def test_several_pictures_of_a_photo_have_each_label_once(client, tagger, digit_tables):
    images = [(digit_tables / f"{number}.png").read_bytes() for number in range(140, 150)]
    labels = client.post("/api/v1/vision/labels", json=request_of(*images)).json()["result"]["labels"]
    assert sorted(one["name"] for one in labels) == sorted(tagger.classes)
    each = [client.post("/api/v1/vision/labels", json=request_of(one)).json()["result"]["labels"] for one in images]
    best = {name: max(o["confidence"] for one in each for o in one if o["name"] == name) for name in tagger.classes}
    assert {one["name"]: one["confidence"] for one in labels} == best


@pytest.mark.parametrize(
    "image",
    [
        "https://photos.home/api/v1/dl/7c9e6679",
        "file:///etc/passwd",
        "data:image/jpeg,abc",
        "data:image/jpeg;base64,%%%",
        "",
    ],
)
def test_nothing_is_fetched(client, image):
    answer = client.post("/api/v1/vision/labels", json=request_of() | {"images": [image]})
    found = answer.json()
    assert (answer.status_code, found["code"], found["id"]) == (400, 400, request_of()["id"])
    assert found["error"]


def test_a_bad_photo(client):
    answer = client.post("/api/v1/vision/labels", json=request_of(b"a text"))
    assert (answer.status_code, answer.json()["code"]) == (415, 415)
    assert "not an image" in answer.json()["error"]


@pytest.mark.parametrize("body", [{}, {"images": []}, {"images": ["x"] * 33}, [], {"images": "x"}])
def test_other_bodies(client, body):
    assert client.post("/api/v1/vision/labels", json=body).status_code == 422


def test_only_where_it_is_wanted(tagger, picture):
    with asked(make_tagger_app(tagger, ACCESS)) as client:
        assert client.post("/api/v1/vision/labels", json=request_of(picture)).status_code == 404
        assert client.post("/predict", json={}).status_code == 404


def test_pages_of_others_cannot_ask(client, picture):
    headers = {"Origin": "http://evil.com"}
    assert client.post("/api/v1/vision/labels", json=request_of(picture), headers=headers).status_code == 403
