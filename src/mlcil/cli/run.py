"""The command `mlcil run`: what is quick to check comes before what is slow to import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from ..core.interruption import is_first_process
from ..experiments.checks import check_classes, check_run, check_weights, is_read_quickly
from ..experiments.plan import default_folder, early_settings, run_config
from .console import say
from .interrupted import explain_run


def run_experiment(
    changes: Mapping[str, object], file: Path | None, preset: str | None, out: Path | None, console: Console
) -> None:
    """Run an experiment, or continue it, and print its table.

    Raises:
        UserError: something in the settings, the data or the folder is wrong.
    """

    def tell(text: str) -> None:
        if is_first_process():
            say(console, text)

    settings = early_settings(changes, file, preset)
    out = out or default_folder(settings)
    explain_run(out)
    check_run(settings)
    found = check_classes(settings, tell) if is_read_quickly(settings.data) else None
    config = run_config(changes, file, preset)
    check_weights(config.settings)
    found = found or check_classes(settings, tell)
    from ..training.run import run  # with all that trains, which takes seconds to import

    results = run(config, out, console, found=found)
    if is_first_process():
        from ..reports.table import to_terminal
        from ..reports.tables import session_table

        console.print(to_terminal(session_table(results)))
        say(console, f"results: {out / 'results.json'}")
