"""A process that ends with a profiler that was let go of does not crash."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("what", ["warmed-up", "recording"])
def test_a_process_that_ends_with_a_profiler_let_go_of_does_not_crash(what: str) -> None:
    script = f"""
import torch
from ddpprof.record.machine import TrainingDevice
from ddpprof.record.profiler import StepProfiler
from ddpprof.record.settings import Settings
one = StepProfiler(Settings("run"), TrainingDevice())
one.prepare()
if {what == "recording"}:
    one.begin_step(1)
torch.ones(3).add_(1)
one.abandon()
raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (7, "")
