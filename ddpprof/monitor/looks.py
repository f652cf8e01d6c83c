"""Checks of the launcher's thread that report hangs, slowdowns, and losses that are NaN or infinite."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import numpy as np
from msgspec import structs

from ddpprof import own_files, rundir
from ddpprof.load.record import load_exits
from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.model.pulse import Ended, Pulse
from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import Slowdowns, StepSlowdown, usual_of
from ddpprof.monitor.evidence import dump_stacks, gather
from ddpprof.monitor.hang_detector import HangDetector, examine
from ddpprof.monitor.judge import judge_end
from ddpprof.monitor.processes import starting_job
from ddpprof.monitor.pulse_files import (
    PulseHead,
    is_gone,
    is_silent,
    read_heads,
    read_pulses,
    read_slowdowns,
    write_slowdowns,
    write_verdict,
)
from ddpprof.monitor.slowdowns import (
    LASTING_S,
    SlowdownWatch,
    chains,
    common_steps,
    duration_ns,
    lasting,
    with_pauses,
    world_size_of,
)
from ddpprof.monitor.whole_run import history, nonfinite_steps, steady_growth, stretches
from ddpprof.topics.hang_words import standstill_line, verdict_lines
from ddpprof.topics.losses import nonfinite_finding
from ddpprof.topics.whole_run import (
    KEEPS_TENSORS,
    Growth,
    growth_of,
    is_explained,
    memory_growth_line,
    most_grown,
    slowdown_sentence,
)

Say = Callable[[str], None]

_LAUNCHER_S = 30.0
"""seconds after the death of a rank before ddpprof reports it; in this time, the launcher may end the other ranks"""
_RESTART_S = 600.0
"""seconds after the death of all ranks before ddpprof reports it; in this time, the launcher may restart them"""
_MAY_GO_ON = (Hint.WAITS_OUTSIDE, Hint.WAITS_FOR_INPUT)
"""``--kill-after`` does not end the job if the verdict has one of these hints, or if a process runs other code after
training
"""


class HangLook:
    """Reports that a job hangs, and why. Ends the job after `kill_after_s` seconds, unless this is ``None``."""

    every_s = 1.0

    def __init__(self, say: Say, kill_after_s: float | None, dumps_stacks: bool) -> None:
        self._say, self._dumps_stacks = say, dumps_stacks
        self._kill_after_s = kill_after_s
        self._directory: Path | None = None
        self._verdict: Verdict | None = None
        self._hangs_at: int | None = None
        """number of the step in which the job hangs"""
        self._told_of: set[tuple[int | None, str | None]] = set()
        """rank and line of code of each standstill that has been reported"""
        self._judged_at = 0.0

    def at(self, directory: Path, missed_s: float, is_over: bool) -> None:
        if is_over:  # how a job ended is reported elsewhere
            return
        if self._directory != directory:
            if self._directory is not None:
                self._tell_of_earlier_attempt(self._directory)
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
            self._say(
                f"the job still hangs after {self._kill_after_s:g} more seconds, so ddpprof ends it (--kill-after)"
            )
            self._kill_after_s = None
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher passes it on to the job, like a user's signal

    def _tell_of_earlier_attempt(self, directory: Path) -> None:
        """Report why an attempt failed that the launcher has restarted, unless it has already been reported."""
        verdict = examine(directory).verdict if self._verdict is None else None
        if verdict is not None and verdict.has_failed:
            self._say("the launcher has restarted the ranks. This is why the earlier attempt ended:")
            self._tell(directory, verdict)

    def _examine(self, directory: Path, missed_s: float) -> None:
        """Report the fault once, or report that the rank that delays other ranks waits for an event outside the job."""
        seen = examine(directory, self._detector, missed_s)
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
        """Return True if ``--kill-after`` is due.

        It is never due while the job waits for an event outside the job, or runs other code after its training.
        """
        if self._kill_after_s is None or self._verdict is None:
            return False
        runs_on = self._verdict.fault is Fault.DOES_NOT_EXIT and self._verdict.hint is not Hint.HELD_AFTER_TRAINING
        if runs_on or self._verdict.hint in _MAY_GO_ON:
            return False
        return time.monotonic() - self._judged_at > self._kill_after_s

    def _tell_of_standstill(self, found: Standstill) -> None:
        """Report, once per line of code, what a rank waits for outside the job while other ranks wait for this rank."""
        place = found.rank, found.place
        if (found.waits_for is not None or found.absent) and found.waiting and place not in self._told_of:
            self._told_of.add(place)
            self._say(standstill_line(found))
            pid = starting_job(os.getpid()).ranks.get(found.absent[0]) if found.absent else None
            if pid is not None:
                self._say(f"to find out what rank {found.absent[0]} does: py-spy dump --pid {pid}")

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
            self._say(f"Stacks of all threads: {path}")

    def _goes_on(self, directory: Path) -> None:
        """Record and report that a job has finished the step in which it hung."""
        if self._verdict is None or self._hangs_at is None:
            return
        if not any(head.state.step > self._hangs_at for head in read_heads(directory, 1)):
            return  # its ranks have ended
        with suppress(OSError):
            write_verdict(directory, structs.replace(self._verdict, resumed_unix_ns=time.time_ns()))
        self._say(f"the job continues: step {self._hangs_at} has ended")
        self._verdict = self._hangs_at = None


def _patience_s(directory: Path) -> float:
    """Return the number of seconds to wait for the launcher to act if a rank is dead and the job makes no progress."""
    training = [head for head in read_heads(directory, 1) if head.state.ended == Ended.NOT_YET]
    return _RESTART_S if all(map(_has_left, training)) else _LAUNCHER_S


def _has_left(head: PulseHead) -> bool:
    """Return True if a rank's process is dead, or silent on another machine."""
    is_dead = is_gone(head.identity)
    return is_silent(head.identity, head.state, time.time_ns()) if is_dead is None else is_dead


