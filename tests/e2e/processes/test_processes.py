"""A process is looked at from outside, while it sleeps and once it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_until

from ddpprof.child_processes import descendants
from ddpprof.monitor.processes import look_at, starting_job, workers_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def test_a_sleeping_process(sleeper: int) -> None:
    deadline = time.monotonic() + 300
    while (found := look_at(sleeper)) is None or found.state != "S":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (found.pid, found.tracer) == (sleeper, None)
    assert (found.is_stopped, found.is_traced) == (False, False)
    assert sleeper in [one.pid for one in workers_of(os.getpid())]


def test_what_threads_and_children_compute() -> None:
    script = r"""
import subprocess, sys, threading, time
busy = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
child = subprocess.Popen([sys.executable, "-c", busy])
threading.Thread(target=exec, args=(busy,), daemon=True).start()
print("begun", flush=True)
sys.stdin.read()
child.kill()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        deadline = time.monotonic() + 300
        while (found := look_at(busy.pid)) is None or min(found.threads_cpu_s, found.children_cpu_s) < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found.main_thread_cpu_s < found.threads_cpu_s + found.children_cpu_s
        busy.communicate()


def test_a_process_that_has_ended(sleeper: int) -> None:
    os.kill(sleeper, 9)
    os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)  # it is dead, and nobody has asked how
    assert look_at(sleeper) is None


def test_the_ranks_of_a_job_that_is_starting() -> None:
    """Two of three ranks; each runs in a shell of its own."""
    command = ["sh", "-c", "RANK=1 sleep 60 & RANK=0 sleep 60 & wait"]
    environment = {**os.environ, "WORLD_SIZE": "3"}
    environment.pop("RANK", None)
    with subprocess.Popen(command, env=environment, start_new_session=True) as shell:
        try:
            wait_until(lambda: len(starting_job(shell.pid).ranks) == 2, "two ranks")
            job = starting_job(shell.pid)
            assert [*job.ranks] == [0, 1]
            assert set(job.ranks.values()) == set(descendants(shell.pid))
            assert job.world_size == 3
            assert 0 <= job.seconds < 60
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
