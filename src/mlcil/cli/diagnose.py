"""The command `mlcil diagnose`: why a run loses against joint training, printed and written."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..core.remote import check_local
from ..reports.diagnosis import diagnose_run
from ..reports.diagnosis_tables import diagnosis_view, write_diagnosis
from .console import say, to_stderr


def diagnose_and_print(run: Path, joint: Path | None, quick: bool, out: Path | None, console: Console) -> None:
    """Diagnose a run, print the tables and write them to a folder.

    Raises:
        UserError: a folder does not hold one run, the joint run does not fit, or something cannot be written.
    """
    if out is not None:
        check_local(out)
    found = diagnose_run(run, joint, quick, to_stderr)
    console.print(diagnosis_view(found))
    if out is not None:
        say(console, f"wrote {write_diagnosis(found, out)}")
