"""Whole runs: what they write, that they resume to the bit, and that they read no hidden label."""

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from torch import Tensor

from mlcil.core.errors import UserError
from mlcil.data.loading import Batch
from mlcil.data.poison import poisoned
from mlcil.data.protocol import Session
from mlcil.data.sources import load
from mlcil.evaluation.calibration import Calibration
from mlcil.evaluation.metrics import average_precision, expected_calibration_error, f1_scores
from mlcil.evaluation.scores import load_scores
from mlcil.methods.base import Inference, Method, TrainingSet
from mlcil.methods.finetune import FineTuning
from mlcil.methods.registry import all_methods
from mlcil.training import checkpoint_clock, prepare
from mlcil.training import folder as folder_module
from mlcil.training import run as run_module
from mlcil.training.config import make_config
from mlcil.training.loop import SessionTraining
from mlcil.training.run import run
from mlcil.training.states import load_session, load_state

from ..tiny import final_state, outcome, settings

VARIANTS = {
    "ft": settings("ft"),
    "joint": settings("joint", epochs=3),
    "krt": settings("krt"),
    "krt-r": settings("krt", buffer="2", ema=0.9, clip_norm=5.0),
    "er-v": settings("er", buffer="2", validation=0.4, base_lr=1e-2, lr=1e-2),
}


