"""The folder of a tagger: the same scores to the bit, with nothing else at hand, whole or not at all."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from mlcil.core.errors import UserError
from mlcil.core.files import sha256_of
from mlcil.serving import tagger_files
from mlcil.serving.changing import choose_thresholds
from mlcil.serving.tagger import Tagger
from mlcil.training.config import make_config
from mlcil.training.run import run

from ..tiny import settings
from .lessons import assert_same, photos_of, start, teach

FILES = {
    *("config.json", "model.safetensors", "tagger.safetensors", "preprocessing.json", "tags.csv", "README.md"),
    "SHA256SUMS",
}
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 20, 30, 3), np.uint8)


@pytest.fixture(scope="module")
def tagger(digit_tagger):
    return Tagger.load(digit_tagger)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of runs by method."""
    folders = {method: tmp_path_factory.mktemp(method) / "run" for method in ("krt", "ft")}
    for method, folder in folders.items():
        run(make_config(settings(method, epochs=1, validation=0.3 if method == "krt" else 0.0)), folder)
    return folders


@pytest.fixture
def copied(digit_tagger, tmp_path):
    """A copy of a tagger's folder, to be spoiled."""
    return Path(shutil.copytree(digit_tagger, tmp_path / "copy"))


def with_checksums(folder):
    """Make the checksums of changed files right again."""
    names = sorted(FILES - {"SHA256SUMS"})
    (folder / "SHA256SUMS").write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names))


def test_a_tagger_comes_back_as_it_was(tagger, tmp_path):
    chosen = choose_thresholds(tagger, {"digit 1": 0.3})
    again = Tagger.load(chosen.save(tmp_path / "again"))
    assert np.array_equal(again.scores(PIXELS), tagger.scores(PIXELS))
    assert np.array_equal(again.thresholds, chosen.thresholds)
    assert (again.labels, again.steps, again.chosen) == (chosen.labels, tagger.steps, {"digit 1": 0.3})
    assert (again.weights, again.path, again.slim) == (tagger.weights, tmp_path / "again", False)


@pytest.mark.parametrize("method", ["krt", "ft"])
@pytest.mark.parametrize("session", [1, None])
def test_a_run_becomes_a_tagger(runs, method, session, tmp_path):
    loaded = Tagger.load(runs[method], session)
    again = Tagger.load(loaded.save(tmp_path / "tagger"))
    assert np.array_equal(again.scores(PIXELS), loaded.scores(PIXELS))
    assert again.predict(PIXELS) == loaded.predict(PIXELS)
    assert np.array_equal(again.thresholds, loaded.thresholds)
    assert again.labels == loaded.labels
    assert len(again.classes) == (3 if session else 7)


def test_a_tagger_has_no_sessions(digit_tagger):
    with pytest.raises(UserError, match="is a tagger, which has no sessions to choose from; leave out session 1"):
        Tagger.load(digit_tagger, 1)


