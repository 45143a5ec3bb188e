"""Keeping the memory that large tensors give back."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of glibc's mallopt


def keep_freed_memory() -> bool:
    """Let this process reuse the memory of freed tensors instead of asking the system for it each time.

    glibc gives blocks above 32 MB back to the kernel at once and the next such tensor gets fresh pages, each zeroed
    at its first touch. A training step on a CPU frees and needs the same hundreds of megabytes again and again: kept,
    it takes half the time with a small network at 64 images. What the process holds at its peak it then holds on to.

    Returns:
        Whether it could be done: only where the C library is glibc.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, -1))
