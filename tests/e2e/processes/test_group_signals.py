"""A signal reaches each process of a job once, whoever it is sent to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpprof.child_processes import children

PROGRAM = """
import os, signal
from ddpprof.record.group_signals import Bystander

numbers = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
bystander = Bystander()
def got(send, to, number):
    send(to, number)
    return bystander.got(signal.sigwaitinfo(numbers))

print(got(os.kill, os.getpid(), signal.SIGTERM))
print(got(os.killpg, os.getpgrp(), signal.SIGINT), got(os.killpg, os.getpgrp(), signal.SIGINT))
print(got(os.kill, os.getpid(), signal.SIGINT))
bystander.end()
"""
NOTE_WHAT_IS_PASSED_ON = """
import os, sys
from ddpprof.record import launch

passed_on = []
launch._pass_on = lambda job, number: passed_on.append(number)
launch.run_to_its_end([sys.executable, "-c", sys.argv[1]], dict(os.environ))
print(passed_on)
"""
JOB = """
import os, signal, time
{begin}
signal.signal(signal.SIGINT, lambda *_: None)
print("ready", flush=True)
time.sleep(1)
"""
LAUNCH = """
import os, sys
from ddpprof.record import launch

launch.run_to_its_end([sys.executable, "-c", sys.argv[1]], dict(os.environ))
"""
DIES_AT_ONCE = """
import signal, subprocess, sys
child = '''
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: sys.exit(print("child got", signal.Signals(number).name, flush=True)))
print("ready", flush=True)
time.sleep(20)
'''
signal.signal(signal.SIGINT, signal.SIG_DFL)
subprocess.Popen([sys.executable, "-c", child]).wait()
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, start_new_session=True)
    return done.stdout


def test_a_bystander_tells_signals_to_the_group_from_those_to_one_process() -> None:
    assert run(PROGRAM) == "False\nTrue True\nFalse\n"


def test_without_a_bystander_every_signal_counts_as_sent_to_one_process() -> None:
    nothing_found = "import os; os.defpath = '/nowhere'\n"
    assert run(nothing_found + PROGRAM) == "False\nFalse False\nFalse\n"


def launched(program: str, job: str) -> subprocess.Popen[str]:
    """Return the launcher of a job, in a group of its own, once the job is ready."""
    command = [sys.executable, "-c", program, job]
    launcher = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    return launcher


@pytest.mark.parametrize(
    ("begin", "to_group", "num_passed_on"),
    [
        pytest.param("", True, 0, id="to-all"),
        pytest.param("", False, 1, id="to-ddpprof"),
        pytest.param("os.setpgid(0, 0)", True, 1, id="to-all-but-the-job"),
        pytest.param("os.setpgid(0, 0)", False, 1, id="to-ddpprof-beside-the-job"),
    ],
)
def test_a_signal_is_passed_on_unless_the_job_has_got_it(begin: str, to_group: bool, num_passed_on: int) -> None:
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=begin))
    send = os.killpg if to_group else os.kill
    send(launcher.pid, signal.SIGINT)
    said, _ = launcher.communicate(timeout=600)
    assert said == f"{[int(signal.SIGINT)] * num_passed_on}\n"


def test_children_of_a_process_that_sigint_ends_get_it_too() -> None:
    launcher = launched(LAUNCH, DIES_AT_ONCE)
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate(timeout=600)
    assert said == "child got SIGINT\n"


def test_nothing_is_left_of_a_launcher_that_is_killed() -> None:
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=""))
    own = children(launcher.pid)
    assert len(own) == 2, "the job and the bystander"
    launcher.kill()
    launcher.communicate()
    deadline = time.monotonic() + 300
    while any(map(_is_alive, own)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
