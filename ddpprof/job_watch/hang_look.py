"""Does the job hang, and why?"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from ddpprof import own_files, rundir
from ddpprof.diagnosis.evidence import gather
from ddpprof.diagnosis.examination import examine_running
from ddpprof.diagnosis.hang_detector import HangDetector
from ddpprof.diagnosis.stacks import dump_stacks
from ddpprof.job_watch.run_watch import Say
from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import PulseHead, is_gone, is_silent, read_heads
from ddpprof.monitor.verdict_files import write_verdict
from ddpprof.render.hang_words import standstill_line, verdict_lines

_LAUNCHER_S = 30.0
"""seconds in which a launcher, once a rank has died, ends the others"""
_RESTART_S = 600.0
"""seconds in which it starts all ranks anew, if none of them is left"""
_MAY_GO_ON = (Hint.WAITS_OUTSIDE, Hint.WAITS_FOR_INPUT)
"""jobs that ``--kill-after`` never ends, nor one whose training is over"""


class HangLook:
    """Says when a job hangs, and why. It never touches the job, unless it was told to end one that hangs."""

    every_s = 1.0

    def __init__(self, say: Say, kill_after_s: float | None, dumps_stacks: bool) -> None:
        self._say, self._dumps_stacks = say, dumps_stacks
        self._kill_after_s = kill_after_s
        self._directory: Path | None = None
        self._verdict: Verdict | None = None
        self._hangs_at: int | None = None
        """step of the current hang"""
        self._told_of: set[tuple[int | None, str | None]] = set()
        """ranks and lines of standstills that were told"""
        self._judged_at = 0.0

    def at(self, directory: Path, missed_s: float, is_over: bool) -> None:
        if is_over:  # how a job ended is told by others
            return
        if self._directory != directory:
            self._directory, self._detector = directory, HangDetector(directory)
            self._verdict = self._hangs_at = None
            self._told_of = set()
        if self._verdict is None:
            self._examine(directory, missed_s)
            return
        overdue = self._detector.look(missed_s)
        if overdue is None or (self._hangs_at is not None and overdue.step > self._hangs_at):
            self._goes_on(directory)
        elif self._is_to_end():
            self._say(f"the job still hangs after {self._kill_after_s:g} more seconds, so --kill-after ends it")
            self._kill_after_s = None
            os.kill(os.getpid(), signal.SIGTERM)  # as if somebody had asked for it: it is passed on to the job

    def _examine(self, directory: Path, missed_s: float) -> None:
        """Say once what is wrong, or for what outside the job a rank waits while others wait for it."""
        seen = examine_running(directory, self._detector, missed_s)
        if seen.standstill is not None:
            self._tell_of_standstill(seen.standstill)
        if seen.verdict is None:
            return
        waited_s = 0.0 if seen.overdue is None else seen.overdue.waited_s
        if seen.verdict.has_failed and waited_s < _patience_s(directory):
            return
        self._hangs_at = None if seen.overdue is None else seen.overdue.step
        self._verdict, self._judged_at = seen.verdict, time.monotonic()
        self._tell(directory, seen.verdict)

    def _is_to_end(self) -> bool:
        """Return whether the user wants the job to be ended. What it waits for outside may still answer."""
        if self._kill_after_s is None or self._verdict is None:
            return False
        if self._verdict.hint in _MAY_GO_ON or self._verdict.fault is Fault.DOES_NOT_EXIT:
            return False
        return time.monotonic() - self._judged_at > self._kill_after_s

    def _tell_of_standstill(self, found: Standstill) -> None:
        """Say once for each line for what outside the job a rank waits there, while others wait for it."""
        place = found.rank, found.place
        if found.waits_for is not None and found.waiting and place not in self._told_of:
            self._told_of.add(place)
            self._say(standstill_line(found))

    def _tell(self, directory: Path, verdict: Verdict) -> None:
        with suppress(OSError):
            write_verdict(directory, verdict)
        for line in verdict_lines(verdict):
            self._say(line)
        if self._dumps_stacks:
            self._dump_stacks(directory)

    def _dump_stacks(self, directory: Path) -> None:
        path = directory / rundir.HANG_STACKS_FILE
        try:
            own_files.write_whole(path, dump_stacks(gather(directory, records=False)).encode())
        except OSError as error:
            self._say(f"cannot write {path}: {error.strerror}")
        else:
            self._say(f"Where all threads stand: {path}")

    def _goes_on(self, directory: Path) -> None:
        """Note that a job that hung has ended the step."""
        if self._verdict is None or self._hangs_at is None:
            return
        if not any(head.state.step > self._hangs_at for head in read_heads(directory, 1)):
            return  # its ranks have ended
        with suppress(OSError):
            write_verdict(directory, structs.replace(self._verdict, resumed_unix_ns=time.time_ns()))
        self._say(f"the job goes on: step {self._hangs_at} is over")
        self._verdict = self._hangs_at = None


def _patience_s(directory: Path) -> float:
    """Return for how many seconds a job in which a rank has died may stand still, because its launcher goes on."""
    training = [head for head in read_heads(directory, 1) if head.state.ended == Ended.NOT_YET]
    return _RESTART_S if all(map(_has_left, training)) else _LAUNCHER_S


def _has_left(head: PulseHead) -> bool:
    """Return whether a rank's process is dead, as far as can be seen from here."""
    is_dead = is_gone(head.identity)
    return is_silent(head.identity, head.state, time.time_ns()) if is_dead is None else is_dead
