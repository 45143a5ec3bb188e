"""Signals to processes that tests start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def heed_interrupts() -> None:
    """For a process to be: whoever started the tests may have ignored Ctrl-C for all that comes after."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(command: Sequence[str], when: Path) -> str:
    """Send Ctrl-C to an `mlcil` command and its children once a file is there.

    Returns:
        Its errors, when all of these processes have ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "mlcil", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, to which a terminal would send Ctrl-C
        preexec_fn=heed_interrupts,
    )
    while not when.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    while _any_left(process.pid):
        time.sleep(0.01)
    return error


def _any_left(group: int) -> bool:
    """Whether a process of this group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
