"""What launchers noted of processes that ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ddpprof.load.exits import load_exits
from ddpprof.model import ProcessExit
from ddpprof.model.process_exit import oom_kills_seen
from ddpprof.record import torchrun


def test_lines_come_back(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    torchrun.append_exit(tmp_path, {"pid": 7, "exit_code": -signal.SIGKILL})
    torchrun.append_exit(tmp_path, {"is_job": True, "exit_code": 1, "interrupted": False})
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
    torchrun.append_exit(tmp_path, {"pid": 7, "exit_code": 1})
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
    monkeypatch.setattr(torchrun, "own_groups", lambda _controller: ())
    monkeypatch.setattr(torchrun, "OF_MACHINE", counters)
    torchrun.listen_to_torchrun(errors)
    counters.write_text("nr_free_pages 7\noom_kill 5\n")
    failure = errors.ProcessFailure(local_rank=1, pid=42, exitcode=-9, error_file="none")
    assert failure.signal_name() == "SIGKILL"
    errors.ProcessFailure(local_rank=0, pid=41, exitcode=-9, error_file="none")
    seen, later = load_exits(tmp_path)
    assert (seen.pid, seen.exit_code, seen.num_oom_kills) == (42, -9, 2)
    assert (later.pid, later.num_oom_kills) == (41, 0), "an end of another attempt is not put down to those kills"
    assert isinstance(seen, ProcessExit)


def test_the_end_of_a_rank_says_most_of_what_was_killed() -> None:
    own = ProcessExit(exit_code=-9, host="a", num_oom_kills=0, unix_ns=10)
    job = ProcessExit(exit_code=1, host="a", num_oom_kills=2, unix_ns=20, is_job=True)
    assert oom_kills_seen(own, "a", 5, (own, job)) == 0
    assert oom_kills_seen(None, "a", 5, (own, job)) == 2
    assert oom_kills_seen(None, "a", 30, (own, job)) is None, "that was an earlier job"
    assert oom_kills_seen(None, "b", 5, (own, job)) is None
