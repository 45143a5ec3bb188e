"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shared() -> Path:
    """The folder of real data sets that stands beside the repository on some machines."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder 'shared' with real data beside the repository")
    return folder
