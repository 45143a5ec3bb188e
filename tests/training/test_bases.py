"""A first session that another run trained is as good as one's own, to the bit, and never taken by mistake."""

import errno
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning_fabric import Fabric

from mlcil.core.errors import UserError
from mlcil.testing import check_base
from mlcil.training import folder as folder_module
from mlcil.training.bases import SharedBase
from mlcil.training.config import make_config
from mlcil.training.loop import SessionTraining
from mlcil.training.run import run

from ..tiny import KRT, final_state, outcome, settings


def go(tmp_path, name, method, **changes):
    bases = str(tmp_path / "bases")
    run(make_config(settings(method, bases=bases, **changes)), tmp_path / name)
    return tmp_path / name


def shared(tmp_path):
    return sorted((tmp_path / "bases").glob("*.safetensors"))


def same_state(one, other):
    ours, theirs = final_state(one), final_state(other)
    return ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)


@pytest.fixture
def trained_epochs(monkeypatch):
    """Which sessions were really trained, in order."""
    sessions, real = [], SessionTraining.run

    def counting(self, *given):
        sessions.append(self.number)
        return real(self, *given)

    monkeypatch.setattr(SessionTraining, "run", counting)
    return sessions


def test_another_method_takes_the_first_session_over_and_ends_the_same(tmp_path, trained_epochs):
    go(tmp_path, "ft", "ft")
    taken = go(tmp_path, "er", "er", buffer="2")
    assert trained_epochs == [1, 2, 3, 2, 3]
    run(make_config(settings("er", buffer="2")), tmp_path / "alone")
    assert outcome(taken) == outcome(tmp_path / "alone")
    assert same_state(taken, tmp_path / "alone")


def test_the_log_of_the_first_session_comes_along(tmp_path):
    lines = [(go(tmp_path, name, name) / "metrics.jsonl").read_text().splitlines() for name in ("ft", "lwf")]
    first = [[one for one in map(json.loads, part) if one["session"] == 1 and "losses" in one] for part in lines]
    assert len(first[0]) == 2
    assert first[0] == first[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"base_lr": 2e-3},
        {"base_epochs": 1},
        {"protocol": "0,1|2,3"},
        {"options": {"missing": "ignore"}},
        {"norm_statistics": "frozen"},
    ],
)
def test_what_changes_the_first_session_is_not_shared(tmp_path, changes):
    go(tmp_path, "one", "ft")
    go(tmp_path, "other", "ft", **changes)
    assert len(shared(tmp_path)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": 5e-4},
        {"epochs": 1, "base_epochs": 2},
        {"protocol": "0,1,2|5,6"},
        {"norm_statistics": "frozen_later"},
    ],
)
def test_what_changes_later_sessions_only_is(tmp_path, changes):
    go(tmp_path, "one", "ft")
    go(tmp_path, "other", "ft", **changes)
    assert len(shared(tmp_path)) == 1


@pytest.mark.parametrize("options", [{"heads": 2}, {"attend_to_kt": False}, {"first_head": "normal"}])
def test_a_model_that_starts_or_computes_otherwise_is_another(tmp_path, options):
    go(tmp_path, "one", "krt", protocol="0,1")
    go(tmp_path, "other", "krt", protocol="0,1", options=KRT | options)
    assert len(shared(tmp_path)) == 2


def test_a_first_session_that_was_interrupted_is_shared_all_the_same(tmp_path, monkeypatch):
    real = folder_module.save_state

    def stopping(file, *given):
        real(file, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "save_state", stopping)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, "ft", "ft", protocol="0,1", checkpoint_seconds=0.0)
    monkeypatch.setattr(folder_module, "save_state", real)
    assert not shared(tmp_path)
    go(tmp_path, "ft", "ft", protocol="0,1")
    assert len(shared(tmp_path)) == 1


def test_the_configuration_that_is_kept_leads_to_no_shared_folder(tmp_path):
    stored = yaml.safe_load((go(tmp_path, "ft", "ft", protocol="0,1") / "config.yaml").read_text())
    assert stored["bases"] is None


def test_another_model_has_another_first_session(tmp_path):
    go(tmp_path, "ft", "ft")
    go(tmp_path, "krt", "krt")
    assert len(shared(tmp_path)) == 2


@pytest.mark.parametrize(
    ("method", "changes"), [("bic", {}), ("prs", {}), ("er", {"options": {"selection": "reservoir"}})]
)
def test_a_method_whose_first_session_is_its_own_shares_nothing(tmp_path, method, changes):
    go(tmp_path, method, method, buffer="2", **changes)
    assert not shared(tmp_path)


def test_of_runs_that_start_together_one_trains_and_the_others_wait(tmp_path):
    said, order, fabric = [], [], Fabric(accelerator="cpu")
    methods = [SimpleNamespace(tagger=torch.nn.Linear(2, 2)) for _ in range(2)]
    first, second = (SharedBase(tmp_path / "base.safetensors", method, fabric) for method in methods)

    def wait_and_take():
        with second.claim(said.append):
            order.append(second.take(said.append))

    with first.claim(said.append):
        assert first.take(said.append) is None
        thread = threading.Thread(target=wait_and_take)
        thread.start()
        while not said:
            time.sleep(0.01)
        order.append("trained")
        first.give(lambda: {"seconds": 3})
    thread.join()
    assert order == ["trained", {"seconds": 3}]
    assert methods[1].tagger.weight.equal(methods[0].tagger.weight)
    assert "waiting" in said[0]


def test_a_damaged_first_session_is_trained_again(tmp_path, trained_epochs):
    go(tmp_path, "ft", "ft", protocol="0,1")
    (file,) = shared(tmp_path)
    sound = file.read_bytes()
    file.write_bytes(sound[:-9] + bytes([sound[-9] ^ 1]) + sound[-8:])
    assert same_state(go(tmp_path, "again", "ft", protocol="0,1"), tmp_path / "ft")
    assert trained_epochs == [1, 1]
    assert sorted(one.suffix for one in (tmp_path / "bases").iterdir()) == [".damaged", ".lock", ".safetensors"]


def test_a_damaged_first_session_that_nobody_may_rename_is_left(tmp_path, trained_epochs, monkeypatch):
    go(tmp_path, "ft", "ft", protocol="0,1")
    (file,) = shared(tmp_path)
    file.write_bytes(damaged := file.read_bytes()[:-9])

    def refuse(self, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", refuse)
    assert same_state(go(tmp_path, "again", "ft", protocol="0,1"), tmp_path / "ft")
    assert trained_epochs == [1, 1]
    assert file.read_bytes() == damaged


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path):
    (tmp_path / "bases").write_text("a file")
    with pytest.raises(UserError, match="cannot use folder .*bases"):
        go(tmp_path, "ft", "ft")


def test_the_check_of_methods_finds_a_false_promise(tmp_path):
    from mlcil.methods.finetune import FineTuning
    from mlcil.testing import _known, _Trial

    class Boasting(FineTuning):
        name = "boasting"

        def losses(self, batch):
            return {name: 2 * term for name, term in super().losses(batch).items()}

    with _known(Boasting), pytest.raises(AssertionError, match="base_is_finetuning"):
        check_base(_Trial(Boasting, {}, tmp_path))
