"""The rows of KRT's ablation table: each has exactly the parts that the table says."""

import dataclasses

import pytest
import torch

from mlcil.memory.buffer import Budget
from mlcil.methods.krt import KRT, KRTConfig
from mlcil.methods.pseudo_labels import Threshold
from mlcil.methods.registry import method_class
from mlcil.training.config import make_config

# METHODS.md, 2.15: cross-attention, pseudo labels, terms beside the classification.
TABLE = {
    "kd": (False, False, {"feature"}),
    "krt_without_dpl": (True, False, {"token"}),
    "krt_without_ica": (False, True, set()),
    "krt_with_kd": (True, True, {"token", "kd"}),
    "krt": (True, True, {"token"}),
}
CHANGED = {"krt_without_dpl": ("dpl", False), "krt_without_ica": ("ica", False), "krt_with_kd": ("kd", True)}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("budget", [Budget(), Budget(per_class=2)])
def test_each_row_has_the_parts_of_the_table(world, name, budget):
    attention, pseudo_labels, terms = TABLE[name]
    first, second = world.sessions()[:2]
    method = world.make(name, budget)
    world.learn(first)
    method.before_session(second, world.infer)
    assert set(method.losses(world.batch(second))) == {"classification"} | terms
    assert (method.tagger.attention is not None) == attention
    assert ("threshold" in method.notes()) == pseudo_labels
    assert any(not one.requires_grad for one in method.tagger.parameters()) == attention


@pytest.mark.parametrize("name", CHANGED)
def test_one_option_differs_from_krt(name):
    method, (option, value) = method_class(name), CHANGED[name]
    assert issubclass(method, KRT)
    assert (method.name, method.family, method.buffer_use) == (name, KRT.family, "optional")
    ours, theirs = dataclasses.asdict(method.Config()), dataclasses.asdict(KRTConfig())
    assert {key: one for key, one in ours.items() if one != theirs[key]} == {option: value}
    assert list(ours) == list(theirs)
    assert make_config({"method": name}).options == method.Config()
    assert getattr(make_config({"method": name}, {option: str(not value)}).options, option) is not value


def trained(world, name, **options):
    method = world.make(name, **options)
    for session in world.sessions():
        torch.manual_seed(session.number)
        world.learn(session, 3)
    return method.tagger.state_dict()


def set_threshold(monkeypatch, value):
    monkeypatch.setattr("mlcil.methods.krt.find_threshold", lambda scores, target, start: Threshold(value, 0.0, False))


@pytest.mark.parametrize("pseudo", ["online", "fixed"])
def test_without_ica_an_unreachable_threshold_gives_the_plain_trainer(world, pseudo, monkeypatch):
    plain = trained(world, "ft")
    set_threshold(monkeypatch, 1.0)
    never = trained(world, "krt_without_ica", pseudo=pseudo)
    assert set(never) == set(plain)
    assert all(torch.equal(never[key], one) for key, one in plain.items())
    set_threshold(monkeypatch, 0.0)
    always = trained(world, "krt_without_ica", pseudo=pseudo)
    assert not torch.equal(always["heads.0.weight"], plain["heads.0.weight"])
