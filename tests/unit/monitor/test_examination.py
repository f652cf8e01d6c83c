"""What is wrong with the job in a run directory, as the launcher and `ddpprof diagnose` ask."""

from __future__ import annotations

import json
from pathlib import Path

from ddpprof.model.hang import Fault
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
