"""Signals in processes that tests start."""

import signal


def heed_interrupts() -> None:
    """For a process to be: whoever started the tests may have ignored Ctrl-C for all that comes after."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
