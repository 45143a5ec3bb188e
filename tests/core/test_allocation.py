"""Memory that is kept is memory that need not be asked for again."""

import subprocess
import sys

import pytest

from mlcil.core.allocation import keep_freed_memory

PROBE = """
import resource, sys, torch
from mlcil.core.allocation import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(12_000_000)  # 48 MB, above what glibc ever keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="only glibc can be told")
def test_large_tensors_get_the_pages_of_earlier_ones():
    def faults(word):
        done = subprocess.run([sys.executable, "-c", PROBE, word], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < faults("leave") / 20
