"""An exported model answers like the tagger, knows how to be used, and is kept only if both are true."""

import json
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.data.decoding import decode
from mlcil.serving import export
from mlcil.serving.export import ExportedTagger, ExportReport, export_onnx, metadata
from mlcil.serving.loading import open_run
from mlcil.training.config import make_config
from mlcil.training.run import run as train

from ..tiny import settings

REASON = "needs the extra mlcil[onnx]"
onnx = pytest.importorskip("onnx", reason=REASON)
pytest.importorskip("onnxscript", reason=REASON)
onnxruntime = pytest.importorskip("onnxruntime", reason=REASON)

# Enough images that the last session has a calibration of its own.
CALIBRATED = {"data": "digits:train=160,test=40,size=16", "validation": 0.5, "epochs": 1, "protocol": "0,1,2|3,4"}
VARIANTS = {
    "analytic": settings("analytic", **CALIBRATED),
    "krt": settings("krt", **CALIBRATED),
    "ft": settings("ft", epochs=1, protocol="0,1,2|3,4"),
    "test_vit": settings("ft", **CALIBRATED, backbone="test_vit", image_size=32),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """By the name of a run: the model, the report of its export, the ONNX program and a session of it."""

    def one(name):
        folder = tmp_path_factory.mktemp(name)
        train(make_config(VARIANTS[name]), folder / "run")
        run, programs = open_run(folder / "run"), []
        with pytest.MonkeyPatch.context() as patch:
            traced = export._program
            patch.setattr(export, "_program", lambda run: programs.append(traced(run)) or programs[0])
            report = export_onnx(run, folder / "out" / "model.onnx")
        session = onnxruntime.InferenceSession(report.path, providers=["CPUExecutionProvider"])
        return SimpleNamespace(run=run, report=report, program=programs[0], session=session)

    return cache(one)


def random_pixels(run, count, seed=7):
    size = run.config.settings.image_size
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)


