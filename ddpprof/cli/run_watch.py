"""A thread of the launcher that looks at the job's pulses while it runs, and says what is wrong as soon as it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddpprof.cli.saying import say

if TYPE_CHECKING:
    from ddpprof.diagnosis.hang_detector import Overdue
    from ddpprof.model.hang import Verdict
    from ddpprof.model.pulse import Pulse
    from ddpprof.model.slowdown import StepSlowdown

_FIRST_LOOK_S = 3.0
_SHARE = 0.02
"""most of a core that each kind of looking may take, on average"""
_MOST_SAID = 20
"""number of slow-downs of which the launcher speaks; all are in the report"""
_WORTH_SAYING = 0.10
"""growth of a step from which on the launcher speaks of it"""
_MUCH_WORSE = 0.5
"""growth beyond that of which it spoke from which on it speaks of it again"""
_LASTING_S = 20.0
"""seconds for which steps are slow before the launcher speaks of it"""
_LAUNCHER_S = 30.0
"""seconds in which a launcher, once a rank has died, ends the others or starts all ranks anew"""

Say = Callable[[str], None]


class Look(Protocol):
    every_s: float
    """seconds between two looks, or more if a look takes long"""

    def at(self, directory: Path, missed_s: float) -> None:
        """Look at the run in a directory. `missed_s`: by how much the time has gone on unseen since the last look."""

    def last_time(self, directory: Path) -> None:
        """Look at a run whose job has ended."""


class RunWatch:
    """Looks at one run until it is ended."""

    def __init__(
        self, out: Path, is_quiet: bool, kill_after_s: float | None, dumps_stacks: bool = False, names_top: bool = False
    ) -> None:
        """`names_top`: name the command that shows the ranks, once it can."""
        self._out = out
        self._names_top = names_top
        self._is_quiet = is_quiet
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddpprof-watch", daemon=True)
        self._looks: tuple[Look, ...] = (
            HangLook(self._say, kill_after_s, dumps_stacks),
            SlowdownLook(self._say),
            LossLook(self._say),
        )

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop looking; call this before the run is read."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread waits for them
        try:
            self._look_until_the_end()
        except Exception as error:  # noqa: BLE001 (the job goes on, whatever happens to who watches it)
            self._say(f"no longer watches the job: {error}")

    def _look_until_the_end(self) -> None:
        due = dict.fromkeys(self._looks, _now_s() + _FIRST_LOOK_S)
        times_of_day = dict.fromkeys(self._looks, _time_of_day_s())
        while not self._ending.wait(max(0.1, min(due.values()) - _now_s())):
            directory = self._directory()
            if directory is not None:
                self._name_top(directory)
            for look in self._looks:
                late_s = _now_s() - due[look]
                if late_s < 0:
                    continue
                began, time_of_day = time.thread_time(), _time_of_day_s()
                missed_s = max(late_s, abs(time_of_day - times_of_day[look]))
                times_of_day[look] = time_of_day
                if directory is not None:
                    look.at(directory, missed_s)
                took_s = time.thread_time() - began
                due[look] = _now_s() + max(look.every_s, took_s / _SHARE)
        directory = self._directory()
        if directory is not None:
            for look in self._looks:
                look.last_time(directory)

    def _name_top(self, directory: Path) -> None:
        """Say once where the run is, as soon as its ranks can be seen."""
        from ddpprof import rundir

        if self._names_top and rundir.pulses_in(directory):
            self._names_top = False
            self._say(f"the run is in {self._out}. See its ranks while they train: ddpprof top {self._out}")

    def _directory(self) -> Path | None:
        """Return the directory of the attempt that runs now, once there is one."""
        from ddpprof import rundir

        return rundir.last_attempt(self._out) if rundir.is_run(self._out) else None

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            with suppress(Exception):  # stderr may be closed
                say(f"ddpprof: {text}", file=sys.stderr, flush=True)


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
        self._judged_at = 0.0

    def at(self, directory: Path, missed_s: float) -> None:
        from ddpprof.diagnosis.hang_detector import HangDetector

        if self._directory != directory:
            self._directory, self._detector = directory, HangDetector(directory)
            self._verdict = self._hangs_at = None
        overdue = self._detector.look(missed_s)
        if overdue is None:
            self._goes_on(directory)
        elif self._hangs_at != overdue.step:
            self._judge(directory, overdue)
        elif self._kill_after_s is not None and time.monotonic() - self._judged_at > self._kill_after_s:
            self._say(f"the job still hangs after {self._kill_after_s:g} more seconds, so --kill-after ends it")
            self._kill_after_s = None
            os.kill(os.getpid(), signal.SIGTERM)  # as if somebody had asked for it: it is passed on to the job

    def last_time(self, directory: Path) -> None:
        """Do nothing: how a job ended is told by others."""

    def _judge(self, directory: Path, overdue: Overdue) -> None:
        from ddpprof.diagnosis.diagnose import diagnose_overdue
        from ddpprof.monitor.hangs import write_verdict
        from ddpprof.render.hang_words import verdict_lines

        verdict = diagnose_overdue(directory, overdue, self._detector)
        if verdict is None or (verdict.has_failed and overdue.waited_s < _LAUNCHER_S):
            return
        self._hangs_at, self._verdict, self._judged_at = overdue.step, verdict, time.monotonic()
        with suppress(OSError):
            write_verdict(directory, verdict)
        for line in verdict_lines(verdict):
            self._say(line)
        if self._dumps_stacks:
            self._dump_stacks(directory)

    def _dump_stacks(self, directory: Path) -> None:
        from ddpprof import own_files, rundir
        from ddpprof.diagnosis.evidence import gather
        from ddpprof.diagnosis.stacks import dump_stacks

        path = directory / rundir.HANG_STACKS_FILE
        try:
            own_files.write_whole(path, dump_stacks(gather(directory, records=False)).encode())
        except OSError as error:
            self._say(f"cannot write {path}: {error.strerror}")
        else:
            self._say(f"Where all threads stand: {path}")

    @staticmethod
    def _has_passed(directory: Path, step: int) -> bool:
        from ddpprof.monitor.pulse_files import read_heads

        return any(head.state.step > step for head in read_heads(directory, 1))

    def _goes_on(self, directory: Path) -> None:
        """Note that a job that hung has ended the step."""
        from msgspec import structs

        from ddpprof.monitor.hangs import write_verdict

        if self._verdict is None or self._hangs_at is None:
            return
        if not self._has_passed(directory, self._hangs_at):
            return  # its ranks have ended
        with suppress(OSError):
            write_verdict(directory, structs.replace(self._verdict, resumed_unix_ns=time.time_ns()))
        self._say(f"the job goes on: step {self._hangs_at} is over")
        self._verdict = self._hangs_at = None


class SlowdownLook:
    """Says since when, by how much and why steps take longer, and keeps ``slowdowns.json``."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._directory: Path | None = None
        self._told: dict[int, float] = {}
        """slow-downs of which it has spoken, by their first step, with the growth that it told; 0 once they are over"""

    def at(self, directory: Path, _missed_s: float) -> None:
        from ddpprof.monitor.pulse_files import read_pulses
        from ddpprof.monitor.slowdowns import SlowdownWatch

        if self._directory != directory:
            self._directory, self._watch = directory, SlowdownWatch()
            self._told = {}
        pulses = read_pulses(directory)
        before = self._watch.slowdowns
        self._watch.update(pulses)
        if self._watch.slowdowns != before:
            self._write(directory, pulses)
        self._tell(len(pulses))

    def last_time(self, directory: Path) -> None:
        """Look at the last steps, and keep what all pauses took."""
        from ddpprof.monitor.pulse_files import read_pulses

        self.at(directory, 0.0)
        self._write(directory, read_pulses(directory))

    def _write(self, directory: Path, pulses: Mapping[int, Pulse]) -> None:
        from ddpprof.model.slowdown import Slowdowns
        from ddpprof.monitor.job_steps import common_steps
        from ddpprof.monitor.pauses import pauses_in
        from ddpprof.monitor.slowdown_file import write_slowdowns

        steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
        pauses = () if steps is None else pauses_in(steps)
        with suppress(OSError):
            write_slowdowns(directory, Slowdowns(self._watch.slowdowns, pauses))

    def _tell(self, world_size: int) -> None:
        from ddpprof.render.slowdown_words import slowdown_sentence

        chains = _chains(self._watch.slowdowns)
        shown = {one.first_step for one in self._watch.slowdowns}
        for withdrawn in [step for step, growth in self._told.items() if growth and step not in shown]:
            self._told[withdrawn] = 0.0
            self._say(f"steps are as before again; all in all, those from step {withdrawn:,} on were hardly longer")
        for chain in chains:
            last, step = chain[-1], next((one.first_step for one in chain if one.first_step in self._told), None)
            told = 0.0 if step is None else self._told[step]
            if step is None:
                large = [one for one in chain if one.growth >= _WORTH_SAYING]
                if large and _have_lasted(large) and len(self._told) < _MOST_SAID:
                    self._say(slowdown_sentence(large[-1], world_size))
                    self._told[large[0].first_step] = large[-1].growth if last.last_step is None else 0.0
            elif told and last.last_step is not None:
                self._told[step] = 0.0
                if chain is chains[-1]:
                    self._say(f"from step {last.last_step + 1:,} on, steps are as before")
            elif told and last.growth >= told + _MUCH_WORSE and _have_lasted([last]):
                self._say(slowdown_sentence(last, world_size))
                self._told[step] = last.growth


