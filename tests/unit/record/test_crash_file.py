"""Where Python writes the stacks of a process that a signal ends."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path
from typing import Any

import pytest

from ddpprof.record.output import CrashFile


class Handler:
    """Stands for `faulthandler`, which the tests themselves use already: it holds the last file that it was given."""

    def __init__(self) -> None:
        self.file: Any = None

    def enable(self, file: Any, **_options: bool) -> None:
        self.file = file

    def disable(self) -> None:
        self.file = None

    def is_enabled(self) -> bool:
        return self.file is not None


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    made = Handler()
    for name in ("enable", "disable", "is_enabled"):
        monkeypatch.setattr(faulthandler, name, getattr(made, name))
    return made


def test_a_file_without_stacks_goes_at_the_end(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    assert (handler.is_enabled(), path.exists()) == (True, True)
    crash.close()
    crash.close()
    assert (handler.is_enabled(), path.exists()) == (False, False)


def test_stacks_are_kept(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    os.write(handler.file.fileno(), b"Fatal Python error: Aborted\n")
    crash.close()
    assert path.read_text() == "Fatal Python error: Aborted\n"
    assert not handler.is_enabled()


def test_a_script_that_has_stacks_written_keeps_that(handler: Handler, tmp_path: Path) -> None:
    handler.file = "of the script"
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    crash.close()
    assert (handler.file, path.exists()) == ("of the script", False)


def test_a_script_that_has_stacks_written_later_keeps_that(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    handler.enable("of the script")
    crash.close()
    assert (handler.file, path.exists()) == ("of the script", False)


def test_a_run_that_was_removed_is_no_error_at_the_end(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    path.unlink()
    crash.close()
    assert not handler.is_enabled()