def expected_of(run, pixels):
    scores = run.method.predict(run.prepare(pixels)).numpy()
    return scores if run.calibration is None else run.calibration.probabilities(scores)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_it_answers_like_the_tagger_in_batches_of_any_size(exported, name, count):
    made = exported(name)
    pixels = random_pixels(made.run, count)
    (answer,) = made.session.run(None, {"images": pixels})
    assert (answer.dtype, answer.shape) == (np.float32, (count, 5))
    np.testing.assert_allclose(answer, expected_of(made.run, pixels), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_input_and_output_are_as_promised(exported, name):
    made = exported(name)
    size = made.run.config.settings.image_size
    (given,), (answer,) = made.session.get_inputs(), made.session.get_outputs()
    assert (given.name, given.type, given.shape[1:]) == ("images", "tensor(uint8)", [size, size, 3])
    assert (answer.name, answer.type, answer.shape[1:]) == ("probabilities", "tensor(float)", [5])
    assert isinstance(given.shape[0], str)  # a name, so any number of images
    assert given.shape[0] == answer.shape[0]
    onnx.checker.check_model(made.report.path, full_check=True)


def test_the_report_says_what_was_written(exported):
    report = exported("ft").report
    assert isinstance(report, ExportReport)
    assert report.size == report.path.stat().st_size
    assert 0 <= report.difference <= 1e-5
    assert report.script == report.path.with_name("predict_onnx.py")
    assert sorted(one.name for one in report.path.parent.iterdir()) == ["model.onnx", "predict_onnx.py"]


def test_the_metadata_say_how_to_use_it(exported):
    made = exported("krt")
    facts = made.session.get_modelmeta().custom_metadata_map
    assert facts == metadata(made.run)
    assert json.loads(facts["labels"]) == list("01234")
    assert json.loads(facts["preprocessing"])["size"] == 16
    assert json.loads(facts["preprocessing"])["stretch"] is True
    assert (facts["method"], facts["mlcil_version"]) == ("krt", export.__version__)


def test_thresholds_decide_as_those_of_the_tagger(exported):
    run = exported("krt").run
    pixels = random_pixels(run, 40)
    scores = run.method.predict(run.prepare(pixels)).numpy()
    middle = np.median(scores, axis=0).astype(np.float64) + 1e-9  # on the tagger's own scale
    changed = SimpleNamespace(thresholds=middle, calibration=run.calibration, classes=run.classes, config=run.config)
    stored = np.array(json.loads(metadata(changed)["thresholds"]))
    assert np.abs(stored - middle)[3:].min() > 1e-3  # the calibration of the last session does something
    assert np.array_equal(expected_of(run, pixels) > stored, scores > middle)
    assert 0 < (scores > middle).sum() < scores.size


def test_without_stored_thresholds_it_takes_the_default(exported):
    assert json.loads(metadata(exported("ft").run)["thresholds"]) == [0.8] * 5


def test_certain_scores_stay_certain(exported):
    run = exported("krt").run
    scores = torch.tensor([[0.0, 1.0, 1.0000001, 0.5, 1e-30]])
    module = ExportedTagger(run)
    module._method = SimpleNamespace(predict=lambda images: scores)
    answer = module(torch.zeros(1, 16, 16, 3, dtype=torch.uint8)).numpy()
    np.testing.assert_allclose(answer, run.calibration.probabilities(scores.numpy()), rtol=1e-5)
    assert answer[0, :3].tolist() == [0, 1, 1]


def test_nothing_in_the_file_tells_where_it_was_made(exported):
    content = exported("krt").report.path.read_bytes()
    for word in (b"site-packages", b".py", b"/src/", b"stack_trace"):
        assert word not in content


def test_exporting_leaves_the_tagger_as_it_was(exported):
    run = exported("krt").run
    pixels = random_pixels(run, 3)
    assert np.array_equal(run.scores(pixels), open_run(run.path).scores(pixels))
    assert not any(isinstance(one, torch._subclasses.FakeTensor) for one in run.method.tagger.state_dict().values())


def save_pictures(folder):
    """Photographs of all kinds: large and small JPEGs, turned by EXIF, and a transparent PNG."""
    rng = np.random.default_rng(3)
    for number, (width, height, orientation) in enumerate([(131, 203, 1), (331, 217, 6), (20, 18, 3), (231, 203, 5)]):
        picture = Image.fromarray(rng.integers(0, 256, (7, 5, 3), np.uint8)).resize((width, height))
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.save(folder / f"{number}.jpg", exif=exif, quality=95)
        picture.save(folder / f"{number}.tif", exif=exif)
    Image.fromarray(rng.integers(0, 256, (40, 30, 4), np.uint8)).save(folder / "clear.png")
    Image.fromarray(rng.integers(0, 256, (40, 30), np.uint8)).save(folder / "grey.png")
    return sorted(folder.iterdir())


def test_the_script_prepares_pictures_as_the_tagger_does(tmp_path):
    from mlcil.serving.predict_onnx import read_square

    for path in save_pictures(tmp_path):
        got, expected = read_square(str(path), 16).astype(int), decode(str(path), 16).astype(int)
        # It resizes before it turns, which rounds differently.
        assert np.abs(got - expected).max() <= (0 if path.stem in {"0", "clear", "grey"} else 1), path.name


def test_the_script_gives_the_tags_of_the_tagger(exported, tmp_path):
    made, paths = exported("analytic"), save_pictures(tmp_path)
    (tmp_path / "broken.jpg").write_text("no image")
    answer = subprocess.run(
        [sys.executable, "-I", made.report.script, made.report.path, *paths, tmp_path / "broken.jpg"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "broken.jpg: cannot identify image file" in answer.stderr
    expected = []
    scores = made.run.scores(paths)
    for path, row, probabilities in zip(paths, scores, made.run.calibration.probabilities(scores), strict=True):
        columns = [column for column in np.argsort(-probabilities) if row[column] > made.run.thresholds[column]]
        expected.append([(str(path), made.run.classes[column], round(probabilities[column], 3)) for column in columns])
    assert 0 < sum(map(len, expected)) < scores.size
    lines = answer.stdout.splitlines()
    assert len(lines) == len(paths)
    for line, wanted, path in zip(lines, expected, paths, strict=True):
        name, _, tags = line.partition(": ")
        assert name == str(path)
        parts = [one.split(" ") for one in tags.split(", ") if one]
        assert [label for label, _ in parts] == [label for _, label, _ in wanted]
        assert [float(value) for _, value in parts] == pytest.approx([value for *_, value in wanted], abs=5e-3)


def test_the_script_says_how_to_call_it():
    answer = subprocess.run([sys.executable, export.SCRIPT], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (1, "usage: python predict_onnx.py model.onnx photo.jpg ...\n")


def test_a_model_that_answers_differently_is_not_kept(exported, tmp_path, monkeypatch):
    made, file = exported("ft"), tmp_path / "model.onnx"
    monkeypatch.setattr(export, "_program", lambda run: made.program)
    file.write_text("the model before")
    monkeypatch.setattr(made.run.method.tagger.backbone, "std", (0.3, 0.3, 0.3))
    with pytest.raises(UserError, match=r"differs from the tagger by up to \d\S+, more than 0.0001 \(method ft"):
        export_onnx(made.run, file)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("model.onnx", "the model before")]


def test_a_model_that_onnxruntime_refuses_is_not_kept(exported, tmp_path, monkeypatch):
    def save(path, external_data):
        path.write_text("no model")

    broken = SimpleNamespace(model=SimpleNamespace(metadata_props={}), save=save)
    monkeypatch.setattr(export, "_program", lambda run: broken)
    with pytest.raises(UserError, match=r"onnxruntime cannot use the exported model: [^\n]+$"):
        export_onnx(exported("ft").run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_named(exported, tmp_path, monkeypatch):
    run = exported("ft").run
    predict = run.method.predict
    monkeypatch.setattr(run.method, "predict", lambda images: predict(images).sort(dim=1, stable=True).values)
    with pytest.raises(UserError, match=r"^method ft on backbone small_conv cannot be exported to ONNX: .*sort[^\n]*$"):
        export_onnx(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'mlcil\[onnx\]'"):
        export_onnx(None, tmp_path / "model.onnx")
