"""A signal reaches each process of a job once, whoever it is sent to."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpprof.child_processes import children

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
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
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
import os, signal, sys, time
def tell(number, _):
    os.write(1, b"child got %s%c" % (signal.Signals(number).name.encode(), 10))  # print() may be under way
    sys.exit()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, tell)
print("ready", flush=True)
time.sleep(20)
'''
signal.signal(signal.SIGINT, signal.SIG_DFL)
subprocess.Popen([sys.executable, "-c", child]).wait()
"""


def launched(program: str, job: str, terminal: int | None = None) -> subprocess.Popen[str]:
    """Return the launcher of a job, in a session of its own that a terminal may control, once the job is ready."""
    take = None if terminal is None else lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, job],
        start_new_session=True,
        preexec_fn=take,  # noqa: PLW1509 (no threads here)
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    return launcher


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: where a user types, and where programs read."""
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


def passed_on(launcher: subprocess.Popen[str]) -> list[int]:
    said, _ = launcher.communicate(timeout=600)
    return [int(word) for word in said.strip("[]\n").split(", ") if word]


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to-ddpprof", "to-its-group"])
@pytest.mark.parametrize("begin", ["", "os.setpgid(0, 0)"], ids=["job", "job-in-its-own-group"])
def test_a_program_s_signal_is_passed_on_once(send: Callable[[int, int], None], begin: str) -> None:
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=begin))
    send(launcher.pid, signal.SIGINT)
    assert passed_on(launcher) == [signal.SIGINT]


@pytest.mark.parametrize(
    ("begin", "expected"),
    [pytest.param("", [], id="job"), pytest.param("os.setpgid(0, 0)", [signal.SIGINT], id="job-in-its-own-group")],
)
def test_ctrl_c_in_a_terminal_is_passed_on_to_a_job_that_has_not_got_it(
    begin: str, expected: list[int], terminal: tuple[int, int]
) -> None:
    typed, read = terminal
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=begin), read)
    os.write(typed, b"\x03")
    assert passed_on(launcher) == expected


def test_a_signal_to_ddpprof_in_a_terminal_is_passed_on(terminal: tuple[int, int]) -> None:
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=""), terminal[1])
    launcher.send_signal(signal.SIGTERM)
    assert passed_on(launcher) == [signal.SIGTERM]


def test_children_of_a_process_that_sigint_ends_get_it_too() -> None:
    launcher = launched(LAUNCH, DIES_AT_ONCE)
    launcher.send_signal(signal.SIGINT)
    said, _ = launcher.communicate(timeout=600)
    assert said == "child got SIGINT\n"


def test_nothing_is_left_of_a_launcher_that_is_killed() -> None:
    launcher = launched(NOTE_WHAT_IS_PASSED_ON, JOB.format(begin=""))
    own = children(launcher.pid)
    assert len(own) == 1
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
