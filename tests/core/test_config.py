import dataclasses
import json
from dataclasses import dataclass

import pytest
import yaml

from mlcil.core.config import About, about, as_dict, build, describe, identity, option, option_names, with_default
from mlcil.core.errors import UserError


@dataclass(frozen=True)
class Shape:
    epochs: int = option(20, "rounds", low=1, paper="section 1")
    rate: float = option(0.1, "speed", low=0, high=1)
    offset: float = option(0.0, "anything")
    name: str = option("disc", "what it is called")
    kind: str = option("flat", "how it is", choices=("flat", "round", "none"))
    limit: int | None = option(None, "at most", low=2)
    folder: str | None = option("auto", "where")
    fast: bool = option(False, "hurry", machine=True)
    workers: int = option(0, "processes", high=8, machine=True)
    seed: int = option(0, "start", low=0, high=2**31 - 1, flag=True)


@pytest.mark.parametrize(
    ("key", "given", "wanted"),
    [
        ("epochs", "3", 3),
        ("epochs", 3, 3),
        ("epochs", 3.0, 3),
        ("rate", "1e-4", 1e-4),
        ("rate", 1, 1.0),
        ("rate", 0, 0.0),
        ("offset", "-2.5", -2.5),
        ("name", "ball", "ball"),
        ("name", 12, "12"),
        ("name", 0.5, "0.5"),
        ("name", "none", "none"),  # a text that may not be missing is taken as it is
        ("kind", "none", "none"),
        ("limit", "none", None),
        ("limit", None, None),
        ("limit", "7", 7),
        ("folder", "none", None),
        ("folder", None, None),
        ("folder", "here", "here"),
        ("fast", True, True),
        ("fast", "true", True),
        ("fast", "Yes", True),
        ("fast", "on", True),
        ("fast", "false", False),
        ("fast", "NO", False),
        ("fast", "off", False),
        ("workers", -1, -1),
    ],
)
def test_build_takes_text_and_plain_values(key, given, wanted):
    value = getattr(build(Shape, {key: given}, "settings"), key)
    assert value == wanted
    assert type(value) is type(wanted)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("rate: 1e-4", 1e-4), ("rate: 4.0e-05", 4e-5), ("epochs: 5", 5), ("limit:", None), ("fast: yes", True)],
)
def test_build_takes_what_yaml_makes_of_it(line, wanted):
    values = yaml.safe_load(line)
    assert getattr(build(Shape, values, "settings"), *values) == wanted


def test_what_is_not_given_keeps_its_default():
    assert build(Shape, {}, "settings") == Shape()
    assert build(Shape, {"epochs": 1}, "settings") == dataclasses.replace(Shape(), epochs=1)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("epochs", "many", "run.yaml: epochs: got 'many', expected a whole number"),
        ("epochs", "2.5", "run.yaml: epochs: got '2.5', expected a whole number"),
        ("epochs", 2.5, "run.yaml: epochs: got 2.5, expected a whole number"),
        ("epochs", float("inf"), "run.yaml: epochs: got inf, expected a whole number"),
        ("epochs", True, "run.yaml: epochs: got True, expected a whole number"),
        ("epochs", [1], "run.yaml: epochs: got [1], expected a whole number"),
        ("epochs", "none", "run.yaml: epochs: got 'none', expected a whole number"),
        ("epochs", None, "run.yaml: epochs needs a value"),
        ("epochs", 0, "run.yaml: epochs: got 0, expected at least 1"),
        ("limit", "1", "run.yaml: limit: got 1, expected at least 2"),
        ("limit", True, "run.yaml: limit: got True, expected a whole number"),
        ("rate", False, "run.yaml: rate: got False, expected a number"),
        ("rate", "fast", "run.yaml: rate: got 'fast', expected a number"),
        ("rate", "nan", "run.yaml: rate: got 'nan', expected a number"),
        ("rate", -0.5, "run.yaml: rate: got -0.5, expected 0 to 1"),
        ("rate", "1.5", "run.yaml: rate: got 1.5, expected 0 to 1"),
        ("offset", float("nan"), "run.yaml: offset: got nan, expected a number"),
        ("offset", "-inf", "run.yaml: offset: got '-inf', expected a number"),
        ("offset", 10**400, f"run.yaml: offset: got {10**400}, expected a number"),
        ("workers", 9, "run.yaml: workers: got 9, expected at most 8"),
        ("name", True, "run.yaml: name: got True, expected text"),
        ("name", None, "run.yaml: name needs a value"),
        ("name", {"a": 1}, "run.yaml: name: got {'a': 1}, expected text"),
        ("kind", "square", "run.yaml: kind: got 'square', expected one of flat, round, none"),
        ("fast", "perhaps", "run.yaml: fast: got 'perhaps', expected true or false"),
        ("fast", 1, "run.yaml: fast: got 1, expected true or false"),
        ("fast", None, "run.yaml: fast needs a value"),
    ],
)
def test_build_says_what_is_wrong_in_one_line(key, given, message):
    with pytest.raises(UserError) as caught:
        build(Shape, {key: given}, "run.yaml")
    assert str(caught.value) == message


