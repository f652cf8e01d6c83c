"""A check of the doctor that takes too long is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.doctor.catalogue import MACHINE
from ddpprof.doctor.check import Setup
from ddpprof.doctor.processes import run_checks


def test_a_check_in_time_and_one_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clock,) = (one for one in MACHINE if one.names == ("clock",))
    check, short = (type(clock)(clock.names, clock.module, clock.function, limit_s) for limit_s in (60, 5))
    faults = Path(__file__).parent.parent.parent / "faults"
    monkeypatch.setenv("PYTHONPATH", str(faults))
    assert [one.verdict for found in run_checks([check], Setup(), tmp_path, None) for one in found] == ["PASS"]
    monkeypatch.setenv("DDPPROF_TEST_FAULTS", "drifting_clock")
    assert [one.verdict for found in run_checks([check], Setup(), tmp_path, None) for one in found] == ["FAIL"]
    monkeypatch.setenv("DDPPROF_TEST_FAULTS", "slow_check")
    ((found,),) = run_checks([short], Setup(), tmp_path, None)
    assert (found.verdict, found.reason) == ("FAIL", "It took longer than 5 s, and was ended.")
