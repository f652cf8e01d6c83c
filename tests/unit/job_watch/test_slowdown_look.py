"""When the launcher speaks of a slow-down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpprof.job_watch import slowdown_look
from ddpprof.job_watch.slowdown_look import SlowdownLook
from ddpprof.model.slowdown import SlowdownCause, StepSlowdown

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
        monkeypatch.setattr(slowdown_look, "read_pulses", lambda _: {})
        monkeypatch.setattr(slowdown_look, "SlowdownWatch", lambda: self.job)

    def looks(self, at_s: float, *found: StepSlowdown) -> list[str]:
        """Return what it says when it looks at this time, and these slow-downs are known."""
        self.job.slowdowns = list(found)
        self._monkeypatch.setattr(time, "time_ns", lambda: int(at_s * S))
        self.said.clear()
        self._look.at(self._folder, 0.0, is_over=False)
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
    withdrawn = "the steps from 100 on turned out to be within the normal range of this job"
    assert launcher.looks(1400) == [withdrawn]
    assert launcher.looks(1402) == []


def test_there_is_an_end_to_what_it_says(launcher: Launcher) -> None:
    assert len(launcher.looks(9000, *(slow(1000, ended_s=1030, first_step=200 * number) for number in range(50)))) == 20