class Still(FineTuning):
    """Trains in its first session alone, and later gives each new class a head of its own by formula."""

    name = "still"

    def trains(self, session: Session) -> bool:
        return session.number == 1

    def before_session(self, session: Session, infer: Inference) -> None:
        super().before_session(session, infer)
        self.tagger.requires_grad_(session.number == 1)  # an optimiser would find nothing to change

    def after_session(self, session: Session, infer: Inference) -> None:
        super().after_session(session, infer)
        if session.number > 1:
            mean = torch.from_numpy(infer(self.pooled, session.indices).mean(axis=0))
            with torch.no_grad():
                for parameter in self.tagger.heads[-1].parameters():
                    parameter.copy_(mean if parameter.ndim > 1 else -mean.square().sum())

    def thresholds(self) -> NDArray[np.float64]:
        return np.linspace(0.2, 0.4, sum(self.tagger.sizes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each variant, run without interruption."""
    base = tmp_path_factory.mktemp("whole")
    for name, values in VARIANTS.items():
        run(make_config(values), base / name)
    return {name: base / name for name in VARIANTS}


def run_twice(values: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch, dies: Callable[[Path], bool]) -> None:
    """Run until `dies` says so of a state file just saved, and then once more to the end."""
    real = folder_module.save_state

    def save_and_die(path: Path, *content: object) -> None:
        real(path, *content)  # type: ignore[arg-type]
        if dies(path):
            raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "save_state", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(make_config(values), out)
    monkeypatch.setattr(folder_module, "save_state", real)
    if (out / "results.json").exists():
        assert not json.loads((out / "results.json").read_text())["finished"]
    assert run(make_config(values), out).finished


def assert_same_outcome(one: Path, other: Path) -> None:
    assert outcome(one) == outcome(other)
    states = final_state(one), final_state(other)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_run_folder_holds_what_it_should(whole: dict[str, Path]) -> None:
    folder = whole["krt-r"]
    results = outcome(folder)
    assert results["finished"]
    assert [len(one["classes"]) for one in results["sessions"]] == [3, 5, 7]
    maps = [one["metrics"]["mAP"] for one in results["sessions"]]
    assert results["last_map"] == maps[-1]
    assert results["average_map"] == pytest.approx(np.mean(maps))
    assert results["sessions"][-1]["classes"] == list("0123456")
    assert results["sessions"][1]["notes"]["threshold"] > 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["options"]["width"] == 16
    launches = json.loads((folder / "environment.json").read_text())["launches"]
    assert launches[0]["seed"] == 0
    assert launches[0]["versions"]["torch"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(one["session"], one["epoch"]) for one in lines if "losses" in one] == [
        (s, e) for s in (1, 2, 3) for e in (1, 2)
    ]
    assert set(lines[-2]["losses"]) == {"classification", "token"}
    found = sorted(path.name for path in folder.glob("session-*/*"))
    counts = {"learning.safetensors": 2, "scores.safetensors": 3, "state.safetensors": 3}
    assert found == [name for name, count in counts.items() for _ in range(count)]


def test_test_scores_are_kept_and_give_the_results_again(whole: dict[str, Path]) -> None:
    scored = load_scores(whole["krt-r"] / "session-03" / "scores.safetensors")
    last = outcome(whole["krt-r"])["sessions"][-1]
    assert list(scored.classes) == last["classes"]
    assert 100 * average_precision(scored.scores, scored.labels) == pytest.approx(list(last["ap"].values()))


def test_a_run_with_a_validation_part_keeps_thresholds_and_temperatures(whole: dict[str, Path]) -> None:
    calibrations = []
    for number, session in enumerate(outcome(whole["er-v"])["sessions"], start=1):
        folder = whole["er-v"] / f"session-{number:02d}"
        calibration = Calibration.from_values(load_state(folder / "state.safetensors")[1]["calibration"])
        found, scored = session["metrics"], load_scores(folder / "scores.safetensors")
        assert list(session["thresholds"]) == session["classes"]
        assert list(session["thresholds"].values()) == calibration.thresholds.tolist()
        assert session["temperature"] == calibration.temperatures[-1]
        f1 = f1_scores(scored.scores, scored.labels, calibration.thresholds)
        names = ("CF1", "CF1 of means", "OF1")
        assert [found[f"{name}@stored"] for name in names] == [100 * value for value in f1]
        probabilities = calibration.probabilities(scored.scores)
        assert found["ECE"] == 100 * expected_calibration_error(scored.scores, scored.labels)
        assert found["ECE calibrated"] == 100 * expected_calibration_error(probabilities, scored.labels)
        calibrations.append(calibration)
    first, _, last = calibrations
    assert [len(one.thresholds) for one in calibrations] == [3, 5, 7]
    assert (last.thresholds[:3] >= first.thresholds).all()  # among more images the old classes are rarer
    assert last.parts[0].scores.tolist() == first.parts[0].scores.tolist()
    assert [len(one.parts) for one in calibrations] == [1, 2, 3]


def test_without_a_validation_part_only_the_error_is_told(whole: dict[str, Path]) -> None:
    for session in outcome(whole["ft"])["sessions"]:
        assert (session["thresholds"], session["temperature"], session["shift"]) == ({}, None, None)
        assert not any("stored" in key or "calibrated" in key for key in session["metrics"])
    assert "calibration" not in load_state(whole["ft"] / "session-03" / "state.safetensors")[1]


def test_the_size_of_what_a_method_keeps_is_told(whole: dict[str, Path]) -> None:
    for name in ("ft", "krt-r"):
        kept = sum(value.numel() * value.element_size() for value in final_state(whole[name]).values())
        assert outcome(whole[name])["sessions"][-1]["bytes_kept"] == kept


def test_images_set_aside_are_never_trained_on_nor_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, measured = [], []
    start, calibrate = SessionTraining.__init__, run_module._Run._calibrate

    def note_training(loop: object, method: object, number: int, training: TrainingSet, *others: object) -> None:
        trained.append(set(training.indices.tolist()))
        start(loop, method, number, training, *others)  # type: ignore[arg-type]

    def note_validation(launch: object, session: Session) -> None:
        measured.append(set(session.validation.indices.tolist()))
        calibrate(launch, session)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionTraining, "__init__", note_training)
    monkeypatch.setattr(run_module._Run, "_calibrate", note_validation)
    run(make_config(VARIANTS["er-v"]), tmp_path / "run")
    assert [len(rows) > 0 for rows in measured] == [True] * 3
    for number, rows in enumerate(measured):
        assert not rows & set().union(*trained[: number + 1])


def test_a_session_without_anything_to_train_is_learned_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(all_methods(), "still", Still)
    values, said = settings("still", epochs=1, validation=0.3), io.StringIO()
    results = run(make_config(values), tmp_path / "whole", Console(file=said, force_terminal=True, width=140))
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [(one["session"], one["epoch"], "mAP" in one) for one in lines] == [
        (1, 1, False),
        (1, 1, True),
        (2, 0, True),
        (3, 0, True),
    ]
    assert all(one.train_seconds > 0 for one in results.sessions)
    assert "session 3/3: 5, 6; " in said.getvalue()
    heads = [value for key, value in final_state(tmp_path / "whole").items() if "heads.2" in key]
    assert heads
    assert all(torch.equal(value, value[:1].expand_as(value)) for value in heads)  # by formula, both classes alike

    run_twice(values, tmp_path / "run", monkeypatch, lambda path: path.parent.name == "session-02")
    assert_same_outcome(tmp_path / "run", tmp_path / "whole")


def test_thresholds_of_the_method_itself_come_before_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(all_methods(), "still", Still)
    for name, part in (("with", 0.3), ("without", 0.0)):
        session = run(make_config(settings("still", epochs=1, validation=part)), tmp_path / name).sessions[1]
        assert list(session.thresholds.values()) == np.linspace(0.2, 0.4, 5).tolist()
        assert (session.temperature is not None) == (part > 0)
        assert "OF1@stored" in session.metrics


def test_pseudo_labels_are_compared_with_the_truth(whole: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in (whole["krt"] / "metrics.jsonl").read_text().splitlines()]
    audits = {one["session"]: one["pseudo_labels"] for one in lines if "pseudo_labels" in one}
    results = outcome(whole["krt"])["sessions"]
    assert set(audits) == {2, 3}
    data = load(VARIANTS["krt"]["data"]).train
    for number, old, new in ((2, "012", "34"), (3, "01234", "56")):
        told, notes = audits[number], results[number - 1]["notes"]
        assert told["threshold"] == notes["threshold"]
        assert told["per_image"] == pytest.approx(notes["pseudo_labels_per_image"])
        columns = {name: data.labels[:, data.classes.index(name)] == 1 for name in data.classes}
        images = np.any([columns[name] for name in new], axis=0)
        assert told["images"] == images.sum()
        assert told["true_per_image"] == pytest.approx(sum(columns[name][images].sum() for name in old) / images.sum())


def test_joint_is_one_session_of_all_classes(whole: dict[str, Path]) -> None:
    results = outcome(whole["joint"])
    assert [len(one["classes"]) for one in results["sessions"]] == [7]
    last = outcome(whole["ft"])["sessions"][-1]
    assert results["sessions"][0]["test_images"] == last["test_images"]
    assert results["sessions"][0]["classes"] == last["classes"]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("saves", [1, 9])
def test_an_interrupted_run_continues_to_the_bit(
    name: str, saves: int, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = VARIANTS[name] | {"checkpoint_seconds": 0.0}  # a checkpoint at every step
    count = itertools.count(1)
    run_twice(values, tmp_path / "run", monkeypatch, lambda path: next(count) % saves == 0)
    assert_same_outcome(tmp_path / "run", whole[name])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (whole[name] / "metrics.jsonl").read_text().splitlines()]
    for one in (*lines, *expected):
        for of_the_machine in ("seconds", "session_seconds", "processor_seconds", "peak_memory_mb"):
            one.pop(of_the_machine, None)
    assert lines == expected


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KRT whose later sessions keep the statistics of batch norm."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    run(make_config(VARIANTS["krt"], {"norm_statistics": "frozen_later"}), folder)
    return folder


def norms(folder: Path, number: int) -> dict[str, dict[str, torch.Tensor]]:
    """What the batch norm layers hold after a session: by kind of tensor and layer."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in load_session(folder / f"session-{number:02d}" / "state.safetensors")[0].items():
        layer, _, kind = key.rpartition(".")
        if layer.startswith("method.tagger.backbone.net.blocks.") and layer.endswith(".1"):
            found.setdefault(kind, {})[layer] = value
    assert set(found) == {"running_mean", "running_var", "num_batches_tracked", "weight", "bias"}
    return found


def test_batch_norm_keeps_its_statistics_in_later_sessions_and_learns_scale_and_shift(
    whole: dict[str, Path], kept: Path
) -> None:
    for folder, moving in ((whole["krt"], {"running_mean", "running_var", "num_batches_tracked"}), (kept, set())):
        for number in (2, 3):
            before, after = norms(folder, number - 1), norms(folder, number)
            for kind, layers in after.items():
                moved = {not torch.equal(value, before[kind][layer]) for layer, value in layers.items()}
                assert moved == {kind in moving | {"weight", "bias"}}, (number, kind)


def test_statistics_kept_in_later_sessions_leave_the_first_as_it_is(whole: dict[str, Path], kept: Path) -> None:
    states = [load_session(folder / "session-01" / "state.safetensors")[0] for folder in (whole["krt"], kept)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert outcome(whole["krt"])["sessions"][0] == outcome(kept)["sessions"][0]
    assert yaml.safe_load((kept / "config.yaml").read_text())["norm_statistics"] == "frozen_later"


@pytest.mark.parametrize("step", [1, 4])
def test_a_session_that_keeps_statistics_continues_to_the_bit(
    step: int, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = VARIANTS["krt"] | {"norm_statistics": "frozen_later", "checkpoint_seconds": 0.0}
    steps = itertools.count(1)

    def dies(path: Path) -> bool:
        return path.parent.name == "session-02" and path.name == "progress.safetensors" and next(steps) == step

    run_twice(values, tmp_path / "run", monkeypatch, dies)
    assert_same_outcome(tmp_path / "run", kept)


@pytest.mark.parametrize(("setting", "later"), [("train", False), ("frozen_later", True)])
def test_a_later_session_trains_with_the_statistics_that_are_there(
    setting: str, later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, set[bool]] = {}

    def compare(method: FineTuning, batch: Batch) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            in_training = method.tagger(batch.images).logits
            in_evaluation = method.tagger.eval()(batch.images).logits
        method.tagger.train()
        found.setdefault(len(method.tagger.sizes), set()).add(torch.equal(in_training, in_evaluation))
        return Method.losses(method, batch)

    monkeypatch.setattr(FineTuning, "losses", compare)
    run(make_config(settings("ft", norm_statistics=setting)), tmp_path / "run")
    assert found == {1: {False}, 2: {later}, 3: {later}}


def test_a_killed_process_continues_to_the_bit(whole: dict[str, Path], tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(VARIANTS["krt-r"] | {"checkpoint_seconds": 0.0, "epochs": 2}))
    command = [sys.executable, "-m", "mlcil", "run", str(file), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 120
    while not (folder / "session-02" / "progress.safetensors").exists() and time.monotonic() < give_up:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert_same_outcome(folder, whole["krt-r"])
    assert len(json.loads((folder / "environment.json").read_text())["launches"]) == 2


@pytest.mark.parametrize(("number", "writes"), [(errno.ENOSPC, 4), (errno.EROFS, 9)])
def test_a_disk_that_refuses_for_a_while_is_one_line_and_costs_nothing(
    number: int, writes: int, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, real = itertools.count(writes, -1), os.replace

    def refuse(*given: Any) -> None:
        if next(left) <= 0:
            raise OSError(number, os.strerror(number))
        real(*given)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match=f"^cannot write .*: {os.strerror(number)}") as caught:
        run(make_config(VARIANTS["ft"]), tmp_path / "run")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(os, "replace", real)
    run(make_config(VARIANTS["ft"]), tmp_path / "run")
    assert_same_outcome(tmp_path / "run", whole["ft"])


def test_a_finished_run_is_not_computed_again(whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionTraining, "run", None)
    before = (whole["krt"] / "results.json").read_bytes()
    run(make_config(VARIANTS["krt"]), whole["krt"])
    assert (whole["krt"] / "results.json").read_bytes() == before


def test_another_configuration_is_refused_with_the_differing_keys(whole: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"lr: 0\.001 -> 0\.01; options\.width: 16 -> 32"):
        run(make_config(VARIANTS["krt"], {"lr": 0.01, "width": 32}), whole["krt"])
    assert outcome(whole["krt"])["finished"]


@pytest.mark.parametrize("name", VARIANTS)
def test_no_hidden_label_is_ever_read(
    name: str, whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prepare.make_protocol

    monkeypatch.setattr(prepare, "make_protocol", lambda *given: poisoned(real(*given)))
    run(make_config(VARIANTS[name]), tmp_path / "run")
    assert_same_outcome(tmp_path / "run", whole[name])


@given(step=st.integers(1, 14), every=st.sampled_from([0.0, 300.0]))
@hypothesis_settings(max_examples=4, deadline=None, derandomize=True)
def test_a_kill_at_any_step_changes_nothing(
    whole: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, step: int, every: float
) -> None:
    out, steps, train = tmp_path_factory.mktemp("killed"), itertools.count(1), SessionTraining._step
    config = make_config(VARIANTS["er-v"], {"checkpoint_seconds": every})

    def dying(training: SessionTraining, *given: Any) -> None:
        if next(steps) == step:
            raise KeyboardInterrupt
        train(training, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionTraining, "_step", dying)
        with pytest.raises(KeyboardInterrupt):
            run(config, out / "run")
    run(config, out / "run")
    assert_same_outcome(out / "run", whole["er-v"])


def test_workers_change_nothing(whole: dict[str, Path], tmp_path: Path) -> None:
    run(make_config(VARIANTS["ft"], {"workers": 2}), tmp_path / "workers")
    assert_same_outcome(tmp_path / "workers", whole["ft"])


def test_accumulated_gradients_equal_those_of_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = settings("ft", backbone="test_vit", image_size=32, epochs=1)  # no batch statistics in a ViT
    seen: dict[str, list[torch.Tensor]] = {}

    def gradients_of(name: str, changes: dict[str, object]) -> list[torch.Tensor]:
        seen[name] = []

        def record(optimiser: torch.optim.Adam, closure: object = None) -> None:
            parameters = [one for group in optimiser.param_groups for one in group["params"]]
            seen[name].append(torch.cat([one.grad.flatten() for one in parameters]))

        monkeypatch.setattr(torch.optim.Adam, "step", record)
        run(make_config(values, changes), tmp_path / name)
        return seen[name]

    whole, parts = gradients_of("whole", {}), gradients_of("parts", {"micro_batch": 3})
    assert len(whole) == len(parts) > 6
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    whole: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, folder, real = (
        VARIANTS["krt"] | {"checkpoint_seconds": 0.0},
        tmp_path / "run",
        folder_module.save_state,
    )

    def full(path: Path, *content: Any) -> None:
        if path.parent.name == "session-02" and path.exists():
            raise UserError(f"cannot write {path}: No space left on device")
        real(path, *content)

    monkeypatch.setattr(folder_module, "save_state", full)
    with pytest.raises(UserError, match="No space left"):
        run(make_config(values), folder)
    monkeypatch.setattr(folder_module, "save_state", real)
    run(make_config(values), folder)
    assert_same_outcome(folder, whole["krt"])


def test_a_loss_that_is_not_finite_names_its_step_and_images_and_the_run_can_go_on(
    tmp_path: Path, whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []
    values = VARIANTS["ft"] | {"checkpoint_seconds": 0.0}

    def overflowing(method: Method, batch: Batch) -> dict[str, Tensor]:
        seen.append(batch)
        return {name: term * (float("inf") if len(seen) >= 3 else 1.0) for name, term in losses(method, batch).items()}

    losses = Method.losses
    monkeypatch.setattr(Method, "losses", overflowing)
    with pytest.raises(UserError) as error:
        run(make_config(values), tmp_path / "run")
    paths = load(values["data"]).train.paths
    names = ", ".join(paths[row] for row in seen[2].indices[:3].tolist())
    place = "session 1, epoch 1, step 3, with 8 images"
    assert str(error.value).startswith(f"the classification loss is not finite: {place}: {names} and 5 more. Lower")
    tensors, state = load_state(tmp_path / "run" / "session-01" / "progress.safetensors")
    assert state["position"]["step"] == 2
    assert all(one.isfinite().all() for one in tensors.values())
    monkeypatch.undo()
    run(make_config(values), tmp_path / "run")
    assert_same_outcome(tmp_path / "run", whole["ft"])


def test_between_two_looks_the_exact_step_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count(1)

    def overflowing(method: Method, batch: Batch) -> dict[str, Tensor]:
        terms = losses(method, batch)
        return terms | {"other": terms["classification"] * (float("nan") if next(steps) == 2 else 0.0)}

    losses = Method.losses
    monkeypatch.setattr(Method, "losses", overflowing)
    with pytest.raises(UserError, match=r"the other loss is not finite: session 1, epoch 1, step 2, with"):
        run(make_config(VARIANTS["ft"]), tmp_path / "run")
    assert next(steps) == 5  # the epoch has four steps, and nothing was looked at before its end


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count(1)

    def spoiled(training: SessionTraining, *given: Any) -> None:
        step(training, *given)
        if next(steps) == 3:
            with torch.no_grad():
                training.method.tagger.heads[0].bias[1] = float("inf")

    step = SessionTraining._step
    monkeypatch.setattr(SessionTraining, "_step", spoiled)
    with pytest.raises(UserError, match=r"the weights are not finite \(heads.0.bias\): session 1, epoch 1, step 3\."):
        run(make_config(VARIANTS["ft"] | {"checkpoint_seconds": 0.0}), tmp_path / "run")
    tensors, _ = load_state(tmp_path / "run" / "session-01" / "progress.safetensors")
    assert all(one.isfinite().all() for one in tensors.values())


def test_a_learning_rate_that_is_far_too_high_stops_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"classification loss is not finite: session 1, epoch 1, step \d, with 8 images"
    ):
        run(make_config(settings("ft", base_lr=1e30, weight_decay=0.0)), tmp_path / "run")


def test_frozen_stages_can_be_computed_once(tmp_path: Path) -> None:
    values = settings("krt", freeze="2", epochs=1, cache=str(tmp_path / "cache"), keep_features=True)
    run(make_config(values), tmp_path / "first")
    kept = sorted(file for file in (tmp_path / "cache").glob("features-*/*/*"))
    each = 4 * 4 * 64 * 2  # bytes
    # Test images; training images and their mirror images. Each file ends with a checksum of four bytes.
    assert sorted(file.stat().st_size for file in kept) == [each + 4] * 40 + [2 * each + 4] * 48
    files = [file.stat().st_ino for file in kept]
    run(make_config(values), tmp_path / "second")
    assert [file.stat().st_ino for file in kept] == files  # not written again
    assert_same_outcome(tmp_path / "first", tmp_path / "second")
    with pytest.raises(UserError, match="cache_gb"):
        run(make_config(values, {"cache_gb": 1e-5, "cache": str(tmp_path / "other")}), tmp_path / "third")


def test_a_mistyped_command_can_be_corrected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown backbone"):
        run(make_config(settings("ft", backbone="resnt")), tmp_path / "run")
    assert run(make_config(settings("ft", epochs=1)), tmp_path / "run").finished


def test_a_first_session_that_cannot_be_measured_is_refused_before_training(tmp_path: Path) -> None:
    rows = [
        f"{number}.png,{'cat' if number < 8 else 'dog'},{'train' if number < 12 else 'test'}" for number in range(16)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,labels,split", *rows]))
    for number in range(16):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"{number}.png")
    changes = {"data": f"table:{tmp_path / 'table.csv'}", "protocol": "cat|dog", "cache": None}
    with pytest.raises(UserError, match=r"no test image shows any class of the first session \(cat\)"):
        run(make_config(settings("ft", **changes)), tmp_path / "run")


def test_what_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    values = settings("ft", epochs=1)
    run(make_config(values), tmp_path / "run")
    orphans = [
        tmp_path / "run" / "session-01" / name for name in (".state.safetensors.x.partial", "progress.safetensors")
    ]
    for orphan in orphans:
        orphan.write_bytes(b"half")
    run(make_config(values), tmp_path / "run")
    assert not any(orphan.exists() for orphan in orphans)


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(make_config(settings("ft", epochs=1, tensorboard=True)), tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


@pytest.mark.parametrize(("short", "saves"), [(1000.0, 0), (0.0, 3)])
def test_the_end_of_an_epoch_is_saved_unless_repeating_it_is_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: float, saves: int
) -> None:
    saved, real = [], folder_module.save_state
    monkeypatch.setattr(checkpoint_clock, "SHORT", short)
    monkeypatch.setattr(folder_module, "save_state", lambda path, *given: (saved.append(path.name), real(path, *given)))
    run(make_config(settings("ft", epochs=3, protocol="0,1")), tmp_path / "run")
    assert saved.count("progress.safetensors") == saves  # the last one too: what comes after training may take long
    assert saved.count("state.safetensors") == 1
