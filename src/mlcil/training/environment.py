"""With what a run was computed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "mlcil",
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "numpy",
    "pillow",
    "safetensors",
    "scikit-learn",
)


def environment() -> dict[str, Any]:
    """The versions and the machine that results depend on."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "git_revision": _git_revision(),
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _git_revision() -> str | None:
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # installed, perhaps inside somebody else's repository
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