class LossLook:
    """Says once that a loss is NaN or infinite, and on which rank it began."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told_of: Path | None = None
        """the attempt of which it has spoken"""

    def at(self, directory: Path, _missed_s: float) -> None:
        """Speak of it once the other ranks have had a step in which to follow."""
        self._look(directory, is_over=False)

    def last_time(self, directory: Path) -> None:
        self._look(directory, is_over=True)

    def _look(self, directory: Path, is_over: bool) -> None:
        from ddpprof.findings.losses import nonfinite_finding
        from ddpprof.monitor.pulse_files import read_heads
        from ddpprof.monitor.whole_run import nonfinite_steps

        if self._told_of == directory:
            return
        heads = list(read_heads(directory, 0))
        ranks = {one.identity.rank: nonfinite_steps(one.state) for one in heads}
        first = min((one.first_step for one in ranks.values() if one is not None), default=None)
        if first is None or not (is_over or all(one.state.step > first + 1 for one in heads)):
            return
        found = nonfinite_finding(ranks, is_over=is_over)
        if found is not None:
            self._told_of = directory
            self._say(f"{found.title}: {found.evidence}. {found.advice}")


def _now_s() -> float:
    """Return seconds of a clock that goes on while the machine sleeps, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _time_of_day_s() -> float:
    """Return the time of day less `_now_s`: it changes if somebody sets the clock."""
    return time.time() - _now_s()


def _chains(slowdowns: Sequence[StepSlowdown]) -> list[list[StepSlowdown]]:
    """Return slow-downs that follow each other without a normal step in between, together."""
    chains: list[list[StepSlowdown]] = []
    for one in slowdowns:
        if chains and chains[-1][-1].last_step == one.first_step - 1:
            chains[-1].append(one)
        else:
            chains.append([one])
    return chains


def _have_lasted(slowdowns: Sequence[StepSlowdown]) -> bool:
    """Return whether slow-downs took longer than what other work on a machine does to a step now and then."""
    if any(one.began_ns is None for one in slowdowns):
        return True
    now_ns = time.time_ns()
    took_ns = sum((now_ns if one.ended_ns is None else one.ended_ns) - (one.began_ns or 0) for one in slowdowns)
    return took_ns >= _LASTING_S * 1e9
