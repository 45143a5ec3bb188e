"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Some virtual machines announce matrix instructions that they do not carry out: bfloat16 would end the process there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture
def shared() -> Path:
    """The folder of real data sets that stands beside the repository on some machines."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder 'shared' with real data beside the repository")
    return folder


# The files that take longest come first, or one process would end with them while the other has nothing left to do.
LONG = (
    *("test_testing.py", "test_distributed.py", "test_grid.py", "test_demo.py", "test_run.py"),
    *("test_export.py", "test_tutorial.py", "test_tagging.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by how long their files take."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
