"""A grid of real, tiny runs: it finishes, survives Ctrl-C and a failure, and gives the same numbers whoever runs it."""

import json
from types import SimpleNamespace

import pytest
import yaml
from PIL import Image
from tests.signals import interrupt
from tests.tiny import outcome
from typer.testing import CliRunner

from mlcil import testing as checks
from mlcil.cli.app import app
from mlcil.core.errors import UserError
from mlcil.core.locks import file_lock
from mlcil.experiments.grid import GRID_FILE, Grid, GridRun
from mlcil.experiments.plan import method_runs
from mlcil.training.config import make_config
from mlcil.training.run import run

TINY = {key: value for key, value in checks.TINY.items() if key != "protocol"}


def plan(methods, seeds=(0,), **changes):
    return method_runs(methods, ["B4-C3"], seeds, TINY | changes)


def results(out):
    """The outcome of every run below a folder."""
    return {str(one.parent.relative_to(out)): outcome(one.parent) for one in sorted(out.rglob("results.json"))}


def states(out):
    return {one["name"]: one["status"] for one in json.loads((out / GRID_FILE).read_text())["runs"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A grid of two methods, run to its end with a run in it that fails."""
    out = tmp_path_factory.mktemp("grid") / "whole"
    runs = plan(["ft", "lwf"])
    broken = make_config({**TINY, "method": "ft", "protocol": "B4-C3", "clip_norm": 1, "lr": 1e30, "base_lr": 1e30})
    grid = Grid([GridRun("broken", broken), *runs], out, jobs=2)
    grid.execute()
    return grid


def test_one_failure_stops_none_of_the_others(finished):
    assert states(finished.out) == {
        "broken": "failed",
        "B4-C3/ft/seed-0": "done",
        "B4-C3/lwf/seed-0": "done",
    }
    (failed,) = finished.of_status("failed")
    assert "loss is not finite" in failed.error
    assert "\n" not in failed.error


def test_a_run_of_a_grid_is_that_of_the_same_command_alone(finished, tmp_path):
    name = "B4-C3/lwf/seed-0"  # whose first session another run has trained
    (one,) = [progress for progress in finished.progress if progress.run.name == name]
    run(one.run.config, tmp_path / "alone")
    assert results(tmp_path / "alone")["."] == results(finished.out)[name]
    assert one.last_map == pytest.approx(results(tmp_path / "alone")["."]["last_map"])


def test_first_sessions_are_trained_once(finished):
    assert len(list((finished.out / "bases").glob("*.safetensors"))) == 1
    taken = [
        name
        for name in ("ft", "lwf")
        if "is taken from" in (finished.out / f"logs/B4-C3/{name}/seed-0.log").read_text()
    ]
    assert len(taken) == 1


def test_what_is_done_is_not_run_again(finished):
    changed = []
    again = Grid(plan(["ft", "lwf"]), finished.out, jobs=2)
    again.execute(watch=changed.append)
    assert changed == []
    assert set(states(finished.out).values()) == {"done"}


class InThisProcess:
    """An engine that carries out a run while it starts it."""

    def start(self, work, slot):
        run(make_config(yaml.safe_load(work.config.read_text())), work.out)
        return SimpleNamespace(ended=lambda: "")

    def close(self):
        pass


def test_a_finished_run_without_a_map_is_done(tmp_path, monkeypatch):
    rows = ["path,labels,split"]
    for number in range(8):
        Image.new("RGB", (16, 16), (30 * number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,a;b,{('train', 'test')[number % 2]}")  # every image shows every class
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    changes = {"data": str(tmp_path / "labels.csv"), "epochs": 1, "cache": "none"}
    runs = method_runs(["ft"], ["a|b"], [0], TINY | changes)
    monkeypatch.setattr("mlcil.experiments.grid.make_engine", lambda name, processors: InThisProcess())
    changed = []
    for _ in range(2):
        grid = Grid(runs, tmp_path / "grid")
        grid.execute(watch=lambda one: one and changed.append(one.status))
        assert [(one.status, one.last_map) for one in grid.progress] == [("done", None)]
    assert changed == ["running", "done"]  # nothing the second time


def test_another_configuration_is_not_taken_for_done(finished):
    grid = Grid(plan(["ft"], epochs=1), finished.out)
    assert [one.status for one in grid.progress] == ["waiting"]


def test_the_same_grid_on_ray_gives_the_same_numbers(finished, tmp_path):
    pytest.importorskip("ray", reason="needs the extra mlcil[ray]")
    runs = plan(["ft", "lwf"])
    grid = Grid(runs, tmp_path / "ray", jobs=2)
    grid.execute("ray")
    assert set(states(grid.out).values()) == {"done"}
    expected = results(finished.out)
    assert results(grid.out) == {one.name: expected[one.name] for one in runs}


def test_an_interrupted_grid_takes_its_runs_along_and_is_continued(finished, tmp_path):
    out = tmp_path / "cut"
    listed = {"settings": TINY | {"protocol": "B4-C3"}, "runs": {"ft": {"method": "ft"}}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(listed))
    command = ["grid", str(tmp_path / "grid.yaml"), "--out", str(out)]
    assert interrupt(command, out / "ft/seed-0/session-01/state.safetensors") == (
        "mlcil: interrupted; 0 of 1 runs are done, 1 in progress keeps its checkpoints; "
        "the same command goes on from there\n"
    )
    log = (out / "logs/ft/seed-0.log").read_text()
    assert "session 1/" in log
    assert "Traceback" not in log
    assert states(out)["ft/seed-0"] == "running"  # ended as if it had been killed
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert set(states(out).values()) == {"done"}
    assert results(out) == {"ft/seed-0": results(finished.out)["B4-C3/ft/seed-0"]}
    assert "session 1/" not in (out / "logs/ft/seed-0.log").read_text()[len(log) :]  # it was kept
    assert (out / "report" / "index.html").exists()


def test_two_grids_do_not_share_a_folder(tmp_path):
    grid = Grid(plan(["ft"]), tmp_path / "grid")
    with file_lock(tmp_path / "grid" / ".lock", pytest.fail), pytest.raises(UserError, match="another grid is using"):
        grid.execute()


def test_a_grid_needs_runs_of_different_names(tmp_path):
    with pytest.raises(UserError, match="no runs"):
        Grid([], tmp_path)
    for name in ("../elsewhere", "/elsewhere", " "):
        with pytest.raises(UserError, match="must not lead out"):
            Grid([GridRun(name, plan(["ft"])[0].config)], tmp_path)
    with pytest.raises(UserError, match="same name: B4-C3/ft/seed-0"):
        Grid([*plan(["ft"]), *plan(["ft"])], tmp_path)


def test_a_run_that_cannot_be_started_ends_the_grid_by_its_own_error(tmp_path):
    (tmp_path / "logs").write_text("a file")
    grid = Grid(plan(["ft"]), tmp_path)
    with pytest.raises(UserError, match="logs"):
        grid.execute()
    assert [one.status for one in grid.progress] == ["waiting"]


def test_the_time_left_is_guessed_from_what_ended(tmp_path):
    grid = Grid(plan(["ft"], range(5)), tmp_path, jobs=2)
    assert grid.seconds_left() is None
    done, running, *_ = grid.progress
    done.status, done.seconds = "done", 10.0
    running.status, running.seconds = "running", 4.0
    assert grid.seconds_left() == (6 + 3 * 10) / 2