class LossLook:
    """Reports once that a loss is NaN or infinite, and on which rank this happened first."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told_of: Path | None = None
        """directory of the attempt for which a NaN or infinite loss has been reported"""
        self._waits_in: Path | None = None
        """directory of the attempt for which the report was delayed once, so that ranks can write their
        learning rates
        """

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        """Report the NaN or infinite loss once every rank has finished one more step, or the job has ended."""
        if self._told_of == directory:
            return
        heads = list(read_heads(directory, 0))
        ranks = {one.identity.rank: nonfinite_steps(one.state) for one in heads}
        first = min((one.first_step for one in ranks.values() if one is not None), default=None)
        if first is None or not (is_over or all(one.state.step > first + 1 for one in heads)):
            return
        if any(one.facts is None for one in heads) and not is_over and self._waits_in != directory:
            self._waits_in = directory
            return
        rates = {one.identity.rank: one.facts.learning_rate for one in heads if one.facts is not None}
        found = nonfinite_finding(ranks, is_over=is_over, learning_rates=rates)
        if found is not None:
            self._told_of = directory
            self._say(f"{found.title}: {found.evidence}. {found.advice}")


class GrowthLook:
    """Reports that steps become longer and longer, or that the memory of a rank grows steadily.

    Such steps grow so slowly that no single step is the beginning of a slowdown.
    """

    every_s = 10.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: dict[Path, int] = {}
        """directory of an attempt → step time that was reported last, in ns"""
        self._told_bytes: dict[Path, int] = {}
        """directory of an attempt → memory that was reported last"""

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        """Report steps that take twice as long as at the start, and again when their length has doubled since."""
        pulses = {} if is_over else read_pulses(directory)
        if not pulses:
            return
        self._tell_of_memory(directory, pulses)
        growth = recent_growth(pulses[min(pulses)], read_slowdowns(directory))
        if growth is not None and growth.last_ns >= _MUCH_GROWN * self._told.get(directory, growth.first_ns):
            self._told[directory] = growth.last_ns
            self._say(growth.sentence("now"))

    def _tell_of_memory(self, directory: Path, pulses: Mapping[int, Pulse]) -> None:
        """Report memory that has doubled since the start of the run, or since the last report."""
        most = most_grown({rank: steady_growth(pulse.samples) for rank, pulse in pulses.items()})
        if most is None:
            return
        rank, growth = most
        if growth.last_bytes >= _MUCH_GROWN * self._told_bytes.get(directory, growth.first_bytes):
            self._told_bytes[directory] = growth.last_bytes
            self._say(f"{memory_growth_line(rank, growth, 'now')}. {KEEPS_TENSORS}")


def recent_growth(pulse: Pulse, found: Slowdowns | None) -> Growth | None:
    """Return how steps grow up to now: over the run, or else over its last half, quarter, or eighth, and so on.

    Returns ``None`` unless they take at least twice as long as before, and nearly as long as ever or longer. A growth
    that a slowdown explains is left out.
    """
    rows = whole = history(pulse)
    longest_ns = max((one.median_ns for one in usual_of(stretches(rows, _NUM_RANGES))), default=0)
    while len(rows) and rows.end_ns[-1] - rows.start_ns[0] >= _LONG_GROWTH_S * 1e9:
        growth = growth_of(usual_of(stretches(rows, _NUM_RANGES)), from_start=rows is whole)
        if (
            growth is not None
            and growth.duration_ns >= _LONG_GROWTH_S * 1e9
            and growth.last_ns >= max(_MUCH_GROWN * growth.first_ns, _NEARLY * longest_ns)
        ):
            return None if found is not None and is_explained(growth, found.slowdowns) else growth
        until = np.cumsum(rows.num_steps)
        rows = rows_of(rows, until > until[-1] / 2)
    return None


_NUM_RANGES = 20
_LONG_GROWTH_S = 20.0
"""growing steps are reported if they have grown for this many seconds"""
_MUCH_GROWN = 2.0
_NEARLY = 0.9


class EndLook:
    """Reports, when the job has ended, that its ranks ended without an error but after different numbers of passes."""

    every_s = 3600.0

    def __init__(self, say: Say) -> None:
        self._say = say

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        found = judge_end(gather(directory), load_exits(directory)) if is_over else None
        if found is not None:
            self._say(f"{found.title}: {found.evidence}. {found.advice}")


_MOST_SAID = 20
"""maximum number of slowdowns that ddpprof reports while the job runs; the report contains all of them"""
_WORTH_SAYING = 0.10
"""a slowdown is reported while the job runs if the step time has grown by at least this fraction"""
_MUCH_WORSE = 0.5
"""a slowdown is reported again if the growth of the step time has become larger by at least this fraction"""


class SlowdownLook:
    """Reports slowdowns with their start, size and cause, and writes ``slowdowns.json``."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._directory: Path | None = None
        self._told: dict[int, float] = {}
        """first step of each reported slowdown → growth that was reported; 0 once the slowdown has ended"""
        self._written: tuple[StepSlowdown, ...] = ()
        """slowdowns that were last written"""

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        """Report and store new slowdowns. At the end, also store the durations of all pauses."""
        if self._directory != directory:
            self._directory, self._watch = directory, SlowdownWatch()
            self._told, self._written = {}, ()
        pulses = read_pulses(directory)
        self._watch.update(pulses)
        found = self._watch.slowdowns
        self._write(directory, pulses, lasting(found, pulses if is_over else None), is_over)
        self._tell(found, world_size_of(pulses))

    def _write(
        self, directory: Path, pulses: Mapping[int, Pulse], found: tuple[StepSlowdown, ...], is_over: bool
    ) -> None:
        if found == self._written and not is_over:
            return
        self._written = found
        steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
        with suppress(OSError):
            write_slowdowns(directory, with_pauses(found, steps))

    def _tell(self, found: Sequence[StepSlowdown], world_size: int) -> None:
        in_chains = chains(found)
        for step in [step for step, growth in self._told.items() if growth and not _cover(found, step)]:
            self._told[step] = 0.0
            self._say(f"the step times from step {step:,} on turned out to be within the normal range of this job")
        for chain in in_chains:
            last, known = chain[-1], next((step for step in self._told if _cover(chain, step)), None)
            told = 0.0 if known is None else self._told[known]
            if known is None:
                large = [one for one in chain if one.growth >= _WORTH_SAYING]
                if large and _have_lasted(large) and len(self._told) < _MOST_SAID:
                    self._say(slowdown_sentence(large[-1], world_size))
                    self._told[large[0].first_step] = large[-1].growth if last.last_step is None else 0.0
            elif told and last.last_step is not None:
                self._told[known] = 0.0
                if chain is in_chains[-1]:
                    self._say(f"from step {last.last_step + 1:,} on, steps take as long as before the slowdown")
            elif told and last.growth >= told + _MUCH_WORSE and _have_lasted([last]):
                self._say(slowdown_sentence(last, world_size))
                self._told[known] = last.growth


def _cover(slowdowns: Sequence[StepSlowdown], step: int) -> bool:
    return any(one.first_step <= step <= (inf if one.last_step is None else one.last_step) for one in slowdowns)


def _have_lasted(slowdowns: Sequence[StepSlowdown]) -> bool:
    """Return True if the slowdowns lasted longer in total than disturbances by other work on the machine usually do."""
    now_ns = time.time_ns()
    return sum(duration_ns(one, now_ns) for one in slowdowns) >= LASTING_S * 1e9
