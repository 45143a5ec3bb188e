"""The public door: which names it has, that it opens quickly, and that they work together."""

import inspect
import subprocess
import sys

import pytest
from PIL import Image

import mlcil

from .tiny import KRT, SETTINGS

TINY = {key: value for key, value in SETTINGS.items() if key != "data"} | {"epochs": 1, "protocol": "0,1|2,3"}
FUNCTIONS = ("check", "compare", "diagnose", "load", "methods", "presets", "register", "report", "run")


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs made through the door, with their results."""
    folder = tmp_path_factory.mktemp("runs")
    first = mlcil.run("ft", SETTINGS["data"], folder / "ft", **TINY)
    second = mlcil.run(data=SETTINGS["data"], out=str(folder / "krt"), **TINY, **KRT)
    return {folder / "ft": first, folder / "krt": second}


def test_every_public_name_is_there_and_documented():
    assert set(dir(mlcil)) == {
        *FUNCTIONS,
        *(
            "Method",
            "MethodConfig",
            "Prediction",
            "Rehearsal",
            "Tagger",
            "UserError",
            "option",
            "testing",
            "__version__",
        ),
    }
    for name in set(dir(mlcil)) - {"__version__"}:
        assert inspect.getdoc(getattr(mlcil, name)), name
    assert all(callable(getattr(mlcil, name)) for name in FUNCTIONS)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        mlcil.runn  # noqa: B018


def test_the_import_is_quick_and_so_is_what_needs_no_torch():
    in_a_new_process(
        "import sys, mlcil\n"
        "mlcil.UserError, mlcil.option, mlcil.run, dir(mlcil)\n"
        "heavy = {'torch', 'timm', 'numpy', 'rich', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert mlcil.Method and 'torch' in sys.modules"
    )


@pytest.mark.parametrize("first", ["mlcil.methods.krt", "mlcil.methods.registry", "mlcil"])
def test_methods_is_a_package_and_lists_all_methods(first):
    assert in_a_new_process(f"import {first}, mlcil; print(*mlcil.methods())").split()[0] == "ft"
    mlcil.methods().clear()
    assert issubclass(mlcil.methods()["krt"], mlcil.Rehearsal)


def test_a_trained_run_tags_images(runs, tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "photo.png")
    for folder, results in runs.items():
        run = mlcil.load(folder)
        assert run.classes == tuple("0123")
        assert run.scores([tmp_path / "photo.png"]).shape == (1, 4)
        (prediction,) = run.predict([tmp_path / "photo.png"], top=2)
        assert len(prediction.tags) == 2
        assert mlcil.load(str(folder), session=1).classes == tuple("01")
        assert results.last_map == results.sessions[-1].map


def test_runs_are_reported_and_compared(runs, tmp_path):
    page = mlcil.report(list(runs), tmp_path, title="Two runs", images=0)
    assert "Two runs" in page.read_text()
    first, second = runs
    found = mlcil.compare(first, [str(second)], resamples=100).as_dict()
    assert found["mAP"]["first"] == pytest.approx(runs[first].last_map)
    assert found["mAP"]["second"] == pytest.approx(runs[second].last_map)


def test_presets_are_listed_by_group_and_run_by_name(tmp_path):
    assert mlcil.presets("table1").items() < mlcil.presets().items()
    with pytest.raises(mlcil.UserError, match="needs --data coco:PATH"):
        mlcil.run(preset="coco-b0-c10/krt")
    small = {"backbone": "small_conv", "weights": None, "buffer": 2}
    results = mlcil.run(data=SETTINGS["data"], out=tmp_path, preset="coco-b0-c10/er-20", **TINY | small)
    assert (results.preset, results.method, results.buffer) == ("coco-b0-c10/er-20", "er", "2")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "krtt"}, "did you mean 'krt'"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"method": "ft", "token_weight": 3}, "unknown key for method ft 'token_weight'"),
        ({"epochs": 0}, "epochs: got 0, expected at least 1"),
    ],
)
def test_a_mistake_is_one_line(given, message):
    with pytest.raises(mlcil.UserError, match=message) as caught:
        mlcil.run(**given)
    assert "\n" not in str(caught.value)