def test_build_refuses_an_unknown_key_and_suggests():
    names = ", ".join(sorted(option_names(Shape)))
    with pytest.raises(UserError) as caught:
        build(Shape, {"epoch": 3}, "run.yaml")
    assert str(caught.value) == f"unknown key in run.yaml 'epoch', did you mean 'epochs'? Allowed: {names}"
    with pytest.raises(UserError) as caught:
        build(Shape, {7: 3}, "run.yaml")
    assert str(caught.value) == f"unknown key in run.yaml 7. Allowed: {names}"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (About("x"), ""),
        (About("x", low=1), "at least 1"),
        (About("x", high=0.5), "at most 0.5"),
        (About("x", low=0, high=1e-4), "0 to 0.0001"),
        (About("x", choices=("a", "b")), "one of a, b"),
    ],
)
def test_allowed_in_words(known, words):
    assert known.allowed() == words


def test_about_gives_back_what_option_took():
    (epochs, *_) = dataclasses.fields(Shape)
    assert about(epochs) == About("rounds", None, 1, None, "section 1", False)
    assert option_names(Shape)[:3] == ("epochs", "rate", "offset")


def test_options_are_described_in_words():
    rows = {row.key: row for row in describe(Shape)}
    assert rows["epochs"] == ("epochs", "20", "at least 1", "rounds", "section 1")
    words = {key: (row.default, row.allowed) for key, row in rows.items()}
    assert words["offset"] == ("0.0", "a number")
    assert words["kind"] == ("flat", "one of flat, round, none")
    assert words["limit"] == ("none", "at least 2, or none")
    assert words["folder"] == ("auto", "text, or none")
    assert words["fast"] == ("false", "true or false")
    assert words["seed"] == ("0", "0 to 2147483647")
    assert build(Shape, {row.key: row.default for row in rows.values()}, "again") == Shape()


def test_as_dict_is_plain_and_builds_the_same_again():
    values = as_dict(Shape(limit=3))
    assert list(values) == list(option_names(Shape))
    assert json.loads(json.dumps(values)) == values
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    assert build(Shape, values, "again") == Shape(limit=3)


def test_identity_leaves_the_machine_out():
    values = identity(Shape())
    assert set(option_names(Shape)) - set(values) == {"fast", "workers"}
    assert identity(Shape(fast=True, workers=3)) == values
    assert identity(Shape(epochs=3)) != values


@dataclass(frozen=True)
class Ball(Shape):
    kind: str = with_default(Shape, "kind", "round", choices=["round", "none"])
    epochs: int = with_default(Shape, "epochs", 5)


def about_of(config, name):
    return about(next(field for field in dataclasses.fields(config) if field.name == name))


def test_another_default_keeps_all_else():
    assert dataclasses.replace(Shape(), kind="round", epochs=5) == Shape(**vars(Ball()))
    assert about_of(Ball, "epochs") == about_of(Shape, "epochs")
    assert option_names(Ball) == option_names(Shape)  # in the place it had
    with pytest.raises(UserError, match="epochs: got 0, expected at least 1"):
        build(Ball, {"epochs": 0}, "x")


def test_another_default_may_narrow_the_choices():
    assert about_of(Ball, "kind") == dataclasses.replace(about_of(Shape, "kind"), choices=("round", "none"))
    assert about_of(Shape, "kind").choices == ("flat", "round", "none")  # the original is left alone
    assert build(Ball, {"kind": "none"}, "x").kind == "none"
    with pytest.raises(UserError, match="kind: got 'flat', expected one of round, none$"):
        build(Ball, {"kind": "flat"}, "x")
    assert build(Shape, {"kind": "flat"}, "x").kind == "flat"
