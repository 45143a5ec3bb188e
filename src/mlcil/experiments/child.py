"""One run of a grid, in a process of its own: `python -m mlcil.experiments.child CONFIG OUT`.

Standard input is a pipe that the grid holds open. When it closes, the grid is gone, killed perhaps, and the run
stops: nobody would look after it, and a grid started anew could not continue it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from ..core.errors import UserError


def _stop_with_the_grid() -> None:
    while os.read(0, 4096):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os._exit(130)  # at any moment: files are written whole or not at all


def main(config: str, out: str) -> int:
    """Run it.

    Returns:
        The exit code; 2 for a user's mistake, whose one line is then the last of standard error.
    """
    threading.Thread(target=_stop_with_the_grid, daemon=True).start()
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
