"""The pages of the methods say what the code does: options and defaults, links, commands."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlcil.cli import app as cli
from mlcil.core.config import about, build, option_names
from mlcil.methods.base import MethodConfig
from mlcil.methods.krt import KRTConfig
from mlcil.methods.registry import OURS
from mlcil.methods.rehearsal import RehearsalConfig
from mlcil.training.config import RunSettings, make_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "methods"
METHODS = {method.name: method for method in OURS}
ABLATIONS = ("krt_without_dpl", "krt_without_ica", "krt_with_kd")  # they are on KRT's page
WITH_PAGE = [name for name in METHODS if name not in ABLATIONS]
TEXTS = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text: rows of cells without backquotes, the header first, the rule left out."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [
        [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in b.splitlines()] for b in blocks
    ]
    return [[one[0], *one[2:]] for one in rows]


def option_rows(text: str) -> dict[str, list[str]]:
    """Of every table of options, the cells by key."""
    found = [row for one in tables(text) if one[0] == ["key", "default", "meaning"] for row in one[1:]]
    assert len({row[0] for row in found}) == len(found), "an option stands twice"
    return {row[0]: row for row in found}


def own_options(config: type, base: type) -> dict[str, dataclasses.Field]:
    """The options that a configuration adds to `base`, or has with another default or other choices."""
    known = {field.name: (field.default, about(field)) for field in dataclasses.fields(base)}
    return {one.name: one for one in dataclasses.fields(config) if known.get(one.name) != (one.default, about(one))}


def base_of(name: str) -> type:
    if name in ABLATIONS:
        return KRTConfig
    return RehearsalConfig if issubclass(METHODS[name].Config, RehearsalConfig) else MethodConfig


def has_default(config: type, key: str, text: str) -> bool:
    """Whether a text, read as the command line reads it, is the default of an option."""
    return getattr(build(config, {key: text}, "page"), key) == getattr(config(), key)


def commands(text: str) -> list[str]:
    """The `mlcil run` commands of the code blocks, each on one line."""
    return re.findall(r"^    (mlcil run .*)$", text.replace("\\\n", " "), re.MULTILINE)


def settings_named(text: str) -> list[tuple[str, str]]:
    """Every `--set key=value` of a text."""
    return re.findall(r"--set (\w+)=([^\s`]+)", text)


COMMANDS = [(one.stem, line) for one in sorted(PAGES.glob("*.md")) for line in commands(one.read_text())]


class ReachedError(Exception):
    """Raised in place of the run, with what was asked for."""


@pytest.mark.parametrize("name", WITH_PAGE)
def test_a_page_names_every_own_option_and_all_its_choices(name):
    rows = option_rows(page(name))
    own = own_options(METHODS[name].Config, base_of(name))
    assert own.keys() <= rows.keys()
    for key, field in own.items():
        named = re.findall(r"\w+", " ".join(rows[key]))
        assert set(about(field).choices or ()) <= set(named), key


@pytest.mark.parametrize("name", WITH_PAGE)
def test_a_page_gives_the_true_default_of_each_option(name):
    config = METHODS[name].Config
    wrong = [key for key, row in option_rows(page(name)).items() if not has_default(config, key, row[1])]
    assert wrong == []


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_is_told_by_the_default_that_it_changes(name):
    config = METHODS[name].Config
    (table,) = [one for one in tables(page("krt")) if one[0][:3] == ["method", "key", "default"]]
    told = {row[1]: row[2] for row in table[1:] if row[0] == name}
    assert told.keys() == own_options(config, base_of(name)).keys()
    assert all(has_default(config, key, text) for key, text in told.items())


def test_the_index_lists_the_options_that_methods_share():
    rows = option_rows(page("README"))
    assert tuple(rows) == option_names(RehearsalConfig)
    assert all(has_default(RehearsalConfig, key, row[1]) for key, row in rows.items())


def test_the_index_lists_every_method_with_its_family_buffer_and_page():
    (index,) = [one for one in tables(page("README")) if one[0][0] == "name"]
    listed = {row[0]: (row[2], row[3], row[4]) for row in index[1:]}
    pages = {name: "krt.md" if name in ABLATIONS else f"{name}.md" for name in METHODS}
    assert listed == {
        name: (one.family, one.buffer_use, f"[{pages[name]}]({pages[name]})") for name, one in METHODS.items()
    }


def test_the_index_gives_the_run_settings_that_methods_change():
    (table,) = [one for one in tables(page("README")) if one[0] == ["method", "run settings"]]
    told = {name.strip(" `"): row[1] for row in table[1:] for name in row[0].split(",")}
    assert told.keys() == {name for name, one in METHODS.items() if one.setting_defaults}
    for name, text in told.items():
        given = dict(one.split("=") for one in text.split())
        assert build(RunSettings, given, name) == build(RunSettings, METHODS[name].setting_defaults, name)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(path):
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text())]
    local = [one for one in targets if one and not one.startswith(("http://", "https://", "mailto:"))]
    assert [one for one in local if not (path.parent / one).exists()] == []


@pytest.mark.parametrize("name", WITH_PAGE)
def test_a_page_has_a_command_of_its_own_method(name):
    assert any(f"--method {name} " in line for stem, line in COMMANDS if stem == name)


@pytest.mark.parametrize(("stem", "line"), COMMANDS)
def test_a_command_is_accepted_as_it_stands(stem, line, monkeypatch):
    def reach(config, out, console):
        raise ReachedError(config, out)

    monkeypatch.setattr("mlcil.training.run.run", reach)
    result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
    assert isinstance(result.exception, ReachedError), result.exception or result.output
    config, out = result.exception.args
    assert config.settings.method in ((stem, *ABLATIONS) if stem == "krt" else (stem,))
    assert str(out) == f"runs/{config.settings.method}"


@pytest.mark.parametrize("name", WITH_PAGE)
def test_every_setting_that_a_page_names_is_legal(name):
    budget = {"none": "0", "optional": "20", "required": "20"}[METHODS[name].buffer_use]
    for key, value in settings_named(page(name)):
        make_config({"method": name, "buffer": budget}, {key: value})
