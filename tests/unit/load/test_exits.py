"""What launchers noted of processes that ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ddpprof.load.exits import load_exits
from ddpprof.model import ProcessExit
from ddpprof.model.process_exit import oom_kills_on
from ddpprof.record import exits, oom


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
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 9\noom_kill 3\n")
    monkeypatch.setattr(oom, "_COUNTERS", counters)
    exits.install(errors)
    counters.write_text("nr_free_pages 7\noom_kill 5\n")
    failure = errors.ProcessFailure(local_rank=1, pid=42, exitcode=-9, error_file="none")
    assert failure.signal_name() == "SIGKILL"
    (seen,) = load_exits(tmp_path)
    assert (seen.pid, seen.exit_code, seen.num_oom_kills) == (42, -9, 2)
    assert isinstance(seen, ProcessExit)


@pytest.mark.parametrize("content", [None, "nr_free_pages 9\n", "oom_kill\n", "oom_kill many\n"])
def test_a_machine_may_not_tell_of_killed_processes(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom, "_COUNTERS", tmp_path / "vmstat")
    if content is not None:
        (tmp_path / "vmstat").write_text(content)
    assert oom.num_oom_kills() is None
    assert oom.oom_kills_since(3) is None
    assert oom.oom_kills_since(None) is None


def test_processes_that_were_killed_on_a_host() -> None:
    exits = (
        ProcessExit(exit_code=-9, host="a", num_oom_kills=1),
        ProcessExit(exit_code=1, host="a", num_oom_kills=2),
        ProcessExit(exit_code=1, host="b"),
    )
    assert [oom_kills_on(host, exits) for host in "abc"] == [2, None, None]
