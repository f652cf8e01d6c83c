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
    monkeypatch.setattr(RunWatch, "_looks", lambda _: (look,))
    watch = RunWatch(tmp_path, pytest.fail, kill_after_s=None)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 3, "three looks")
    watch.end()
    assert [round(missed_s, -2) for missed_s in look.missed_s[:3]] == [0, 3600, 0]
