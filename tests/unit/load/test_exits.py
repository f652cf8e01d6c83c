"""What launchers noted of processes that ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ddpprof.load.exits import load_exits
from ddpprof.model import ProcessExit
from ddpprof.record import exits


def test_lines_come_back(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    exits.append(tmp_path, {"pid": 7, "exit_code": -signal.SIGKILL})
    exits.append(tmp_path, {"is_job": True, "exit_code": 1, "interrupted": False})
    with (tmp_path / "exits.jsonl").open("a") as file:
        file.write('[]\n{"exit_code": "no"}\nno JSON\n{"exit_co')
    one, job = load_exits(tmp_path)
    assert (one.pid, one.exit_code, one.is_job) == (7, -9, False)
    assert one.unix_ns is not None
    assert (job.pid, job.exit_code, job.is_job, job.interrupted) == (None, 1, True, False)
    attempt = tmp_path / "attempt-2"
    attempt.mkdir()
    assert load_exits(attempt) == (one, job)


def test_where_there_is_no_run_nothing_is_written(tmp_path: Path) -> None:
    exits.append(tmp_path, {"pid": 7, "exit_code": 1})
    assert list(tmp_path.iterdir()) == []
    assert load_exits(tmp_path) == ()


def test_torchrun_notes_each_rank_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpprof.record.settings import Settings

    (tmp_path / "run.json").write_text("{}")
    for name, value in Settings(str(tmp_path)).to_environment().items():
        monkeypatch.setenv(name, value)
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    monkeypatch.setattr(errors.ProcessFailure, "__post_init__", errors.ProcessFailure.__post_init__)
    exits.install(errors)
    failure = errors.ProcessFailure(local_rank=1, pid=42, exitcode=-9, error_file="none")
    assert failure.signal_name() == "SIGKILL"
    (seen,) = load_exits(tmp_path)
    assert (seen.pid, seen.exit_code) == (42, -9)
    assert isinstance(seen, ProcessExit)
