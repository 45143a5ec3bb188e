"""The interface of `mlcil teach` by plain requests: rows, marks, undo, pictures, saving, and names that are hostile."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager

import pytest
from PIL import Image

from mlcil.data.xmp import read_keywords
from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench
from mlcil.web.teach_server import make_teach_app

from .conftest import ACCESS, EVIL, asked

WRITE = {"X-Mlcil-Token": ACCESS.page_token}


@pytest.fixture(scope="session")
def truth(digit_tables) -> dict[str, set[str]]:
    with (digit_tables / "c.csv").open() as stream:
        return {row["path"]: set(filter(None, row["labels"].split(";"))) for row in csv.DictReader(stream)}


@contextmanager
def teaching(digit_tagger, photos, folder):
    bench = Workbench(Tagger.load(digit_tagger), [str(one) for one in photos], folder, "pictures")
    bench.indexer.wait()
    with asked(make_teach_app(bench, ACCESS)) as client:
        client.headers.update(WRITE)
        yield client


@pytest.fixture
def client(digit_tables, digit_tagger, truth, tmp_path):
    with teaching(digit_tagger, [digit_tables / name for name in truth], tmp_path / "teach") as made:
        yield made


def listed(client, **wanted):
    return client.get("/api/photos", params=wanted).json()


def by_name(client):
    return {one["name"]: one["id"] for one in listed(client, limit=500)["photos"]}


def marked(client, label, **said):
    answer = client.post("/api/mark", json={"label": label, **said})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_label_is_taught_by_marks(client, truth):
    ids = by_name(client)
    shown = [photo for name, photo in ids.items() if "digit 2" in truth[name]]
    nothing = client.get("/api/label", params={"name": "digit 2"}).json()
    assert nothing["rows"] == {"likely": [], "unsure": [], "surprising": []}
    assert nothing["advice"] == "Mark three to five photos that show it."
    view = marked(client, "digit 2", yes=shown[:3])
    assert view["is_new"]
    assert (view["yes"], view["no"]) == (3, 0)
    assert 0 < len(view["rows"]["likely"]) <= 12
    suggested = [one["id"] for row in ("likely", "unsure") for one in view["rows"][row]]
    assert len(set(suggested)) == len(suggested)
    assert not set(suggested) & set(shown[:3])
    wrong = [photo for photo in suggested if photo not in shown]
    view = marked(client, "digit 2", yes=[photo for photo in suggested if photo in shown], no=wrong)
    assert view["no"] == len(wrong)
    low, high = view["expected"]["precision"][1:]
    assert 0 <= low <= view["expected"]["precision"][0] <= high <= 1
    counts = dict(map(tuple, view["threshold"]["counts"]))
    assert len(counts) == 101
    assert counts[1.0] == 0
    assert listed(client, show="tagged", label="digit 2")["total"] == view["tagged"]
    state = client.get("/api/state").json()
    assert state["labels"][-1]["name"] == "digit 2"
    assert state["undo"].startswith("digit 2: ")


def test_undo_and_redo_and_two_windows(client, truth):
    photos = list(by_name(client).values())
    first = marked(client, "digit 3", yes=photos[:2])
    marked(client, "digit 3", no=photos[2:3])  # from another window
    assert client.get("/api/state").json()["sequence"] == first["sequence"] + 1
    undone = client.post("/api/undo", json={"label": "digit 3"}).json()
    assert (undone["undone"], undone["view"]["no"], undone["view"]["yes"]) == ("digit 3: no to 1", 0, 2)
    assert client.post("/api/redo", json={"label": None}).json()["state"]["labels"][-1]["no"] == 1

    def mark(photo):
        marked(client, "digit 3", yes=[photo])

    threads = [threading.Thread(target=mark, args=(photo,)) for photo in photos[10:22]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("/api/label", params={"name": "digit 3"}).json()["yes"] == 14


def test_pictures_and_one_photo_with_all_its_tags(client, truth):
    ids = by_name(client)
    photo = next(iter(ids.values()))
    marked(client, "digit 2", yes=[one for name, one in ids.items() if "digit 2" in truth[name]][:4])
    small = client.get(f"/thumb/{photo}")
    assert Image.open(io.BytesIO(small.content)).format == "JPEG"
    assert "immutable" in small.headers["cache-control"]
    assert Image.open(io.BytesIO(client.get(f"/photo/{photo}").content)).size == (32, 32)
    whole = client.get("/api/photo", params={"id": photo}).json()
    assert {one["label"] for one in whole["tags"]} == {"digit 0", "digit 1", "digit 2"}
    assert whole["tags"] == sorted(whole["tags"], key=lambda one: -one["score"])
    for label in ("digit 0", "digit 2"):
        evidence = client.get(f"/evidence/{photo}", params={"label": label})
        assert Image.open(io.BytesIO(evidence.content)).mode == "RGBA"
    assert client.get(f"/evidence/{photo}", params={"label": "unknown"}).status_code == 404
    assert client.get("/thumb/" + "0" * 32).status_code == 404


def test_lists(client, truth):
    ids = by_name(client)
    assert list(ids) == sorted(ids)
    photo = ids["150.png"]
    assert listed(client, like=photo)["photos"][0]["id"] == photo
    assert [one["name"] for one in listed(client, search="150")["photos"]] == ["150.png"]
    pages = [one["id"] for offset in (0, 25, 50) for one in listed(client, offset=offset, limit=25)["photos"]]
    assert pages == list(ids.values())
    tagged = {
        one["id"] for name in ("digit 0", "digit 1") for one in listed(client, show="tagged", label=name)["photos"]
    }
    untagged = {one["id"] for one in listed(client, show="untagged")["photos"]}
    assert not tagged & untagged
    assert tagged | untagged == set(ids.values())
    assert {one["id"] for one in listed(client, search="digit 0")["photos"]} >= {
        one["id"] for one in listed(client, show="tagged", label="digit 0")["photos"]
    }
    assert client.get("/api/photos", params={"show": "some"}).json()["detail"].startswith("got show='some'")


def test_thresholds_names_and_hostile_labels(client):
    ids = list(by_name(client).values())
    view = marked(client, EVIL, yes=ids[:3], no=ids[3:5])
    assert view["label"] == EVIL
    chosen = client.post("/api/threshold", json={"label": EVIL, "value": 0.25}).json()["threshold"]
    assert (chosen["value"], chosen["is_chosen"]) == (0.25, True)
    state = client.post("/api/rename", json={"label": EVIL, "to": "=1+1"}).json()
    assert state["labels"][-1]["name"] == "=1+1"
    assert client.post("/api/merge", json={"label": "=1+1", "into": "no"}).status_code == 400
    assert len(client.post("/api/delete", json={"label": "digit 0"}).json()["labels"]) == 2
    assert client.post("/api/mark", json={"label": "x", "yes": ids[:1], "no": ids[:1]}).status_code == 400
    assert client.post("/api/mark", json={"label": "x" * 500, "yes": ids[:1]}).status_code == 422
    assert client.post("/api/mark", json={"label": "x"}, headers={"X-Mlcil-Token": "wrong"}).status_code == 403
    assert EVIL not in client.get("/").text


def test_a_version_is_saved_and_exported(client, truth, digit_tables, digit_tagger):
    ids = by_name(client)
    shown = [photo for name, photo in ids.items() if "digit 3" in truth[name]]
    marked(client, "digit 3", yes=shown[:5], no=[one for one in ids.values() if one not in shown][:5])
    saved = client.post("/api/save", json={"name": None}).json()
    assert saved["labels"] == 3
    assert saved["state"]["unsaved"] == 0
    assert saved["name"] in [one["name"] for one in saved["state"]["versions"]]
    made = Tagger.load(digit_tagger.with_name(saved["name"]))
    assert "digit 3" in (digit_tagger.with_name(saved["name"]) / "README.md").read_text()
    rows = list(csv.DictReader(io.StringIO(client.get("/export/tags.csv").text)))
    found = {row["image"] for row in rows if row["tag"] == "digit 3"}
    expected = {one.image for one in made.predict([digit_tables / name for name in ids]) if "digit 3" in one.names}
    said = {str(digit_tables / name): ids[name] in shown[:5] for name in ids if ids[name] in shown[:5]}
    assert len((found ^ expected) - set(said)) <= 1
    lines = client.post("/api/export", json={"kind": "xmp"}).json()["lines"]
    try:
        assert lines == [f"{len(ids)} sidecars changed"] or lines[0].endswith("changed")
        assert "digit 3" in read_keywords(next(iter(digit_tables.glob(f"{min(found).rpartition('/')[2]}.xmp"))))
    finally:
        for file in digit_tables.glob("*.xmp"):
            file.unlink()
    assert client.post("/api/export", json={"kind": "onnx"}).status_code == 400


def _start(digit_tagger, digit_tables, work):
    command = [sys.executable, "-m", "mlcil", "teach", str(digit_tagger), str(digit_tables), "--work", str(work)]
    process = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=os.environ)
    for line in process.stdout:
        if line.startswith("open "):
            return process, line.split()[1].rstrip("/")
    raise AssertionError(process.wait())


def _ask(address, path, body=None, token=""):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"X-Mlcil-Token": token, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_no_mark_is_lost_when_the_server_is_killed(digit_tagger, digit_tables, tmp_path):
    answered, draw = set(), random.Random(0)
    for _ in range(3):
        process, address = _start(digit_tagger, digit_tables, tmp_path / "work")
        try:
            token = _ask(address, "/").partition('name="mlcil-token" content="')[2].partition('"')[0]
            photos = [one["id"] for one in json.loads(_ask(address, "/api/photos?limit=500"))["photos"]]
            while len(photos) < 20:
                photos = [one["id"] for one in json.loads(_ask(address, "/api/photos?limit=500"))["photos"]]
            kept = {
                one["id"] for one in json.loads(_ask(address, "/api/photos?show=marked&label=l&limit=500"))["photos"]
            }
            assert answered <= kept
            timer = threading.Timer(draw.uniform(0.1, 0.8), process.send_signal, [signal.SIGKILL])
            timer.start()
            for photo in draw.sample(photos, len(photos)):
                try:
                    _ask(address, "/api/mark", {"label": "l", "yes": [photo]}, token)
                except OSError:
                    break
                answered.add(photo)
            timer.join()
        finally:
            process.kill()
            process.communicate()
    assert answered
