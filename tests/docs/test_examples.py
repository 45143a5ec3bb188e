"""The scripts of `examples/` run as they are, apart from fewer and smaller images."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {"data": "digits:train=40,test=30,size=16", "protocol": "0,1|2,3", "image_size": 16, "epochs": 1, "threads": 1}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Import a script by name, in an empty working folder and without arguments."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def test_every_script_is_short_and_says_how_to_run_it():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [one.stem for one in scripts] == ["grid_and_report", "new_method", "own_photos"]
    for one in scripts:
        assert len(one.read_text().splitlines()) <= 75, one
        assert f"python examples/{one.name}" in one.read_text()


def test_own_photos_are_learned_and_tagged(example, capsys):
    example("own_photos").main()
    said = capsys.readouterr().out
    assert "learned digit 2, digit 3 in" in said
    assert said.count(".png: digit") == 3
    assert Path("runs/own-photos/tags.csv").exists()


def test_the_grid_has_a_page_and_a_comparison(example, capsys, monkeypatch):
    script = example("grid_and_report")
    monkeypatch.setattr(script, "SETTINGS", TINY)
    script.main()
    assert Path("runs/example-grid/report/index.html").exists()
    assert "lwf minus ft: " in capsys.readouterr().out


def test_the_new_method_runs_beside_fine_tuning(tmp_path):
    # In a process of its own, because it registers the method for good. The checks run in test_add_a_method.py.
    changed = f"import new_method as m; m.SETTINGS = {TINY}; m.check_method = lambda *given, **values: None; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); {changed}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "anchored: mAP" in done.stdout
