"""A run loaded from its folder scores images to the bit as when it was trained, and needs nothing but the folder."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.contents import Contents
from mlcil.data.images import LabelledImages
from mlcil.data.pixels import open_pixels
from mlcil.data.sources import load
from mlcil.evaluation.scores import load_scores, scores_file
from mlcil.serving.loading import _take_normalisation, open_run
from mlcil.serving.tagger import read_images
from mlcil.training.config import make_config
from mlcil.training.run import run
from mlcil.training.states import load_state, save_state

from ..tiny import settings

VARIANTS = {
    "ft": settings("ft", epochs=1),
    "krt": settings("krt", buffer="2", epochs=1, ema=0.9, validation=0.3),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folders of the runs by name."""
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in VARIANTS}
    for name, values in VARIANTS.items():
        run(make_config(values), folders[name])
    return folders


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of a run's folder, to be spoiled."""
    return Path(shutil.copytree(trained["krt"], tmp_path / "copy"))


def change(folder, **values):
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("session", [2, 3])
def test_scores_are_those_of_the_model_that_was_trained(trained, name, session):
    stored = load_scores(scores_file(trained[name], session))
    pixels = load(VARIANTS[name]["data"], None).test.pixels[stored.rows]
    assert np.array_equal(open_run(trained[name], session).scores(pixels), stored.scores)


