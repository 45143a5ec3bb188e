"""One run of a grid, in a process of its own: `python -m mlcil.experiments.child CONFIG OUT`.

Standard input is a pipe that the grid holds open. When it closes, the grid has ended or was killed, and the run stops:
nobody would supervise it, and a new grid could not continue it while it holds its folder.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from ..core.errors import UserError
from ..core.output import escape_what_cannot_be_shown


def _stop_with_the_grid() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock would still be held when the interpreter exits
        pass
    os._exit(130)  # safe at any moment, since files are written whole or not at all


def main(config: str, out: str) -> int:
    """Run the experiment; returns 2 for a user's mistake, which is then the last line of standard error."""
    threading.Thread(target=_stop_with_the_grid, daemon=True).start()
    escape_what_cannot_be_shown()
    from rich.console import Console

    from ..training.config import make_config, read_config
    from ..training.run import run

    try:
        run(make_config(read_config(Path(config)), where=config), Path(out), Console(width=140))
    except UserError as error:
        print(f"mlcil: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
