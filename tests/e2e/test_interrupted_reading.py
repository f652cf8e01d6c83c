"""Ctrl-C while a run is read: no traceback, whenever it comes; a terminal sends it to all processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from jobs import DDPPROF, environment, seconds_to_start
from remotes import CONVNET


@pytest.mark.long
def test_ctrl_c_at_any_moment_of_a_report(tmp_path: Path) -> None:
    run = shutil.copytree(CONVNET, tmp_path / "run")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ended_by_it, start_s = 0, seconds_to_start()
    for number in range(16):
        job = subprocess.Popen(
            [*DDPPROF, "report", str(run), "--jobs", "2", "--no-cache"],
            env=environment(TMPDIR=str(scratch)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(start_s + number / 10)
        os.killpg(job.pid, signal.SIGINT)
        _, errors = job.communicate(timeout=600)
        assert "Traceback" not in errors, f"after {start_s + number / 10} s: {errors}"
        assert job.returncode in (0, 130, -signal.SIGINT)
        ended_by_it += job.returncode != 0
        assert list(scratch.iterdir()) == []
    assert ended_by_it > 3
