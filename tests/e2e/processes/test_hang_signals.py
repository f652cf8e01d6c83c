"""A signal ends a process whose training thread hangs in a call that never returns."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ACCELERATOR = Path(__file__).parents[2] / "support" / "accelerator"
HANGS = """
import signal, sys
sys.path.append(sys.argv[1])
from accelerator import block_for_ever
from ddpprof.record.machine import signals_end_a_hang
if sys.argv[2] != "default":
    signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
signal.signal(signal.SIGINT, signal.default_int_handler)
with signals_end_a_hang():
    print("hangs", flush=True)
    if sys.argv[3] == "for ever":
        block_for_ever()
    signal.raise_signal(signal.SIGTERM)
print("goes on", flush=True)
"""


def begin(*words: str) -> subprocess.Popen[str]:
    job = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(ACCELERATOR), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "hangs\n"
    return job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_as_if_nobody_had_handled_the_signal(number: signal.Signals) -> None:
    job = begin("default", "for ever")
    job.send_signal(number)
    job.communicate(timeout=600)
    assert job.returncode == -number


def test_where_the_call_returns_the_scripts_own_handler_runs() -> None:
    job = begin("own", "not")
    assert job.stdout is not None
    output = job.stdout.read()  # which `communicate` would lose in part
    job.communicate(timeout=600)
    assert (job.returncode, output) == (0, "saved\ngoes on\n")
