"""What the words of `mlcil grid` stand for, and what it prints."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mlcil.cli.grid import requested_runs
from mlcil.cli.grid_view import grid_view
from mlcil.core.errors import UserError
from mlcil.experiments.grid import Grid, GridRun


def request(**given: Any) -> list[GridRun]:
    nothing = {"file": None, "only": None, "preset_group": None, "presets": None, "methods": None}
    return requested_runs(**{**nothing, "protocols": "B0-C2", "seeds": "0", "changes": {}, **given})


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [
        ("B0-C2,B4-C2", ["B0-C2", "B4-C2"]),
        ("0,1|2,3", ["0,1|2,3"]),
        ("B0-C2; 0,1|2,3", ["B0-C2", "0,1|2,3"]),
    ],
)
def test_protocols_are_divided_by_commas_or_semicolons(protocols: str, expected: list[str]) -> None:
    runs = request(methods="ft", protocols=protocols)
    assert [run.config.settings.protocol for run in runs] == expected


def test_presets_by_name_come_in_the_order_given() -> None:
    names = ["coco-b0-c10/krt", "coco-b0-c10/ft"]
    runs = request(presets=",".join(names), changes={"data": "coco:x"}, seeds="1,0")
    assert [(run.config.settings.preset, run.config.settings.seed) for run in runs] == [
        (name, seed) for name in names for seed in (1, 0)
    ]


def test_an_empty_word_is_a_mistake() -> None:
    with pytest.raises(UserError, match="got 'ft,,er', expected names separated by ','"):
        request(methods="ft,,er")


@pytest.mark.parametrize(("last", "says"), [(81.25, "last mAP 81.2"), (0.0, "last mAP 0.0"), (None, "no mAP")])
def test_a_run_that_ends_is_named_with_its_map(tmp_path: Path, last: float | None, says: str) -> None:
    grid, output = Grid(request(methods="ft,er:2"), tmp_path), io.StringIO()
    one = grid.progress[0]
    one.status, one.last_map, one.seconds = "done", last, 3.0
    with grid_view(grid, Console(file=output, width=200)) as watch:
        watch(one)
    assert f"{one.run.name}: done, {says}, 3 s; 1/2 done, 1 waiting" in output.getvalue()