@pytest.fixture(scope="module", params=["test_resnet", "test_vit"])
def of_timm(request, digit_tables, tmp_path_factory):
    """A tagger on a network of timm, learned and saved where nothing else is left: its folder, and its scores."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    weights, size = folder / f"{request.param}.safetensors", {"img_size": 32} if "vit" in request.param else {}
    save_file(timm.create_model(request.param, num_classes=0, **size).state_dict(), weights)
    tables = Path(shutil.copytree(digit_tables, folder / "tables"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(folder / "cache"))
        tagger = start(tables / "a.csv", backbone=None, weights=str(weights))
    tagger.save(folder / "tagger")
    scores = tagger.scores(PIXELS)
    shutil.rmtree(tables)
    shutil.rmtree(folder / "cache")
    state = load_file(weights)
    weights.unlink()
    return folder / "tagger", scores, state


def test_the_folder_is_all_that_is_needed(of_timm, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("no network is needed")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder, scores, _ = of_timm
    tagger = Tagger.load(folder)
    assert np.array_equal(tagger.scores(PIXELS), scores)
    assert tagger.weights.startswith(f"the file {tagger.config.settings.backbone}.safetensors (SHA-256 ")


def test_timm_loads_the_backbone(of_timm):
    folder, _, state = of_timm
    net = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert net.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():  # in which a tagger can be loaded, too
        own = Tagger.load(folder).method.tagger.backbone.net
        torch.testing.assert_close(net.forward_features(images), own.forward_features(images), rtol=0, atol=1e-5)


def test_it_holds_these_files_and_their_checksums(digit_tagger):
    assert {one.name for one in digit_tagger.iterdir()} == FILES
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=digit_tagger,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": OK") == len(FILES) - 1


def test_nothing_in_it_tells_where_it_was_made(digit_tagger, digit_tables):
    for file in digit_tagger.iterdir():
        content = file.read_bytes()
        assert str(digit_tables).encode() not in content
        assert str(digit_tagger.parent).encode() not in content
        assert not content.startswith((b"\x80", b"PK"))  # neither a pickle nor what torch.save writes


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tagger.safetensors", "preprocessing.json"])
def test_a_file_that_is_damaged_or_missing_is_named(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(
        UserError, match=rf"^tagger \S+ is damaged: {name} does not have the SHA-256 that SHA256SUMS states$"
    ):
        Tagger.load(copied)
    (copied / name).unlink()
    with pytest.raises(UserError, match=name):
        Tagger.load(copied)


def test_without_checksums_it_is_incomplete(copied):
    (copied / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match="is incomplete: SHA256SUMS is missing"):
        Tagger.load(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2, "version": "9.1"}, r"was written by a later version of mlcil \(9\.1\); update mlcil"),
        ({"labels": []}, "is damaged: heads for 2 classes, names for 0"),
        ({"steps": [{"number": 1}]}, r"is damaged: [^\n]+$"),
        ({"state": {}}, r"is damaged: [^\n]+$"),
    ],
)
def test_contents_that_do_not_fit_are_one_line(copied, change, message):
    config = json.loads((copied / "config.json").read_text())
    config["mlcil"] |= change
    (copied / "config.json").write_text(json.dumps(config))
    with_checksums(copied)
    with pytest.raises(UserError, match=message):
        Tagger.load(copied)


def test_a_folder_that_holds_neither_tagger_nor_run(tmp_path):
    with pytest.raises(UserError, match=r"is neither a tagger nor the folder of a run: it has no config\.json and no"):
        Tagger.load(tmp_path)
    with pytest.raises(UserError, match="gone does not exist"):
        Tagger.load(tmp_path / "gone")


@pytest.mark.parametrize("failing", ["save_state", "write_json", "write_text", "sha256_of"])
def test_a_write_that_fails_leaves_nothing(tagger, tmp_path, monkeypatch, failing):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tagger_files, failing, full)
    with pytest.raises(UserError, match=r"cannot write \S+/new: No space left on device"):
        tagger.save(tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_nothing_is_ever_overwritten(tagger, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("folder", "file", "link"):
        with pytest.raises(UserError, match=rf"{name} exists already"):
            tagger.save(tmp_path / name)
    assert {one.name for one in tmp_path.iterdir()} == {"folder", "file", "link"}
    assert (tmp_path / "file").read_text() == "mine"


def test_a_slim_tagger_tags_and_does_nothing_else(tagger, digit_tables, tmp_path):
    folder = tagger.save(tmp_path / "slim", slim=True)
    slim = Tagger.load(folder)
    assert_same(slim, tagger, photos_of(digit_tables, range(30)))
    assert "slim: it can tag, but not learn more" in (folder / "README.md").read_text()
    assert slim.predict(PIXELS, precision=0.9) == tagger.predict(PIXELS, precision=0.9)
    assert sum(one.stat().st_size for one in folder.iterdir()) < sum(
        one.stat().st_size for one in tagger.path.iterdir()
    )
    for deed in (
        lambda: slim.learn(str(digit_tables / "b.csv")),
        lambda: slim.forget(["digit 0"]),
        lambda: slim.forget(steps=[1]),
        lambda: slim.merge(tagger),
        lambda: tagger.merge(slim),
        lambda: slim.rename({"digit 0": "zero"}),
    ):
        with pytest.raises(UserError, match=r"^\S+/slim was saved slim, without what [^\n]+$"):
            deed()


def test_a_slim_tagger_stays_slim(tagger, tmp_path):
    slim = Tagger.load(tagger.save(tmp_path / "slim", slim=True))
    again = Tagger.load(choose_thresholds(slim, {"digit 0": 0.4}).save(tmp_path / "again"))
    assert again.slim
    assert "slim: it can tag, but not learn more" in (tmp_path / "again" / "README.md").read_text()
    with pytest.raises(UserError, match=r"^\S+/again was saved slim"):
        again.forget(["digit 0"])


def test_a_tagger_that_was_learned_further_is_saved_with_all_of_it(tagger, digit_tables, tmp_path):
    learned = teach(tagger, digit_tables / "b.csv")
    again = Tagger.load(learned.save(tmp_path / "ab"))
    assert_same(again, learned, photos_of(digit_tables, range(40)))
    both = teach(again, digit_tables / "c.csv"), teach(learned, digit_tables / "c.csv")
    assert_same(*both, photos_of(digit_tables, range(40)))


def test_a_tagger_stays_with_its_runtime(digit_tagger, digit_tables, tmp_path):
    tagger = Tagger.load(digit_tagger)
    assert tagger.config.settings.runtime == tagger.method.tagger.backbone.runtime == "onnx"
    with pytest.raises(UserError, match=r"this tagger has runtime onnx, .*leave out runtime=torch"):
        tagger.learn(digit_tables / "b.csv", settings={"runtime": "torch"})
    old = shutil.copytree(digit_tagger, tmp_path / "old")  # of before there were several
    config = json.loads((old / "config.json").read_text())
    del config["mlcil"]["settings"]["runtime"]
    (old / "config.json").write_text(json.dumps(config))
    sums = [line for line in (old / "SHA256SUMS").read_text().splitlines() if not line.endswith("config.json")]
    sums.append(f"{sha256_of(old / 'config.json')}  config.json")
    (old / "SHA256SUMS").write_text("\n".join(sums))
    assert Tagger.load(old).method.tagger.backbone.runtime == "torch"


@pytest.mark.parametrize("values", [["a", "b", "c"], [1, 2], [0, 0, 0], [1e999, 1, 1], None])
def test_a_normalisation_that_makes_no_sense_is_named(digit_tagger, tmp_path, values):
    shutil.copytree(digit_tagger, folder := tmp_path / "tagger")
    file, sums = folder / "preprocessing.json", folder / "SHA256SUMS"
    before = sha256_of(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"std": values}))
    sums.write_text(sums.read_text().replace(before, sha256_of(file)))
    with pytest.raises(UserError, match="is damaged"):
        Tagger.load(folder)
