"""The worked example of docs/add-a-method.md is examples/new_method.py, short, and passes the battery it recommends."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import mlcil
from mlcil.methods.registry import all_methods
from mlcil.testing import TINY, check_method

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "new_method.py"


@pytest.fixture
def anchored(monkeypatch: pytest.MonkeyPatch) -> type[mlcil.Method]:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "new_method", raising=False)
    return import_module("new_method").Anchored


def test_the_page_shows_the_method_of_the_script():
    (block, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add-a-method.md").read_text(), re.DOTALL)
    imports, code = block.split("\n\n\n", 1)
    script = SCRIPT.read_text()
    assert code.strip() in script
    assert all(line in script for line in imports.splitlines())
    assert len(block.splitlines()) < 60


def test_the_example_passes_the_whole_battery_in_one_call_and_leaves_no_trace(anchored):
    check_method(anchored, pull=1.0)
    assert "anchored" not in all_methods()


def test_the_example_holds_the_backbone(anchored, tmp_path, monkeypatch):
    monkeypatch.setitem(all_methods(), "anchored", anchored)

    def moved(pull: float) -> float:
        out = tmp_path / str(pull)
        mlcil.run(**TINY, method="anchored", pull=pull, out=out)
        first, last = (mlcil.load(out, session).method.tagger.backbone.state_dict() for session in (1, 2))
        return sum(float(torch.dist(first[name], last[name])) for name in first if name.endswith("weight"))

    assert moved(100.0) < 0.5 * moved(0.0)
