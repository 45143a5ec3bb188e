"""The worked example of docs/add-a-method.md is a method, short, and passes the battery it recommends."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from mlcil.methods.base import Method
from mlcil.methods.registry import all_methods
from mlcil.testing import check_method

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Method]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "check_method(Anchored)" in blocks[1]
    (tmp_path / "my_anchored.py").write_text(blocks[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("my_anchored").Anchored
    del sys.modules["my_anchored"]


def test_the_example_has_less_than_60_lines(example: type[Method]) -> None:
    assert len(Path(sys.modules["my_anchored"].__file__).read_text().splitlines()) < 60


def test_the_example_passes_the_battery_and_leaves_no_trace(example: type[Method]) -> None:
    check_method(example, pull=1.0)
    assert "anchored" not in all_methods()


def test_the_example_holds_the_backbone(example: type[Method], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from mlcil import testing as checks
    from mlcil.training.config import make_config
    from mlcil.training.run import run

    def moved(pull: float) -> float:
        out = tmp_path / str(pull)
        with checks._known(example):
            run(make_config({**checks.TINY, "method": "anchored"}, {"pull": pull}), out)
        first, last = (load_file(out / f"session-0{number}" / "state.safetensors") for number in (1, 2))
        weights = [key for key in first if key.startswith("method.tagger.backbone.") and key.endswith("weight")]
        return sum(float(torch.dist(first[key], last[key])) for key in weights)

    assert moved(100.0) < 0.5 * moved(0.0)
