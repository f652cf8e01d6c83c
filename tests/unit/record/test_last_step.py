"""How far a rank came, in a file that outlives it; and what a reader makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpprof.load.record import load_record
from ddpprof.record.output import LastStep
from ddpprof.rundir import last_step_file

FACTS = {"format": 1, "rank": 0, "world_size": 1, "host": "node", "pid": 7, "device": "cpu", "backend": "gloo",
         "torch": "2.13"}  # fmt: skip


def test_the_last_number_is_there_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(FACTS))
    last = LastStep(tmp_path / last_step_file(0))
    for number in (9, 10, 123_456):
        last.is_over(number, 5 * number)
    record = load_record(tmp_path, 0)
    last.close()
    assert record is not None
    assert (record.ended, record.num_steps, record.ended_unix_ns) == (None, 123_456, None)
    assert record.last_step_unix_ns == 5 * 123_456


@pytest.mark.parametrize("content", [b"", b"short", bytes(16), b"\xff" * 16, bytes(range(17))], ids=range(5))
def test_a_file_that_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(FACTS))
    (tmp_path / last_step_file(0)).write_bytes(content)
    record = load_record(tmp_path, 0)
    assert record is not None
    assert (record.num_steps, record.last_step_unix_ns) == (None, None)


def test_a_rank_that_said_how_it_ended(tmp_path: Path) -> None:
    facts = {**FACTS, "ended": "failed: ValueError: x", "num_steps": 14, "ended_unix_ns": 99}
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(facts))
    LastStep(tmp_path / last_step_file(0)).is_over(3, 99)
    record = load_record(tmp_path, 0)
    assert record is not None
    assert (record.num_steps, record.ended_unix_ns, record.last_step_unix_ns) == (14, 99, None)