def test_an_image_may_be_a_file_an_image_of_pillow_or_an_array(trained, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    picture, file = Image.fromarray(pixels), tmp_path / "a.png"
    picture.save(file)
    run = open_run(trained["ft"])
    scores = run.scores([str(file), file, picture, pixels])
    assert scores.shape == (4, 7)
    alone = run.scores(file)
    for one in (picture, pixels, pixels[None]):
        assert np.array_equal(run.scores(one), alone)
    np.testing.assert_allclose(scores, np.repeat(alone, 4, axis=0), atol=1e-6)  # a batch of four rounds differently
    with pytest.raises(UserError, match=r"got an array of int64 \(3, 4\), expected an image \(H, W\), \(H, W, 3\) or"):
        run.scores([np.zeros((3, 4), np.int64)])


def test_a_file_may_be_as_large_as_in_training(copied, tmp_path):
    file = tmp_path / "a.png"
    Image.new("RGB", (40, 30)).save(file)
    change(copied, megapixels=0.0012)
    assert open_run(copied).scores(file).shape == (1, 7)
    change(copied, megapixels=0.0011)
    run = open_run(copied)
    for read in (run.predict, lambda path: read_images(run, [path])):
        with pytest.raises(UserError, match=r"a\.png: 0\.1 megapixels, more than the limit of 0\.0011"):
            read(file)


def test_any_finished_session_can_be_had(trained):
    run = open_run(trained["krt"], 2)
    assert (run.session, run.classes, run.path) == (2, tuple("01234"), trained["krt"])
    assert [run.session_of(column) for column in range(5)] == [1, 1, 1, 2, 2]
    assert not run.method.tagger.training
    assert open_run(trained["krt"]).classes == tuple("0123456")


def test_the_calibration_comes_with_the_model(trained):
    folder = trained["krt"]
    sessions = json.loads((folder / "results.json").read_text())["sessions"]
    for number, stored in enumerate(sessions, start=1):
        run = open_run(folder, number)
        assert run.thresholds.tolist() == run.calibration.thresholds.tolist()
        assert run.thresholds.tolist() == list(stored["thresholds"].values())
        assert run.calibration.temperatures[-1] == stored["temperature"]


def test_a_run_without_a_validation_part_has_no_calibration(trained):
    run = open_run(trained["ft"])
    assert run.calibration is None
    assert run.thresholds.tolist() == [0.8] * 7


def test_a_methods_own_thresholds_come_first(trained, monkeypatch):
    run = open_run(trained["krt"])
    monkeypatch.setattr(run.method, "thresholds", lambda: np.full(7, 0.25))
    assert run.thresholds.tolist() == [0.25] * 7


@pytest.mark.parametrize("calibration", [{"thresholds": [0.5] * 7}, []])
def test_a_calibration_that_does_not_fit(copied, calibration):
    file = copied / "session-03" / "state.safetensors"
    tensors, values = load_state(file)
    save_state(file, tensors, values | {"calibration": calibration})
    with pytest.raises(UserError, match=r"state\.safetensors does not fit the run's config\.yaml"):
        open_run(copied)


def test_no_image_gives_no_score(trained):
    assert open_run(trained["ft"]).scores(np.empty((0, 16, 16, 3), np.uint8)).shape == (0, 7)


def test_neither_data_nor_weights_nor_results_are_needed(trained, copied):
    change(copied, data="coco:/nowhere", weights="/nowhere/weights.safetensors")
    (copied / "results.json").unlink()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    assert np.array_equal(open_run(copied).scores(pixels), open_run(trained["krt"]).scores(pixels))


def test_the_callers_random_numbers_go_on_as_if_nothing_had_happened(trained):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    open_run(trained["ft"])
    assert torch.equal(torch.rand(4), expected)


def test_files_are_decoded_as_for_training(trained, tmp_path):
    rng, paths = np.random.default_rng(0), [tmp_path / "a.png", tmp_path / "b.png"]
    for path, shape in zip(paths, [(30, 50, 3), (9, 7, 3)], strict=True):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    images = LabelledImages(tuple(map(str, paths)), np.ones((2, 1), np.int8), ("a",), "test")
    store = open_pixels(images, 16, cache=None, contents=Contents()).store
    got = read_images(open_run(trained["ft"]), paths)
    assert got.shape == (2, 16, 16, 3)
    assert np.array_equal(got, store[np.arange(2)])


def test_a_file_that_cannot_be_read_is_named(trained, tmp_path):
    (tmp_path / "broken.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"broken\.jpg: not an image"):
        read_images(open_run(trained["ft"]), [tmp_path / "broken.jpg"])


@pytest.mark.parametrize(
    ("session", "message"), [(0, "got session 0, expected 1 to 3"), (4, "got session 4, expected 1 to 3")]
)
def test_a_session_that_is_not_there(trained, session, message):
    with pytest.raises(UserError, match=message):
        open_run(trained["ft"], session)


def test_a_folder_that_holds_no_run(tmp_path):
    with pytest.raises(UserError, match=r"gone is not the folder of a run"):
        open_run(tmp_path / "gone")
    with pytest.raises(UserError, match="has no config.yaml"):
        open_run(tmp_path)


def test_a_run_without_a_finished_session(copied):
    for folder in copied.glob("session-*"):
        shutil.rmtree(folder)
    with pytest.raises(UserError, match="no finished session yet"):
        open_run(copied)


def test_a_torn_checkpoint(copied):
    file = copied / "session-03" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"session-03/state\.safetensors"):
        open_run(copied)


def test_a_checkpoint_of_another_configuration(copied):
    change(copied, options={"width": 32, "heads": 4})
    with pytest.raises(UserError, match=r"state\.safetensors does not fit the run's config\.yaml: [^\n]+$"):
        open_run(copied)


@pytest.mark.parametrize(
    ("weights", "mean"),
    [("ap_in1k", (0.5, 0.5, 0.5)), ("aa_in1k", (0.485, 0.456, 0.406)), ("file.safetensors", (0.1,)), (None, (0.1,))],
)
def test_a_tag_brings_its_own_normalisation(weights, mean):
    backbone = SimpleNamespace(name="tf_efficientnet_b0", mean=(0.1,), std=(0.1,))
    _take_normalisation(backbone, weights)
    assert backbone.mean == mean


def test_names_and_heads_must_be_as_many(trained, tmp_path):
    shutil.copytree(trained["ft"], tmp_path / "run")
    file = tmp_path / "run" / "session-03" / "state.safetensors"
    tensors, values = load_state(file)
    values["result"]["classes"].pop()
    save_state(file, tensors, values)
    with pytest.raises(UserError, match=r"does not fit the run's config\.yaml: heads for 7 classes, names for 6"):
        open_run(tmp_path / "run")
