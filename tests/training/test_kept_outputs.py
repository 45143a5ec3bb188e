"""Whole runs that ask the old model once: the same results as asking it at every step, also after an interruption."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mlcil.data.loading import Batch
from mlcil.methods.base import Method
from mlcil.models.tagger import Output, TaggerNet
from mlcil.training import folder as folder_module
from mlcil.training import loop
from mlcil.training.config import make_config
from mlcil.training.run import run

from ..tiny import final_state, outcome, settings

KEPT: dict[str, Any] = {"freeze": "2", "keep_features": True, "epochs": 3}
RUNS = {
    "krt": settings("krt", **KEPT),
    "krt-r": settings("krt", **KEPT, buffer="2", micro_batch=3),
    "lwf": settings("lwf", **KEPT | {"freeze": "all"}),
}


def assert_same(one: Path, other: Path) -> None:
    assert outcome(one) == outcome(other)
    states = final_state(one), final_state(other)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each run, uninterrupted, and the cache of features that all runs share."""
    base = tmp_path_factory.mktemp("whole")
    for name, values in RUNS.items():
        run(make_config(values, {"cache": str(base / "cache")}), base / name)
    return base


def ask_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the old model at every step, each time about 32 images, as many as are asked about beforehand."""

    def asked(self: Method, batch: Batch) -> Output:
        assert self.teacher is not None
        assert self.kept is None
        images = batch.images
        with torch.no_grad():
            whole: Output = self.teacher(torch.cat([images, images.new_zeros(32 - len(images), *images.shape[1:])]))
        return Output(*(values[: len(images)] for values in whole[:3]))

    monkeypatch.setattr(loop, "keep_outputs", lambda *given: None)
    monkeypatch.setattr(Method, "teacher_output", asked)


@pytest.mark.parametrize("name", RUNS)
def test_asking_once_and_in_every_step_give_the_same_bits(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_in_steps(monkeypatch)
    run(make_config(RUNS[name], {"cache": str(whole / "cache")}), tmp_path / "run")
    assert_same(tmp_path / "run", whole / name)


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_session_asks_again_and_continues_to_the_bit(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(RUNS[name], {"cache": str(whole / "cache"), "checkpoint_seconds": 0.0})
    real = folder_module.save_state

    def save_and_die(path: Path, tensors: dict[str, torch.Tensor], values: dict[str, Any], *rest: Any) -> None:
        real(path, tensors, values, *rest)
        position = values.get("position", {"epoch": 0})
        if path.parent.name == "session-02" and position["epoch"] == 1 and position["step"] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "save_state", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run")
    assert run(config, tmp_path / "run").finished
    assert_same(tmp_path / "run", whole / name)


@pytest.mark.parametrize(("changes", "is_kept"), [({}, True), ({"epochs": 2}, False), ({"augment": "none"}, True)])
def test_the_old_model_is_asked_beforehand_only_where_steps_would_ask_more_often(
    changes: dict[str, Any], is_kept: bool, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    left: list[bool] = []
    real, finish = TaggerNet.forward, loop.SessionTraining._finish

    def forward(self: TaggerNet, images: torch.Tensor) -> Output:
        if not any(one.requires_grad for one in self.parameters()) and not torch.is_inference_mode_enabled():
            asked.append(len(images))
        return real(self, images)

    def finished(self: loop.SessionTraining) -> None:
        left.append(self.method.kept is not None)
        finish(self)
        assert self.method.kept is None

    monkeypatch.setattr(TaggerNet, "forward", forward)
    monkeypatch.setattr(loop.SessionTraining, "_finish", finished)
    config = make_config(RUNS["krt"], changes | {"cache": str(whole / "cache")})
    result = run(config, tmp_path / "run")
    assert left == [False, is_kept, is_kept]
    images = [one.images for one in result.sessions[1:]]
    views = 1 if changes.get("augment") == "none" else 2
    steps = [-(-count // 8) * config.settings.epochs for count in images]
    assert len(asked) == (sum(1 + views * -(-count // 32) for count in images) if is_kept else sum(steps))
