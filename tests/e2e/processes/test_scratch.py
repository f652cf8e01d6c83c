"""Temporary folders of commands that are at work, or were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddpprof.own_files import scratch_folder

HOLDS_ONE = """
import sys, time
from ddpprof.own_files import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begin(here: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process that works with a folder of its own."""
    environment = {**os.environ, "TMPDIR": str(here)}
    other = subprocess.Popen([sys.executable, "-c", HOLDS_ONE], env=environment, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    return other, Path(other.stdout.readline().strip())


def end(other: subprocess.Popen[str], number: int) -> None:
    other.send_signal(number)
    other.wait()
    assert other.stdout is not None
    other.stdout.close()


def test_what_a_killed_command_left_goes_with_the_next_one(here: Path) -> None:
    other, left = begin(here)
    end(other, signal.SIGKILL)
    assert (left / "file").exists()
    with scratch_folder() as folder:
        assert list(here.iterdir()) == [folder]


def test_a_folder_in_use_stays(here: Path) -> None:
    other, used = begin(here)
    try:
        with scratch_folder() as folder:
            assert set(here.iterdir()) == {folder, used}
    finally:
        end(other, signal.SIGKILL)
