"""Signals that a program sends to the whole process group are told from those to one process."""

from __future__ import annotations

import subprocess
import sys
import time

from ddpprof.child_processes import descendants

PROGRAM = """
import os, signal
from ddpprof.record.group_signals import Bystander

numbers = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
bystander = Bystander()
os.kill(os.getpid(), signal.SIGTERM)
alone = signal.sigwait(numbers)
print(bystander.has_got(alone))
os.killpg(os.getpgrp(), signal.SIGINT)
together = signal.sigwait(numbers)
print(bystander.has_got(together), bystander.has_got(alone))
bystander.end()
"""


def run(program: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, start_new_session=True)
    return done.stdout


def test_what_a_bystander_got_was_sent_to_the_group() -> None:
    assert run(PROGRAM) == "False\nTrue False\n"


def test_without_a_bystander_every_signal_counts_as_sent_to_one_process() -> None:
    nothing_found = "import os; os.defpath = '/nowhere'\n"
    assert run(nothing_found + PROGRAM) == "False\nFalse False\n"


def test_a_bystander_ends_with_its_parent() -> None:
    program = PROGRAM.partition("os.kill(")[0] + "print('begun', flush=True); os.read(0, 1)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        (bystander,) = descendants(parent.pid)
        parent.kill()
    deadline = time.monotonic() + 10
    while _is_alive(bystander):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_alive(process: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")
