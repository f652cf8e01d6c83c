"""Where Python writes the stacks of a process that a signal ends."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpprof.record.output import CrashFile


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The files that `faulthandler` was given, which the tests themselves use already."""
    files: list[int] = []
    monkeypatch.setattr(faulthandler, "enable", files.append)
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    yield files
    for file in files:
        os.close(file)


def test_a_file_without_stacks_goes_at_the_end(enabled: list[int], tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    assert (len(enabled), path.exists()) == (1, True)
    crash.close()
    crash.close()
    assert not path.exists()


def test_stacks_are_kept(enabled: list[int], tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    os.write(enabled[0], b"Fatal Python error: Aborted\n")
    crash.close()
    assert path.read_text() == "Fatal Python error: Aborted\n"


def test_a_script_that_has_stacks_written_keeps_that(
    enabled: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: True)
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    crash.close()
    assert (enabled, path.exists()) == ([], False)
