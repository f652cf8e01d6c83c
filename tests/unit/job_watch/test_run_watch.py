"""The thread that looks at the job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import wait_until

from ddpprof.job_watch import run_watch
from ddpprof.job_watch.run_watch import RunWatch


class Noting:
    """A look that notes by how much the time has gone on unseen; after the first one, somebody sets the clock."""

    every_s = 0.1

    def __init__(self, set_clock: Callable[[], None]) -> None:
        self.missed_s: list[float] = []
        self._set_clock = set_clock

    def at(self, _directory: Path, missed_s: float, is_over: bool) -> None:
        if is_over:
            return
        self.missed_s.append(missed_s)
        if len(self.missed_s) == 1:
            self._set_clock()


class Slow:
    """A look that takes a minute, each time or only once."""

    every_s = 0.1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
        self._lasted_s, self._always = 0.0, always
        time_of_day, clock = time.time, time.clock_gettime
        monkeypatch.setattr(time, "time", lambda: time_of_day() + self._lasted_s)
        monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + self._lasted_s)

    def at(self, _directory: Path, _missed_s: float, is_over: bool) -> None:
        if not is_over and (self._always or not self._lasted_s):
            self._lasted_s += 60


@pytest.mark.parametrize(
    "always", [pytest.param(False, id="the-machine-slept-meanwhile"), pytest.param(True, id="storage-is-slow")]
)
def test_no_time_is_missed_because_another_look_takes_long_again_and_again(
    always: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look = Noting(lambda: None)
    slow = Slow(monkeypatch, always)
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(RunWatch, "_directory", lambda _: tmp_path)
    monkeypatch.setattr(RunWatch, "_looks", lambda _: (look, slow))
    watch = RunWatch(tmp_path, pytest.fail, kill_after_s=None)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 5, "five looks")
    watch.end()
    assert [round(missed_s, -1) for missed_s in look.missed_s[:5]] == [0, 60, 0, 0, 0]


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_a_clock_that_is_set_is_noticed(by_s: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = time.time
    look = Noting(lambda: monkeypatch.setattr(time, "time", lambda: now() + by_s))
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(RunWatch, "_directory", lambda _: tmp_path)
    monkeypatch.setattr(RunWatch, "_looks", lambda _: (look,))
    watch = RunWatch(tmp_path, pytest.fail, kill_after_s=None)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 3, "three looks")
    watch.end()
    assert [round(missed_s, -2) for missed_s in look.missed_s[:3]] == [0, 3600, 0]


class Failing:
    """A look that fails a number of times, as on a network's disk that is gone for a while."""

    every_s = 0.01

    def __init__(self, num_failures: int) -> None:
        self.num_looks, self._num_failures = 0, num_failures

    def at(self, _directory: Path, _missed_s: float, is_over: bool) -> None:
        if is_over:
            return
        self.num_looks += 1
        if self.num_looks <= self._num_failures:
            raise OSError("stale file handle")


@pytest.mark.parametrize("num_failures", [pytest.param(2, id="for-a-moment"), pytest.param(10**6, id="for-good")])
def test_a_disk_that_fails(num_failures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another look, which works, hides no failures."""
    (tmp_path / "run.json").write_text("{}")
    look, said = Failing(num_failures), list[str]()
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.1)
    monkeypatch.setattr(run_watch, "_MOST_FAILURES", 5)
    monkeypatch.setattr(RunWatch, "_looks", lambda _watch: (look, Failing(0)))
    watch = RunWatch(tmp_path, said.append, None)
    watch.start()
    wait_until(lambda: look.num_looks > 6 or bool(said), "it goes on, or gives up")
    watch.end()
    assert said == ([] if num_failures == 2 else ["no longer watches the job: stale file handle"])
