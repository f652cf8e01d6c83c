"""What is wrong with the job in a run directory, as the launcher and `ddpprof diagnose` ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pulse_files import write_pulse

from ddpprof.model.hang import Fault
from ddpprof.model.pulse import Ended
from ddpprof.monitor import evidence
from ddpprof.monitor.hang_detector import examine
from ddpprof.rundir import EXITS_FILE


def test_a_job_that_failed_before_it_had_a_run(tmp_path: Path) -> None:
    exits = [
        {"exit_code": 1, "host": "a", "pid": 7, "rank": 1, "unix_ns": 1, "error": "failed: ValueError: no data"},
        {"exit_code": 1, "host": "a", "pid": 7, "unix_ns": 2},
        {"exit_code": 1, "host": "a", "is_job": True},
    ]
    (tmp_path / EXITS_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in exits))
    found = examine(tmp_path)
    assert found.verdict is not None
    assert (found.verdict.fault, found.verdict.rank, found.verdict.detail) == (Fault.DIED, 1, "ValueError: no data")
    assert (found.is_over, found.evidence) == (True, ())


def test_nothing_is_known_of_an_empty_folder(tmp_path: Path) -> None:
    assert examine(tmp_path).verdict is None


def test_a_rank_that_failed_without_a_pulse_is_blamed_not_the_one_that_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_LOOK_AGAIN_S", 0.0)
    write_pulse(tmp_path, 0, ended=Ended.FAILED)
    first = {
        "exit_code": 1,
        "rank": 1,
        "pid": 8,
        "unix_ns": 1,
        "error": "failed: ValueError: no data",
        "place": "a.py:3",
    }
    job = {"exit_code": 1, "is_job": True}
    (tmp_path / EXITS_FILE).write_text(f"{json.dumps(first)}\n{json.dumps(job)}\n")
    verdict = examine(tmp_path).verdict
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.detail) == (Fault.DIED, 1, "ValueError: no data")
