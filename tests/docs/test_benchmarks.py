"""The scripts of the benchmarks ask for settings that exist."""

import re
import runpy
from pathlib import Path

import pytest

from mlcil.methods.registry import OURS
from mlcil.training.config import make_config

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("method", OURS, ids=lambda method: method.name)
def test_the_digits_benchmark_has_a_configuration_for_every_method(method):
    settings_of = runpy.run_path(str(FOLDER / "digits_methods.py"))["settings_of"]
    config = make_config(settings_of(method.name, method.buffer_use != "none"))
    assert config.settings.method == method.name


def test_the_coco_benchmark_runs_every_method():
    text = (FOLDER / "coco-methods.sh").read_text()
    named = set(re.findall(r"--method (\w+)", text))
    assert named == {method.name for method in OURS}
