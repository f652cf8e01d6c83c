"""The launcher's thread that checks the pulses of a running job and reports problems as they appear."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ddpprof import rundir

Say = Callable[[str], None]

_FIRST_LOOK_S = 3.0
_SHARE = 0.02
"""each kind of check is repeated so rarely that it uses at most this share of a CPU core on average"""
_LONG_S = 1.0
"""a check counts as long if it takes at least this many seconds"""
_MOST_FAILURES = 30
"""after this many I/O errors in a row, ddpprof stops watching the job"""
_RETRY_S = 1.0
"""seconds from an I/O error to the next attempt"""


class Look(Protocol):
    """A check that is repeated while the job runs."""

    every_s: float
    """minimum number of seconds between two checks"""

    def at(self, directory: Path, missed_s: float, is_over: bool) -> None:
        """Check the run in a directory.

        `missed_s`: time since the previous check during which this process did not run. `is_over`: whether the job has
        ended, and this is the last check.
        """


class RunWatch:
    """Watches a run from `start` until `end`."""

    def __init__(
        self, out: Path, say: Say, kill_after_s: float | None, dumps_stacks: bool = False, names_top: bool = False
    ) -> None:
        """Prepare to watch the run `out`.

        `names_top`: print the ``ddpprof top`` command once the ranks can be shown.
        """
        self._out = out
        self._say = say
        self._kill_after_s = kill_after_s
        self._dumps_stacks = dumps_stacks
        self._names_top = names_top
        self._tells_of_start, self._began_s = True, _now_s()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddpprof-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop watching. Call this before the run is read."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread handles them
        try:
            self._look_until_the_end()
        except Exception as error:  # noqa: BLE001 (an error here must not affect the job)
            self._say(f"stopped watching the job: {error}")

    def _look_until_the_end(self) -> None:
        first_s, time_of_day_s = _now_s() + _FIRST_LOOK_S, _time_of_day_s()
        turns: list[_Turn] = []
        slow_s, failures = 0.0, _Failures()
        while not self._ending.wait(max(0.1, min((turn.due_s for turn in turns), default=first_s) - _now_s())):
            with failures.counted():
                directory = self._directory()
                if directory is None:
                    self._tell_of_start()
                    continue
                self._tells_of_start = False
                self._name_top(directory)
            if failures.in_a_row:
                self._ending.wait(_RETRY_S)
                continue
            turns = turns or [_Turn(look, time_of_day_s) for look in self._looks()]
            for turn in turns:
                if _now_s() >= turn.due_s:
                    slow_s += turn.look_at(directory, slow_s)
        directory = self._directory()
        if directory is not None:
            for look in [turn.look for turn in turns] or self._looks():
                look.at(directory, 0.0, is_over=True)

    def _looks(self) -> tuple[Look, ...]:
        """Return all checks. Their modules are imported in this thread, so that the import does not delay the job."""
        from ddpprof.monitor.looks import EndLook, GrowthLook, HangLook, LossLook, SlowdownLook

        return (
            HangLook(self._say, self._kill_after_s, self._dumps_stacks),
            SlowdownLook(self._say),
            GrowthLook(self._say),
            LossLook(self._say),
            EndLook(self._say),
        )

    def _tell_of_start(self) -> None:
        """Report once that no rank has begun to train for a long time, and which ranks have started on this host."""
        from ddpprof.model.hang import LONG_START_S  # not with this module, which `--help` imports

        if self._tells_of_start and _now_s() - self._began_s > LONG_START_S:
            from ddpprof.monitor.processes import start_line, starting_job

            self._tells_of_start = False
            self._say(start_line(starting_job(os.getpid())))

    def _name_top(self, directory: Path) -> None:
        """Print the location of the run once, as soon as its ranks can be shown."""
        if self._names_top and rundir.pulses_in(directory):
            self._names_top = False
            self._say(f"the run is in {self._out}. View its ranks with: ddpprof top {self._out}")

    def _directory(self) -> Path | None:
        """Return the directory of the running attempt; ``None`` if none has started yet."""
        return rundir.last_attempt(self._out) if rundir.is_run(self._out) else None


class _Failures:
    """Counts consecutive I/O errors. Watching continues after a short outage of a network disk."""

    def __init__(self) -> None:
        self.in_a_row = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Suppress an ``OSError``, unless too many have occurred in a row."""
        try:
            yield
            self.in_a_row = 0
        except OSError:
            self.in_a_row += 1
            if self.in_a_row == _MOST_FAILURES:
                raise


class _Turn:
    """Schedule of one kind of check."""

    def __init__(self, look: Look, time_of_day_s: float) -> None:
        self.look = look
        self.due_s = _now_s()
        self._time_of_day_s = time_of_day_s
        self._slow_s = 0.0
        self._took_long = False
        self._failures = _Failures()

    def look_at(self, directory: Path, slow_s: float) -> float:
        """Check the run. Return the duration of the check in seconds if this and the previous check were long,
        otherwise 0.

        `slow_s`: sum of the durations returned so far for all kinds of checks. Long checks delay later checks. This
        delay is not counted as missed time, because slow storage causes it.
        """
        began_s, began_cpu_s, time_of_day_s = _now_s(), time.thread_time(), _time_of_day_s()
        late_s = began_s - self.due_s - (slow_s - self._slow_s)
        missed_s = max(late_s, abs(time_of_day_s - self._time_of_day_s))
        self._time_of_day_s = time_of_day_s
        with self._failures.counted():
            self.look.at(directory, missed_s, is_over=False)
        lasted_s, took_long_before = _now_s() - began_s, self._took_long
        self._took_long = lasted_s > _LONG_S
        own_slow_s = lasted_s if self._took_long and took_long_before else 0.0
        self._slow_s = slow_s + own_slow_s
        self.due_s = _now_s() + max(self.look.every_s, (time.thread_time() - began_cpu_s) / _SHARE)
        return own_slow_s


def _now_s() -> float:
    """Return monotonic time in seconds that, if the system supports it, includes time in which the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _time_of_day_s() -> float:
    """Return the time of day minus `_now_s`. The difference changes only when the clock is set."""
    return time.time() - _now_s()
