"""When the launcher speaks of a hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec import structs
from pulse_files import write_pulse

from ddpprof.diagnosis.hang_detector import Overdue
from ddpprof.job_watch import hang_look
from ddpprof.job_watch.hang_look import HangLook
from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.model.pulse import Ended

DIED = Verdict(Fault.DIED, rank=1, has_failed=True)


class Detector:
    """Looks at a job whose step 20 is overdue for so long, for this reason."""

    waited_s = 0.0

    def __init__(self, verdict: Verdict | Standstill) -> None:
        self._verdict = verdict

    def look(self, _missed_s: float) -> Overdue:
        return Overdue(20, self.waited_s, 0.1)

    def diagnose(self, _overdue: Overdue) -> Verdict | Standstill:
        return self._verdict


@pytest.mark.parametrize(
    ("verdict", "is_one_left", "silent_at_s", "told_at_s"),
    [
        pytest.param(Verdict(Fault.LOADER, rank=1), True, [], 6, id="hangs"),
        pytest.param(DIED, True, [6, 29], 31, id="launcher-may-end-the-others"),
        pytest.param(DIED, False, [6, 31, 599], 601, id="launcher-may-start-all-anew"),
    ],
)
def test_when_a_verdict_is_told(
    verdict: Verdict,
    is_one_left: bool,
    silent_at_s: list[float],
    told_at_s: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    write_pulse(tmp_path, 0, ended=Ended.FAILED)
    write_pulse(tmp_path, 1)
    write_pulse(tmp_path, 2, tick_ns=time.time_ns() if is_one_left else 0)
    said: list[str] = []
    detector = Detector(verdict)
    monkeypatch.setattr(hang_look, "HangDetector", lambda _: detector)
    look = HangLook(said.append, None, dumps_stacks=False)
    for detector.waited_s in silent_at_s:
        look.at(tmp_path, 0.0, is_over=False)
        assert said == []
    detector.waited_s = told_at_s
    look.at(tmp_path, 0.0, is_over=False)
    num_said = len(said)
    assert said[0].startswith("The job ")
    look.at(tmp_path, 0.0, is_over=False)
    assert len(said) == num_said, "once"


def test_the_same_hang_of_the_next_attempt_is_told_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    detector = Detector(Verdict(Fault.LOADER, rank=1))
    detector.waited_s = 6
    monkeypatch.setattr(hang_look, "HangDetector", lambda _: detector)
    look = HangLook(said.append, 0.0, dumps_stacks=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a job that has only begun to hang is not ended"))
    for attempt in ("attempt-0", "attempt-1"):
        (tmp_path / attempt).mkdir()
        look.at(tmp_path / attempt, 0.0, is_over=False)
        assert (tmp_path / attempt / "hang.json").exists()
    assert len([line for line in said if line.startswith("The job hangs")]) == 2


WAITS = Standstill(6.4, rank=1, step=20, waits_for="the network", place="up.py:3 in f", waiting=(0,), hangs_after_s=120)
SAID = (
    "rank 1 has waited for the network at up.py:3 in f for 6 s; rank 0 waits for it. This is not called a hang before "
    "120 s"
)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            WAITS,
            [SAID],
            id="outside-the-job",
        ),
        pytest.param(structs.replace(WAITS, waiting=()), [], id="nobody-waits"),
        pytest.param(structs.replace(WAITS, waits_for=None), [], id="it-computes"),
    ],
)
def test_a_wait_outside_the_job_is_told_once_for_each_line(
    found: Standstill, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_pulse(tmp_path, 0)
    monkeypatch.setattr(hang_look, "HangDetector", lambda _: Detector(found))
    heard: list[str] = []
    look = HangLook(heard.append, 0.0, dumps_stacks=False)
    for _ in range(2):
        look.at(tmp_path, 0.0, is_over=False)
    assert heard == said
    assert not (tmp_path / "hang.json").exists()


@pytest.mark.parametrize(
    ("fault", "hint", "num_killed"),
    [
        (Fault.OWN_CODE, None, 1),
        (Fault.OWN_CODE, Hint.WAITS_OUTSIDE, 0),
        (Fault.OWN_CODE, Hint.WAITS_FOR_INPUT, 0),
        (Fault.MISSING_COLLECTIVE, Hint.SKIPPED_COLLECTIVE, 1),
        (Fault.DOES_NOT_EXIT, None, 0),
    ],
)
def test_a_job_that_waits_for_something_outside_or_whose_training_is_over_is_never_ended(
    fault: Fault, hint: Hint | None, num_killed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_pulse(tmp_path, 0)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda *_: killed.append(1))
    monkeypatch.setattr(hang_look, "HangDetector", lambda _: Detector(Verdict(fault, rank=1, hint=hint)))
    look = HangLook(lambda _: None, 0.0, dumps_stacks=False)
    for _ in range(3):
        look.at(tmp_path, 0.0, is_over=False)
    assert len(killed) == num_killed
