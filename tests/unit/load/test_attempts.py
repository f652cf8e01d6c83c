"""A run directory with several attempts: which one is loaded, and what is told of the others."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ddpprof.errors import NotARun
from ddpprof.load.run import load_run
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
