"""How the launcher waits for its job."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

AT_ONCE = """
import os, signal, threading, time
from ddpprof.record import launch

def when_started():
    time.sleep(0.5)
    {then}

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(tuple(launch.run_to_its_end(["false"], os.environ, when_started)))
"""


TAKEN = """
import signal, time
from types import SimpleNamespace
from ddpprof.record import launch

ends = time.monotonic() + 1
job = SimpleNamespace(pid=0, returncode=3, poll=lambda: None if time.monotonic() < ends else 3)
print(tuple(launch._wait(job)))
"""


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        pytest.param("pass", "(1, False, False)\n", id="a-thread-takes-the-signal-that-says-so"),
        pytest.param(
            "signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)", "(1, True, False)\n",
            id="somebody-ends-it-just-then",
        ),
    ],
)  # fmt: skip
def test_a_job_that_ends_before_anybody_waits(then: str, expected: str) -> None:
    assert said_by(AT_ONCE.format(then=then)) == expected


def test_a_job_of_whose_end_no_signal_comes() -> None:
    assert said_by(TAKEN) == "(3, False, False)\n"


def test_a_launcher_that_is_stopped_and_goes_on_lets_its_job_run_to_its_end() -> None:
    """As by Ctrl-Z and `fg`. Python then says that a signal of number 0 came."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_ONCE.format(then="print('begins', flush=True)").replace('"false"', '"sleep", "5"')],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "begins\n"
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(2)  # longer than the launcher waits for a signal
        launcher.send_signal(signal.SIGCONT)
        assert launcher.communicate(timeout=600) == ("(0, False, False)\n", "")
