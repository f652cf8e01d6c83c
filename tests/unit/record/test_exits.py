"""How ranks end before they have a DDP module, and so a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpprof.load.exits import load_exits
from ddpprof.record import exits
from ddpprof.record.injected import _EarlyEnd
from ddpprof.record.settings import Settings


def test_a_rank_that_fails_early_leaves_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Settings(str(tmp_path / "run")).to_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    exits.note_early_end(None)
    exits.append(tmp_path / "run", {"pid": 9, "exit_code": 1})
    assert not (tmp_path / "run").exists()
    exits.note_early_end(FileNotFoundError(2, "No such file or directory", "train.bin"))
    exits.append(tmp_path / "run", {"pid": 9, "exit_code": 1})
    first, second = load_exits(tmp_path / "run")
    assert (first.rank, first.pid, first.exit_code) == (1, os.getpid(), 1)
    assert first.error == "failed: FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'"
    assert (second.pid, second.rank) == (9, None)


def test_a_process_that_is_no_rank_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in Settings(str(tmp_path / "run")).to_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RANK", raising=False)
    exits.note_early_end(ValueError("no data"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("marked_by", "is_rank"), [(None, True), ("own", True), ("1", False)])
def test_a_program_that_a_rank_starts_is_no_rank(
    marked_by: str | None, is_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("DDPPROF_RANK_PROCESS", "")  # so that it is as before in the end
    monkeypatch.delenv("DDPPROF_RANK_PROCESS")
    if marked_by is not None:
        monkeypatch.setenv("DDPPROF_RANK_PROCESS", str(os.getpid()) if marked_by == "own" else marked_by)
    assert _EarlyEnd().may_come == is_rank
