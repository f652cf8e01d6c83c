"""What a reading process frees, it gives back."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
from ddpprof.load.heap import give_back_freed_arrays

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

if sys.argv[1] == "yes":
    give_back_freed_arrays()
np.ones(30_000_000, np.int8)[:1].copy()  # what glibc learns from: blocks up to this size are worth keeping
before = resident_mb()
held = [(np.ones(400_000, np.int8), np.ones(2_000, np.int8)) for _ in range(250)]
kept = [small for _, small in held]
del held
print(resident_mb() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory the process has")
def test_freed_arrays_are_given_back() -> None:
    def grown_mb(asked: str) -> float:
        said = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=True)
        return float(said.stdout)

    assert grown_mb("yes") < 10
