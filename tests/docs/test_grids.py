"""The grid files ask for settings that exist."""

from pathlib import Path

import pytest

from mlcil.experiments.plan import file_runs
from mlcil.methods.registry import OURS

FOLDER = Path(__file__).parents[2] / "grids"
GRIDS = sorted(file.name for file in FOLDER.glob("*.yaml"))


def methods_of(*names):
    runs = [run for name in names for run in file_runs(FOLDER / name, [0], {})]
    return {run.config.settings.method for run in runs}


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_has_settings_that_exist(name):
    assert len(file_runs(FOLDER / name, [0, 1], {})) >= 4


def test_every_method_is_in_the_digits_benchmark_and_in_those_of_coco():
    every = {method.name for method in OURS}
    assert methods_of("digits-methods.yaml") == every
    assert methods_of("coco-methods.yaml", "coco-prompts.yaml", "coco-adaptive.yaml") == every
