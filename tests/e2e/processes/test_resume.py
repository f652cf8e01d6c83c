"""Trials and their jobs when ddpprof is killed, or still at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from experiments import plan_of_another_user
from processes import wait_until

from ddpprof.record import launch
from ddpprof.record.settings import Settings


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return plan_of_another_user(tmp_path, monkeypatch)


def test_an_experiment_that_is_trusted_is_run(theirs: Path, tmp_path: Path) -> None:
    code = "import sys; from ddpprof.cli import main; main(['sweep', '--resume', sys.argv[1], '--trust'])"
    subprocess.run([sys.executable, "-c", code, str(theirs)], timeout=600, check=False, capture_output=True)
    assert (tmp_path / "it-ran").exists()


def test_what_still_records_into_a_folder_ends_before_it_is_used_again(tmp_path: Path) -> None:
    def recording(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], env={**os.environ, **Settings(str(out)).to_environment()})

    left, other = recording(tmp_path / "trial-0-0"), recording(tmp_path / "trial-1-0")
    try:
        folders = (tmp_path / "trial-0-0", tmp_path / "trial-1-0")
        wait_until(lambda: all(len(launch._recording_into(folder)) == 1 for folder in folders), "started")
        launch.end_jobs_into(tmp_path / "trial-0-0")
        assert left.wait(600) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_the_job_of_a_trial_ends_when_ddpprof_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import os, sys; from ddpprof.record import launch; "
        "launch.run_to_its_end(['sh', '-c', 'echo $$ > ' + sys.argv[1] + '; exec sleep 600'], os.environ)"
    )
    ours = subprocess.Popen([sys.executable, "-c", code, str(pid_file)])
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "started")
    job = int(pid_file.read_text())
    ours.kill()
    ours.wait()
    wait_until(lambda: not Path(f"/proc/{job}").exists() or _is_zombie(job), "ended", 20)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
