"""How the launcher waits for its job."""

from __future__ import annotations

import subprocess
import sys

import pytest

AT_ONCE = """
import os, signal, threading, time
from ddpprof.record import launch

def when_started():
    time.sleep(0.5)
    {then}

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(launch.run_to_its_end(["false"], os.environ, when_started))
"""


TAKEN = """
import signal, time
from types import SimpleNamespace
from ddpprof.record import launch

ends = time.monotonic() + 1
job = SimpleNamespace(pid=0, returncode=3, poll=lambda: None if time.monotonic() < ends else 3)
print(launch._wait(job, SimpleNamespace(got=lambda _info: False)))
"""


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        pytest.param("pass", "(1, False)\n", id="a-thread-takes-the-signal-that-says-so"),
        pytest.param(
            "signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)", "(1, True)\n",
            id="somebody-ends-it-just-then",
        ),
    ],
)  # fmt: skip
def test_a_job_that_ends_before_anybody_waits(then: str, expected: str) -> None:
    assert said_by(AT_ONCE.format(then=then)) == expected


def test_a_job_of_whose_end_no_signal_comes() -> None:
    assert said_by(TAKEN) == "(3, False)\n"
