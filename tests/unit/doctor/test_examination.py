"""What the doctor says of a busy machine, and before it begins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpprof.cli import main
from ddpprof.doctor import examination
from ddpprof.doctor.catalogue import MACHINE, NAMES, QUICK, TRAINING
from ddpprof.doctor.check import CheckStatus, judge
from ddpprof.doctor.machine import busy_share


def test_a_time_that_is_wrong_on_a_busy_machine_is_no_failure() -> None:
    slow = judge("netbench", False, "0.52 GB/s", "0.40 GB/s", "The network is slow.")
    fine = judge("delay", True, "100 ms", "101 ms", "")
    [of_slow, of_fine] = examination.unsure([slow, fine])
    assert (of_slow.verdict, of_fine.verdict) == (CheckStatus.UNSURE, CheckStatus.PASS)
    assert of_slow.reason is not None
    assert of_slow.reason.endswith(
        "the machine is busy with other work: stop that and check again with --only netbench."
    )


def test_how_busy_the_machine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 ticks, 60 were idle and 10 waited for disks."""
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\n")
    monkeypatch.setattr(time, "sleep", lambda _s: stat.write_text("cpu  120 0 60 860 60 0 0 0 0 0\n"))
    assert busy_share(tmp_path) == 0.3
    assert busy_share(tmp_path / "nowhere") == 0.0


def test_the_quick_checks_are_those_of_the_machine_and_one_training() -> None:
    assert {name for check in MACHINE for name in check.names} < set(QUICK) < set(NAMES)
    assert sum(check.quick for check in TRAINING) == 1


@pytest.mark.parametrize(
    ("options", "says", "only"), [([], "All checks take about", ()), (["--quick"], "half a minute", QUICK)]
)
def test_it_says_beforehand_how_long_it_takes(
    options: list[str],
    says: str,
    only: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []
    monkeypatch.setattr(examination, "examine", lambda *given: asked.append(given[2]) or ())
    assert main(["doctor", "--out", str(tmp_path / "doctor.json"), *options]) == 0
    assert says in capsys.readouterr().out
    assert asked == [only]
