"""Modules that lie in a run of somebody else are not imported by processes that read it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"
"""of two ranks"""


COMMAND = str(Path(sys.executable).with_name("ddpprof"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that the test may spoil."""
    copy = tmp_path / "run"
    shutil.copytree(RUN, copy, ignore=shutil.ignore_patterns("tensorboard"))
    return copy


def _plant_modules(folder: Path) -> Path:
    """Modules of the names that Python's own have; returns what they write when one of them is imported."""
    ran = folder.parent / "it-ran"
    for name in ("multiprocessing", "subprocess", "signal", "threading", "torch"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'w').close()\nraise SystemExit(3)\n")
    return ran


def test_modules_that_lie_in_a_run_are_not_imported_when_several_processes_read_it(run: Path) -> None:
    ran = _plant_modules(run)
    command = [COMMAND, "report", ".", "--jobs", "2", "--no-cache"]
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, ran.exists()) == (0, False), done.stderr


def test_modules_that_lie_in_the_working_directory_are_not_imported_by_ranks_of_netbench(tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    ran = _plant_modules(folder)
    command = [COMMAND, "netbench", "--nproc-per-node", "2", "--sizes", "1K", "--seconds", "0.01"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, ran.exists()) == (0, False), done.stderr
