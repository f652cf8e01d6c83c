"""What is known of each rank, gathered from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pulse_files import BEGIN_NS, SECOND, MadeStep, write_pulse

from ddpprof.diagnosis import evidence
from ddpprof.diagnosis.evidence import RankEvidence, gather


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_LOOK_AGAIN_S", 0.0)


def of_one_rank(directory: Path, **seen: object) -> RankEvidence:
    """Return the evidence of a rank whose end was seen like this, if at all."""
    write_pulse(directory, 0, [MadeStep()])
    if seen:
        (directory / "exits.jsonl").write_text(json.dumps({"rank": 0, **seen}) + "\n")
    (found,) = gather(directory)
    return found


def test_an_end_that_was_seen(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path, exit_code=-9, unix_ns=BEGIN_NS + SECOND)
    assert found.exit is not None
    assert found.is_dead


def test_a_rank_that_said_nothing_has_not_died_in_a_job_that_ended_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one does that ends by ``os._exit(0)``."""
    monkeypatch.setattr(evidence, "machine_id", lambda: "of another machine")  # that of pulses made by hand
    monkeypatch.setattr(evidence, "look_at", lambda _: None)
    assert of_one_rank(tmp_path).is_dead
    (tmp_path / "exits.jsonl").write_text(json.dumps({"is_job": True, "exit_code": 0, "unix_ns": BEGIN_NS + SECOND}))
    (found,) = gather(tmp_path)
    assert not found.is_dead


def test_the_end_of_an_earlier_attempt_is_not_that_of_this_one(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path, exit_code=-9, unix_ns=BEGIN_NS - 3600 * SECOND)
    assert found.exit is None
    assert not found.is_dead


def test_a_rank_on_another_machine_has_no_process(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path)
    assert (found.is_here, found.process, found.workers, found.computes, found.record) == (False, None, (), False, None)
    assert found.is_silent, "its last sign is years old"
