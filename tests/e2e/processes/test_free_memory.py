"""What a reading process frees, it gives back."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
from ddpprof.load.file_bytes import give_back_holes, give_back_large_arrays

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

size = {"large": 4_000_000, "small": 100_000}[sys.argv[1]]
if sys.argv[1] == "large":
    give_back_large_arrays()
np.ones(30_000_000, np.int8)[:1].copy()  # what glibc learns from: blocks up to this size are worth keeping
before = resident_mb()
held = [(np.ones(size, np.int8), np.ones(2_000, np.int8)) for _ in range(100_000_000 // size)]
kept = [small for _, small in held]
del held
if sys.argv[1] == "small":
    give_back_holes()
print(resident_mb() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory the process has")
@pytest.mark.parametrize("size", ["large", "small"])
def test_what_arrays_freed_is_given_back(size: str) -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM, size], capture_output=True, text=True, check=True)
    assert float(said.stdout) < 10
