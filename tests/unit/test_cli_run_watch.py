"""What the launcher says of hangs and slow-downs while the job runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import wait_until
from pulse_files import MadeStep, write_pulse

from ddpprof.cli import run_watch
from ddpprof.cli.run_watch import HangLook, LossLook, RunWatch, SlowdownLook
from ddpprof.diagnosis import diagnose, hang_detector
from ddpprof.diagnosis.hang_detector import Overdue
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.slowdown import SlowdownCause, StepSlowdown
from ddpprof.monitor import pulse_files, slowdowns

S = 10**9
RISE = (
    "since step 100 steps take 50% longer, 10.0 → 15.0 ms: all ranks wait longer for each other in collectives, and "
    "none needs longer by itself"
)


def slow(
    began_s: float, ended_s: float | None = None, after_ns: int = 15_000_000, first_step: int = 100
) -> StepSlowdown:
    return StepSlowdown(
        first_step=first_step, last_step=None if ended_s is None else first_step + 99,
        before_ns=10_000_000, after_ns=after_ns, num_steps=100, began_ns=int(began_s * S),
        ended_ns=None if ended_s is None else int(ended_s * S), cause=SlowdownCause.LINK, ranks=(),
    )  # fmt: skip


class Watched:
    """A job whose slow-downs are known at each moment."""

    def __init__(self) -> None:
        self.slowdowns: list[StepSlowdown] = []

    def update(self, _pulses: object) -> None:
        pass


class Launcher:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.said: list[str] = []
        self.job = Watched()
        self._monkeypatch, self._folder = monkeypatch, tmp_path
        self._look = SlowdownLook(self.said.append)
        monkeypatch.setattr(pulse_files, "read_pulses", lambda _: {})
        monkeypatch.setattr(slowdowns, "SlowdownWatch", lambda: self.job)

    def looks(self, at_s: float, *found: StepSlowdown) -> list[str]:
        """Return what it says when it looks at this time, and these slow-downs are known."""
        self.job.slowdowns = list(found)
        self._monkeypatch.setattr(time, "time_ns", lambda: int(at_s * S))
        self.said.clear()
        self._look.at(self._folder, 0.0)
        return [line.replace(f" ({time.strftime('%H:%M:%S', time.localtime(1000))})", "") for line in self.said]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launcher:
    return Launcher(monkeypatch, tmp_path)


def test_a_slow_down_is_told_once_it_has_lasted_and_when_it_is_over(launcher: Launcher) -> None:
    assert launcher.looks(1010, slow(1000)) == []
    assert launcher.looks(1021, slow(1000)) == [RISE]
    assert launcher.looks(1023, slow(1000)) == []
    assert launcher.looks(1090, slow(1000, ended_s=1088)) == ["from step 200 on, steps are as before"]
    assert launcher.looks(1092, slow(1000, ended_s=1088)) == []


def test_a_short_or_a_small_one_is_not_told(launcher: Launcher) -> None:
    assert launcher.looks(1012, slow(1000)) == []
    assert launcher.looks(1060, slow(1000, ended_s=1015)) == []
    assert launcher.looks(1120, slow(1000, ended_s=1015), slow(1070, after_ns=10_900_000, first_step=200)) == []
    assert launcher.looks(1120, slow(1000, ended_s=1015), slow(1015, after_ns=10_900_000, first_step=200)) == []


def test_the_end_is_not_told_if_another_one_follows(launcher: Launcher) -> None:
    assert launcher.looks(1021, slow(1000)) == [RISE]
    assert launcher.looks(1090, slow(1000, ended_s=1088), slow(1088, after_ns=20_000_000, first_step=200)) == []


def test_slow_downs_that_follow_each_other_are_one(launcher: Launcher) -> None:
    """A busy machine changes by how much steps are longer, every few seconds."""
    first, second = slow(1000, ended_s=1012), slow(1012, after_ns=14_000_000, first_step=200)
    assert launcher.looks(1015, first, second) == []
    (told,) = launcher.looks(1021, first, second)
    assert told.startswith("since step 200")
    worse = slow(1030, after_ns=30_000_000, first_step=300)
    second = slow(1012, ended_s=1030, after_ns=14_000_000, first_step=200)
    assert launcher.looks(1031, first, second, worse) == []
    (told,) = launcher.looks(1051, first, second, worse)
    assert "200% longer" in told
    over = slow(1030, ended_s=1060, after_ns=30_000_000, first_step=300)
    assert launcher.looks(1061, first, second, over) == ["from step 400 on, steps are as before"]
    assert launcher.looks(1063, first, second, over) == []


def test_a_slow_down_of_which_it_spoke_may_turn_out_to_have_been_none(launcher: Launcher) -> None:
    assert launcher.looks(1021, slow(1000)) == [RISE]
    withdrawn = "steps are as before again; all in all, those from step 100 on were hardly longer"
    assert launcher.looks(1400) == [withdrawn]
    assert launcher.looks(1402) == []


def test_there_is_an_end_to_what_it_says(launcher: Launcher) -> None:
    assert len(launcher.looks(9000, *(slow(1000, ended_s=1030, first_step=200 * number) for number in range(50)))) == 20


class Noting:
    """A look that notes by how much the time has gone on unseen; after the first one, somebody sets the clock."""

    every_s = 0.1

    def __init__(self, set_clock: Callable[[], None]) -> None:
        self.missed_s: list[float] = []
        self._set_clock = set_clock

    def at(self, _directory: Path, missed_s: float) -> None:
        self.missed_s.append(missed_s)
        if len(self.missed_s) == 1:
            self._set_clock()

    def last_time(self, _directory: Path) -> None:
        pass


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_a_clock_that_is_set_is_noticed(by_s: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = time.time
    look = Noting(lambda: monkeypatch.setattr(time, "time", lambda: now() + by_s))
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(RunWatch, "_directory", lambda _: tmp_path)
    watch = RunWatch(tmp_path, is_quiet=True, kill_after_s=None)
    watch._looks = (look,)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 3, "three looks")
    watch.end()
    assert [round(missed_s, -2) for missed_s in look.missed_s[:3]] == [0, 3600, 0]


class Detector:
    """Looks at a job whose step 20 is overdue for so long."""

    waited_s = 0.0

    def look(self, _missed_s: float) -> Overdue:
        return Overdue(20, self.waited_s, 0.1)


@pytest.mark.parametrize(
    ("verdict", "silent_at_s", "told_at_s"),
    [
        pytest.param(Verdict(Fault.LOADER, rank=1), [], 6, id="hangs"),
        pytest.param(Verdict(Fault.DIED, rank=1, has_failed=True), [6, 29], 31, id="launcher-may-start-it-anew"),
    ],
)
def test_when_a_verdict_is_told(
    verdict: Verdict, silent_at_s: list[float], told_at_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    detector = Detector()
    monkeypatch.setattr(hang_detector, "HangDetector", lambda _: detector)
    monkeypatch.setattr(diagnose, "diagnose_overdue", lambda *_: verdict)
    look = HangLook(said.append, None, dumps_stacks=False)
    for detector.waited_s in silent_at_s:
        look.at(tmp_path, 0.0)
        assert said == []
    detector.waited_s = told_at_s
    look.at(tmp_path, 0.0)
    num_said = len(said)
    assert said[0].startswith("The job ")
    look.at(tmp_path, 0.0)
    assert len(said) == num_said, "once"


def test_the_same_hang_of_the_next_attempt_is_told_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    detector = Detector()
    detector.waited_s = 6
    monkeypatch.setattr(hang_detector, "HangDetector", lambda _: detector)
    monkeypatch.setattr(diagnose, "diagnose_overdue", lambda *_: Verdict(Fault.LOADER, rank=1))
    look = HangLook(said.append, 0.0, dumps_stacks=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a job that has only begun to hang is not ended"))
    for attempt in ("attempt-0", "attempt-1"):
        (tmp_path / attempt).mkdir()
        look.at(tmp_path / attempt, 0.0)
        assert (tmp_path / attempt / "hang.json").exists()
    assert len([line for line in said if line.startswith("The job hangs")]) == 2


BEGAN = "The loss has been NaN or infinite, first in step 5 on rank 1"
AT_THE_END = "The loss was NaN or infinite in 3 steps, first in step 5 on rank 1"


@pytest.fixture
def loss_look() -> tuple[LossLook, list[str]]:
    said: list[str] = []
    return LossLook(said.append), said


def train(folder: Path, num_steps: int, is_nan: bool = True) -> None:
    """Let two ranks have trained so many steps; the loss of rank 1 is NaN in step 5, and that of rank 0 in the next."""
    for rank, first in ((0, 6), (1, 5)):
        seen = {"nonfinite_step": first, "num_nonfinite": 3, "finite_step": first - 1} if is_nan else {}
        write_pulse(folder, rank, [MadeStep()] * num_steps, first_step=0, **seen)


def test_a_loss_is_told_once_the_other_ranks_had_a_step_to_follow(
    loss_look: tuple[LossLook, list[str]], tmp_path: Path
) -> None:
    look, said = loss_look
    train(tmp_path, 6)
    look.at(tmp_path, 0.0)
    assert said == []
    train(tmp_path, 7)
    look.at(tmp_path, 0.0)
    look.at(tmp_path, 0.0)
    look.last_time(tmp_path)
    (line,) = said
    assert line.startswith(
        f"{BEGAN}: the other ranks followed in step 6, with gradients that DDP had averaged. Look at"
    )


def test_a_loss_is_told_at_the_end_and_in_each_attempt(loss_look: tuple[LossLook, list[str]], tmp_path: Path) -> None:
    look, said = loss_look
    for folder in (tmp_path / "first", tmp_path / "second"):
        train(folder, 6)
        look.last_time(folder)
    assert [line.split(":")[0] for line in said] == [AT_THE_END] * 2
    train(tmp_path / "third", 20, is_nan=False)
    look.last_time(tmp_path / "third")
    assert len(said) == 2
