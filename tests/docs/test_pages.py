"""The pages say what the code does: their tables are generated, their links lead somewhere, their commands run."""

import platform
import re
import shlex
import sys
from pathlib import Path
from runpy import run_path

import pytest
from typer.testing import CliRunner

from mlcil.cli import app as cli
from mlcil.data import digits
from mlcil.methods.registry import OURS
from mlcil.training.config import make_config

ROOT = Path(__file__).resolve().parents[2]
METHOD_PAGES = ROOT / "docs" / "methods"
TEXTS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
COMMANDS = [
    (page.stem, line)
    for page in sorted(METHOD_PAGES.glob("*.md"))
    for line in re.findall(r"^    (mlcil run .*)$", page.read_text().replace("\\\n", " "), re.MULTILINE)
]


class ReachedError(Exception):
    """Raised in place of the run, with what was asked for."""


def test_the_generated_tables_are_up_to_date():
    generated = run_path(str(ROOT / "docs" / "generate.py"))["generated"]
    assert [page.name for page in TEXTS if generated(page.read_text()) != page.read_text()] == [], "run `make docs`"
    marked = {name for page in TEXTS for name in re.findall(r"<!-- generated: options (\w+) -->", page.read_text())}
    assert marked == {page.stem for page in METHOD_PAGES.glob("*.md")} - {
        "README",
        "ft",
        "joint",
    }  # without own options


@pytest.mark.skipif(
    (sys.platform, platform.machine(), sys.version_info[:2]) != ("linux", "x86_64", (3, 11)),
    reason="packages depend on the system, and the page is about this one",
)
def test_the_page_of_licences_is_up_to_date():
    script = run_path(str(ROOT / "docs" / "licences.py"))
    assert script["page"]() == script["PAGE"].read_text(), "run `make docs`"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(path):
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text())]
    local = [one for one in targets if one and not one.startswith(("http://", "https://", "mailto:"))]
    assert [one for one in local if not (path.parent / one).exists()] == []


def test_every_method_has_a_command_on_its_page():
    for method in OURS:
        stem = method.name if (METHOD_PAGES / f"{method.name}.md").exists() else method.name.split("_")[0]
        assert stem == "krt" or any(f"--method {method.name} " in line for page, line in COMMANDS if page == stem)


@pytest.mark.parametrize(("stem", "line"), COMMANDS)
def test_a_command_is_accepted_as_it_stands(stem, line, monkeypatch):
    def reach(config, out, console, found):
        raise ReachedError(config, out)

    monkeypatch.setattr("mlcil.training.run.run", reach)
    monkeypatch.setattr("mlcil.cli.run.check_weights", lambda settings: None)  # there may be no network
    few = digits._composed(24, 12, 16, 0)
    monkeypatch.setattr(digits, "_composed", lambda *numbers: few)
    result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
    assert isinstance(result.exception, ReachedError), result.exception or result.output
    config, out = result.exception.args
    assert config.settings.method.startswith(stem)
    assert str(out) == f"runs/{config.settings.method}"


@pytest.mark.parametrize("method", [one for one in OURS if (METHOD_PAGES / f"{one.name}.md").exists()])
def test_every_setting_that_a_page_names_is_legal(method):
    buffer = {"none": "0", "optional": "20", "required": "20"}[method.buffer_use]
    for key, value in re.findall(r"--set (\w+)=([^\s`]+)", (METHOD_PAGES / f"{method.name}.md").read_text()):
        make_config({"method": method.name, "buffer": buffer}, {key: value})
