"""The options of a command that come from the settings."""

import dataclasses
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mlcil.cli import app as cli
from mlcil.cli.options import with_settings
from mlcil.core.config import about
from mlcil.training.config import RunSettings

FLAGS = {field.name: field for field in dataclasses.fields(RunSettings) if about(field).flag}


def help_of(command: str) -> str:
    text = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
    return " ".join(text.split())


def changes_of(*arguments: str, **given: Any) -> dict[str, str]:
    """What a command gets from these words."""
    app, got = typer.Typer(), {}

    @app.command()
    @with_settings(**given)
    def command(out: str = "", *, changes: dict[str, str]) -> None:
        got.update(changes)

    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return got


@pytest.mark.parametrize("name", FLAGS)
def test_a_setting_marked_as_a_flag_is_an_option_with_its_own_help(name):
    known = about(FLAGS[name])
    own = "method", "protocol", "seed", "engine", "jobs"  # a grid has options of these names, or several of them
    for command in ("run",) if name in own else ("run", "grid"):
        text = help_of(command)
        assert f"--{name.replace('_', '-')} " in text
        assert known.help[1:] in text
        assert "|".join(known.choices or ()) in text


def test_only_what_the_user_gives_is_a_change():
    assert changes_of() == changes_of("--out", "x") == {}
    given = changes_of("--epochs", "3", "--image-size", "48", "--set", "lr=0.1", "--set", "order=a=b")
    assert given == {"epochs": "3", "image_size": "48", "lr": "0.1", "order": "a=b"}


def test_a_command_may_leave_settings_out():
    assert changes_of("--epochs", "3", without=["seed"]) == {"epochs": "3"}
    with pytest.raises(AssertionError, match="No such option"):
        changes_of("--seed", "3", without=["seed"])
