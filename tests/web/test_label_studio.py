"""Requests in the shape that Label Studio's ml/api_connector.py sends."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.web import label_studio_images
from mlcil.web.label_studio import certainty
from mlcil.web.label_studio_images import Opener
from mlcil.web.labelling_config import choices_of
from mlcil.web.tagger_server import More, make_tagger_app

from .conftest import ACCESS, asked

CONFIG = """<View>
  <!-- what is on it? -->
  <Image name="image" value="$image"/>
  <Choices name="tags" toName="image" choice="multiple" showInLine="true">
    <Choice value="digit 0"/>
    <Choice value="Digit 1"/>
    <Choice value="digit 9"/>
  </Choices>
</View>"""


def request_of(*places: str, config: str = CONFIG) -> dict:
    """What MLApi.make_predictions sends."""
    tasks = [
        {"id": 10 + n, "data": {"image": place}, "annotations": [], "predictions": [], "project": 3}
        for n, place in enumerate(places)
    ]
    params = {"login": None, "password": None, "context": None}
    return {"tasks": tasks, "model_version": "x", "project": "3.1700000000", "label_config": config, "params": params}


def local(name: str) -> str:
    return f"/data/local-files/?d={name}"


@pytest.fixture(scope="module")
def client(tagger, digit_tables):
    with asked(make_tagger_app(tagger, ACCESS, More(label_studio=True, data_root=digit_tables))) as made:
        yield made


def test_health_and_setup(client):
    assert client.get("/health").json() == {"status": "UP", "model_class": "mlcil"}
    setup = {"project": "3.1700000000", "schema": CONFIG, "hostname": "http://localhost:8080", "access_token": "x"}
    answer = client.post("/setup", json=setup)
    assert answer.json()["model_version"].startswith("digits-")
    assert client.post("/setup", json=setup | {"schema": "<View/>"}).status_code == 400


def test_predictions(client, tagger, digit_tables):
    names = [f"{number}.png" for number in range(140, 156)]
    results = client.post("/predict", json=request_of(*map(local, names))).json()["results"]
    assert len(results) == 16
    for result, one in zip(results, tagger.predict([digit_tables / name for name in names]), strict=True):
        spelled = [{"digit 0": "digit 0", "digit 1": "Digit 1"}[name] for name in one.names]
        expected = {"from_name": "tags", "to_name": "image", "type": "choices", "value": {"choices": spelled}}
        assert result["result"] == ([expected] if spelled else [])
        assert 0 <= result["score"] <= 1
    order = np.argsort([result["score"] for result in results])
    margins = np.abs(tagger.scores([digit_tables / name for name in names]) - tagger.thresholds).min(axis=1)
    assert margins[order[0]] < np.median(margins)


def test_unsure_ones_have_low_scores():
    thresholds = np.array([0.5, 0.2])
    scores = [certainty(np.array(one, np.float32), thresholds) for one in ([0.5, 0.9], [0.6, 0.9], [1, 0], [0, 1])]
    assert scores == pytest.approx([0, 0.2, 1, 1])
    assert certainty(np.empty(0, np.float32), np.empty(0)) == 0


def test_one_task_that_cannot_be_opened_harms_no_other(client):
    good, bad = client.post("/predict", json=request_of(local("150.png"), local("no.png"))).json()["results"]
    assert "error" not in good
    assert (bad["score"], bad["result"]) == (0.0, [])
    assert "not a file in --data-root" in bad["error"]


def test_if_nothing_can_be_opened_it_says_why(client):
    answer = client.post("/predict", json=request_of("s3://bucket/x.jpg", local("no.png")))
    assert answer.status_code == 400
    assert "give --data-root" in answer.json()["detail"]
    assert client.post("/predict", json=request_of()).json() == {"results": []}


@pytest.mark.parametrize("action", ["ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATION_DELETED", "START_TRAINING"])
def test_webhook(client, action):
    answer = client.post("/webhook", json={"action": action, "project": {"id": 3, "label_config": CONFIG}})
    assert (answer.status_code, answer.json()["status"]) == (201, "ok")


def test_choices():
    found = choices_of(CONFIG)
    assert (found.name, found.to_name, found.key, found.is_single) == ("tags", "image", "image", False)
    assert found.chosen(["DIGIT 1", "digit 5", "digit 0"]) == ["Digit 1", "digit 0"]
    single = choices_of(CONFIG.replace(' choice="multiple"', ""))
    assert single.chosen(["digit 0", "digit 1"]) == ["digit 0"]
    free = choices_of('<View><Image name="i" value="$x"/><Choices name="c" toName="i" value="$o"/></View>')
    assert (free.key, free.choice_of("anything")) == ("x", "anything")


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><View>&b;</View>'
FILES = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><View>&a;</View>'


@pytest.mark.parametrize(
    "config", [ENTITIES, FILES, "<View>", "", "text", "<View>&a;</View>", CONFIG.replace("Choices", "X")]
)
def test_other_configurations(client, config):
    with pytest.raises(UserError, match="labelling configuration"):
        choices_of(config)
    assert client.post("/predict", json=request_of(local("150.png"), config=config)).status_code == 400


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    folder = tmp_path / "root"
    (folder / "a b").mkdir(parents=True)
    (folder / "a b" / "x.png").write_bytes(b"fine")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "in.png").symlink_to(folder / "a b" / "x.png")
    return folder


def test_files_in_the_folder(root):
    opener = Opener(root)
    for name in ("a b/x.png", "a%20b/x.png", "in.png", "./a b/../in.png"):
        assert opener.read(local(name)) == b"fine"


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "..%2Fsecret.png", "out.png", "/etc/passwd", "a b", "", "no.png", "a b/../../secret.png", "%00"],
)
def test_files_outside_of_it(root, name):
    outside = str(root.parent / "secret.png")
    for one in (name, outside):
        with pytest.raises(UserError, match="not a file in --data-root"):
            Opener(root).read(local(one))


@pytest.mark.parametrize(
    "place",
    ["http://evil.com/x.png", "//evil.com/x.png", "file:///etc/passwd", "/etc/passwd", "x.png", "http://[x", ""],
)
def test_places_elsewhere(root, place):
    with pytest.raises(UserError, match="not opened|not a URL"):
        Opener(root).read(place)


class Answers(BaseHTTPRequestHandler):
    """A Label Studio of this test."""

    def do_GET(self) -> None:
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", "/data/upload/x.png")
        elif self.headers.get("Authorization") != "Token key":
            self.send_response(401)
        elif self.path.startswith("/none"):
            self.send_response(404)
        else:
            self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def studio():
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_images_of_the_server(studio, root, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "key")
    opener = Opener(root, studio)
    assert opener.read("/data/upload/1/a b.png") == b"/data/upload/1/a%20b.png"
    assert opener.read(f"{studio}/data/x.png?v=1") == b"/data/x.png?v=1"
    assert opener.read(local("in.png")) == b"fine"
    for place, reason in (
        ("/elsewhere", "answers 302"),
        ("/none", "answers 404"),
        ("http://127.0.0.1:1/x.png", "not opened"),
        (studio.replace("http:", "https:") + "/x", "not opened"),
    ):
        with pytest.raises(UserError, match=reason):
            opener.read(place)
    monkeypatch.delenv("LABEL_STUDIO_API_KEY")
    with pytest.raises(UserError, match="answers 401.*LABEL_STUDIO_API_KEY"):
        opener.read("/data/upload/x.png")


def test_images_of_the_server_are_limited(studio, monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "key")
    monkeypatch.setattr(label_studio_images, "MAX_BODY", 5)
    with pytest.raises(UserError, match="too large or too slow"):
        Opener(None, studio).read("/data/upload/x.png")


def test_a_server_that_is_not_there():
    with pytest.raises(UserError, match="cannot fetch '/x.png' from Label Studio"):
        Opener(None, "http://127.0.0.1:1").read("/x.png")


def test_options_that_do_not_fit(tagger, tmp_path):
    for more, reason in (
        (More(data_root=tmp_path), "add --label-studio"),
        (More(label_studio=True, data_root=tmp_path / "no"), "is not a folder"),
        (More(label_studio=True, label_studio_host="localhost:8080"), "expected a URL"),
    ):
        with pytest.raises(UserError, match=reason):
            make_tagger_app(tagger, ACCESS, more)
