"""A run directory with several attempts: which one is loaded, and what is told of the others."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest

from ddpprof.errors import NotARun
from ddpprof.load.record import load_exits
from ddpprof.load.run import load_run
from ddpprof.model import ProcessExit
from ddpprof.model.json_files import oom_kills_seen
from ddpprof.record import torchrun
from ddpprof.render.sections import sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report.build import build_report


def written(
    directory: Path, world_size: int = 1, steps: int = 1, ended: str | None = "finished", **more: object
) -> Path:
    directory.mkdir(exist_ok=True)
    about = {"format": 1, "run_id": "x", "world_size": world_size, "settings": {"profiler": False}, **more}
    (directory / "run.json").write_text(json.dumps(about))
    for rank in range(world_size):
        facts = {"format": 1, "rank": rank, "world_size": world_size, "host": "node", "pid": 1, "device": "cpu",
                 "backend": "gloo", "torch": "2.13", "ended": ended}  # fmt: skip
        (directory / f"rank-{rank}.facts.json").write_text(json.dumps(facts))
        lines = [json.dumps({"number": n, "mode": "off", "start_ns": 0, "end_ns": 1_000_000}) for n in range(steps)]
        (directory / f"rank-{rank}.steps.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return directory


def test_the_last_attempt_with_steps_is_shown(tmp_path: Path) -> None:
    out = written(tmp_path / "run", 4, ended=None, created_unix_s=1.0, elastic={"restarts": 0})
    written(out / "attempt-1", 2, steps=3, created_unix_s=3.5, elastic={"restarts": 1})
    written(out / "attempt-10", 2, steps=0)
    run = load_run(out)
    assert (run.name, run.world_size, len(run.ranks)) == ("run", 2, 2)
    assert [(a.number, a.restarts, a.world_size, a.is_shown) for a in run.attempts] == [
        (0, 0, 4, False), (1, 1, 2, True), (10, None, 2, False),
    ]  # fmt: skip
    report = build_report(run)
    assert [(a.attempt, a.num_steps, a.after_first_ns) for a in report.attempts] == [
        (0, 1, 0), (1, 3, 2_500_000_000), (10, 0, None),
    ]  # fmt: skip
    file = io.StringIO()
    render_terminal(sections(report), file, 100)
    shown = file.getvalue()
    assert shown.index("Attempts: torchrun restarted the ranks") < shown.index("2 ranks")
    assert "ranks 0, 1, 2, 3 killed" in shown
    assert "1  ranks  4       2" in shown
    assert "The rest of this report is about attempt 1" in shown


def test_a_time_that_no_clock_shows_is_not_known(tmp_path: Path) -> None:
    out = written(tmp_path / "run", created_unix_s=1.0)
    written(out / "attempt-1", created_unix_s=2.0)
    written(out / "attempt-2", steps=0, created_unix_s=-1e300)
    assert [one.after_first_ns for one in build_report(load_run(out)).attempts] == [0, 1_000_000_000, None]


@pytest.mark.parametrize(("name", "world_size"), [("attempt-0", 4), ("attempt-1", 2)])
def test_one_attempt_can_be_named(name: str, world_size: int, tmp_path: Path) -> None:
    out = written(tmp_path / "run", 4)
    written(out / "attempt-1", 2)
    run = load_run(out / name)
    assert (run.world_size, run.attempts) == (world_size, ())


def test_most_runs_have_one_attempt(tmp_path: Path) -> None:
    out = written(tmp_path / "run")
    (out / "attempt-1").mkdir()
    (out / "attempt-2").write_text("no folder")
    assert load_run(out).attempts == ()
    with pytest.raises(NotARun):
        load_run(out / "attempt-3")


def test_damage_in_another_attempt_is_named(tmp_path: Path) -> None:
    out = written(tmp_path / "run", 2)
    (out / "rank-1.facts.json").write_text("{")
    written(out / "attempt-1")
    (out / "attempt-2").mkdir()
    (out / "attempt-2" / "run.json").write_text("[]")
    run = load_run(out)
    assert any(text.startswith("attempt 0, rank 1: rank-1.facts.json cannot be read") for text in run.missing)
    assert [len(attempt.records) for attempt in run.attempts] == [1, 1, 0]


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
