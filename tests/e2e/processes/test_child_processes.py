"""Helpers end with what started them, and know no secrets of the user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import children, is_gone, wait_until

from ddpprof.child_processes import guarded, helper_environment, start

STARTS = (
    "import os, sys, time; from ddpprof.child_processes import start; start(sys.argv[1:], os.environ); time.sleep(60)"
)
NESTED = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


def test_the_resource_tracker_outlives_a_terminal() -> None:
    script = (
        "import os, signal; from multiprocessing import resource_tracker as t\n"
        "from ddpprof.child_processes import start_resource_tracker\n"
        "start_resource_tracker(); os.kill(t._resource_tracker._pid, signal.SIGHUP)\n"
        "print(t._resource_tracker._check_alive(), signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_helpers_inherit_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_TOKEN": "hf_x", "AWS_SECRET_ACCESS_KEY": "y", "INDEX": "https://me:pw@host/", "NCCL_DEBUG": "INFO"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = helper_environment()
    assert given.keys() & environment.keys() == {"NCCL_DEBUG"}
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_that_is_guarded_ends_with_who_started_the_guard(number: int) -> None:
    command = guarded([sys.executable, "-c", NESTED])
    outer = subprocess.Popen([sys.executable, "-c", STARTS, *command])
    wait_until(lambda: len(children(outer.pid)) == 3, "all started")
    inner = children(outer.pid)
    outer.send_signal(number)
    outer.wait()
    wait_until(lambda: all(map(is_gone, inner)), "all ended", 20)


def test_a_guard_passes_the_exit_code_on(tmp_path: Path) -> None:
    with start(guarded([sys.executable, "-c", "raise SystemExit(7)"]), os.environ, cwd=tmp_path) as running:
        assert running.wait(600) == 7
