"""How the launcher waits for its job."""

from __future__ import annotations

import subprocess
import sys

BESIDE_A_THREAD = """
import os, threading, time
from ddpprof.record import launch

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(launch.run_to_its_end(["false"], os.environ, when_started=lambda: time.sleep(0.5)))
"""


def test_a_job_that_ends_at_once_is_noticed_though_a_thread_takes_the_signal() -> None:
    command = [sys.executable, "-c", BESIDE_A_THREAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("(1, False)\n", "")
