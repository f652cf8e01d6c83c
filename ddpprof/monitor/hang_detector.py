"""Detect hangs: a job hangs if no rank finishes a step for ten times the usual step time (at least a few seconds).

Intended pauses do not count as hangs: the first steps, saving and evaluation, the first batch of an epoch, a debugger,
and user code that computes, reads or writes, or waits for a program or for an event outside the job. Time during which
the machine was suspended is not counted.

`examine` determines what is wrong with a job, for the launcher and for ``ddpprof diagnose``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ddpprof import rundir
from ddpprof.load.record import load_exits
from ddpprof.model import ProcessExit, Record
from ddpprof.model.hang import Fault, Standstill, Verdict
from ddpprof.model.json_files import ended_well, last_exit_of_job
from ddpprof.model.overdue import Wait, collective_of, is_of_ddp, place_of_user
from ddpprof.model.pulse import Activity, Ended, PulseState, StepFlag, overdue_after_s, usual_ns
from ddpprof.monitor.evidence import RankEvidence, are_all_on_cpu, gather, record_of, with_nccl
from ddpprof.monitor.judge import judge, judge_exit, judge_records
from ddpprof.monitor.position import (
    OUTSIDE,
    awaits_a_program,
    is_at_a_lock,
    is_compiling,
    is_debugged,
    is_in_checkpoint,
    outside_wait,
    polls,
    position_of,
)
from ddpprof.monitor.processes import Process, missing_ranks
from ddpprof.monitor.pulse_files import PulseHead, read_heads, read_verdict
from ddpprof.monitor.verdicts import lost_a_peer
from ddpprof.words import listed

_FEW_STEPS = 5
_FIRST_STEP_CPU_S, _FIRST_STEP_S = 30.0, 120.0
"""seconds that each of the first steps may take before ddpprof looks for a hang: on CPU, and on accelerators, for which
NCCL may take long to connect the ranks
"""
_FIRST_STEPS_S = 600.0
"""seconds that each of the first steps may take if a rank works, as ``torch.compile`` does, or waits for something
outside the job, or if it is unknown which rank is at fault
"""
_PERHAPS_SLOW = {
    **dict.fromkeys((Fault.LINK, Fault.UNKNOWN), _FIRST_STEPS_S),
    **dict.fromkeys((Fault.OWN_CODE, Fault.LOADER, Fault.STORAGE), _FIRST_STEP_S),
}
"""fault that may also be a slow start → seconds that each of the first steps may take before ddpprof reports it"""
_ON_PURPOSE_S = 600.0
"""seconds for which a rank may save, evaluate or compile; after that, ddpprof reports a hang"""
_FIRST_BATCH_S = 120.0
"""seconds that a rank may wait for the first batch of an epoch; while it waits, the rank or its workers must be active:
see `_IDLE_S`
"""
_WORKS_S = 120.0
"""seconds that a rank may compute, read, write, or wait for a program outside DDP, in a step without an evaluation;
after that, ddpprof reports a hang
"""
_POLLS_S = 60.0
"""seconds that a rank may poll in a loop, sleeping between polls; after that, ddpprof reports a hang"""
_HELPERS_STEP_S = 5.0
_OWN_STEP_S = 0.1
"""a process that uses less CPU time than this many seconds does not count as active, because polling for a batch also
takes some CPU time
"""
_IDLE_S = 60.0
"""after this many seconds without computing, reading or writing, a rank no longer counts as being in an
intended pause
"""
_OUTSIDE_S = {Wait.INPUT: 120.0, Wait.NETWORK: 120.0, Wait.FILE: 120.0, Wait.FOREIGN_LOCK: 120.0, Wait.PIPE: 60.0}
"""seconds that an inactive rank may wait for something outside the job; after that, ddpprof reports a hang"""
_LIKE_BEFORE = 2.0
"""if a pause was reported as a hang but ended by itself, later pauses at the same line may last this many times as long
as that pause
"""
_REST_S, _REST_OF_FIRST_S = 2.5, 30.0
"""seconds that a step may take to finish after a pause, even if steps are short: in general, and in the first steps"""
_MOST_MOVES = 3
"""maximum number of times per step that ddpprof postpones a report because the activity of a rank has just changed"""
_FORWARD_S = 3.0
"""seconds that DDP's broadcast of buffers may take in an evaluation while another rank does not take part in it; after
that, ddpprof reports a hang
"""
_STEPS = 64
_SLEPT_S = 5.0
"""if a check is this many seconds late, the machine slept, this process was stopped, or the clock was set"""
_STACKS_S = 2.5
"""seconds for which ddpprof waits until the ranks of an overdue step have written their stacks"""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A step that no rank has finished in time."""

    step: int
    waited_s: float
    usual_s: float | None


class HangDetector:
    """Checks repeatedly whether the job in a run directory hangs."""

    def __init__(self, directory: Path, clock: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._clock = clock
        self._waking = _Waking()
        self._idle = _IdleTimes()
        self._pause = _Pause()

    def look(self, missed_s: float = 0.0) -> Overdue | None:
        """Return the step that is now overdue; ``None`` if no step is overdue or the ranks are not watched.

        `missed_s`: delay of this check, or adjustment of the system clock since the previous check, in seconds.
        """
        now = self._clock()
        if missed_s > _SLEPT_S:
            self._wakes(now)
        heads = self._heads()
        if self._waking.may_have_slept(self._clock() - now):
            self._wakes(self._clock())
            return None
        living = [head for head in heads if head.state.ended == Ended.NOT_YET]
        if not living or any(head.state.ended == Ended.UNWATCHED for head in heads):
            return None
        latest = max(living, key=lambda head: head.state.step_since_ns)
        waited_s = (now - self._waking.begin_of_step_ns(latest.state, now)) / 1e9
        usual_s = _usual_s(latest)
        if waited_s < overdue_limit_s(usual_s, on_cpu=latest.identity.device == "cpu"):
            self._idle, self._pause = _IdleTimes(), _Pause()
            return None
        overdue = Overdue(latest.state.step, waited_s, usual_s)
        return None if self._pause.was_just_now(overdue, now) else overdue

    def _wakes(self, now_ns: int) -> None:
        """Ignore timestamps before `now_ns` from now on, because the machine slept or the clock was set."""
        self._waking.wakes(now_ns)
        self._idle = _IdleTimes()

    def diagnose(self, overdue: Overdue) -> Verdict | Standstill | None:
        """Return the reason why a step is overdue or why the job does not hang; ``None`` if the job has continued.

        Waits a few seconds for ranks that can still write their stacks.
        """
        deadline = time.monotonic() + _STACKS_S
        evidence = gather(self._directory, records=False)
        while _lacks_stacks(evidence) and time.monotonic() < deadline:
            time.sleep(0.2)
            evidence = gather(self._directory, records=False)
        if _has_gone_on(evidence, overdue):
            return None
        told = read_verdict(self._directory)
        was_told = self._was_told(told, overdue)
        standstill = None if was_told else self.standstill(evidence, overdue, told)
        if standstill is None:
            evidence = gather(self._directory)
            if _has_gone_on(evidence, overdue):
                return None
            # On a busy machine, a rank that computes may not have been running at the first sample.
            standstill = None if was_told else self.standstill(evidence, overdue, told)
        if standstill is not None:
            return standstill
        is_first = overdue.usual_s is None and overdue.waited_s < _FIRST_STEPS_S
        if is_first and (absent := _absent(evidence)):
            return _awaiting(absent, evidence, overdue)
        if overdue.usual_s is None and _has_not_begun(evidence):
            return Standstill(overdue.waited_s, step=overdue.step)
        verdict = judge(with_nccl(evidence))
        if is_first and overdue.waited_s < _PERHAPS_SLOW.get(verdict.fault, 0.0):
            return Standstill(overdue.waited_s, step=overdue.step)
        return verdict

    def _was_told(self, told: Verdict | None, overdue: Overdue) -> bool:
        """Return True if the launcher has already reported that the job hangs in this step."""
        if told is None or told.resumed_unix_ns is not None or told.at_unix_ns is None:
            return False
        return told.at_unix_ns > self._clock() - overdue.waited_s * 1e9

    def standstill(
        self, evidence: Sequence[RankEvidence], overdue: Overdue, told: Verdict | None = None
    ) -> Standstill | None:
        """Return the reason why an overdue job does not hang, if a rank is in an intended pause or has just left one.

        The time of the pause is stored, too. `told`: the most recently reported hang of the job.
        """
        now = self._clock()
        moved = _that_moved(evidence, _rest_s(overdue.usual_s))
        has_begun = any(one.state.num_passes > 0 for one in evidence)
        if moved and not has_begun:
            found: Standstill | None = Standstill(overdue.waited_s, step=overdue.step)
        else:
            pauses = [self._pause_of(one, evidence, overdue, told) for one in evidence]
            found = next(filter(None, pauses), None)
        if found is None and overdue.waited_s < _IDLE_S and _nobody_waits(evidence):
            found = Standstill(overdue.waited_s)
        if found is None:
            evaluates = any(one.state.activity == Activity.EVALUATION for one in moved)  # each forward pass is progress
            if not moved or (self._pause.num_moves == _MOST_MOVES and not evaluates):
                return None
            self._pause.num_moves += not evaluates
            found = Standstill(overdue.waited_s)
        self._pause.step, self._pause.seen_ns = overdue.step, now
        return found

    def _pause_of(
        self, one: RankEvidence, evidence: Sequence[RankEvidence], overdue: Overdue, told: Verdict | None
    ) -> Standstill | None:
        """Return what the rank waits for and how long it may wait; ``None`` if it is not in an intended pause."""
        idle_s = self._idle.of(one, self._clock())
        debugged, outside = is_debugged(one.stack), _outside_of(one)
        limit_s = _first_pause_limit_s(one) if overdue.usual_s is None else pause_limit_s(one)
        works = idle_s < _IDLE_S and overdue.waited_s < limit_s and not _evaluates_alone(one, evidence)
        outside_s = 0.0 if outside is None else _OUTSIDE_S[outside]
        if outside is not None and overdue.usual_s is None:
            outside_s = _FIRST_STEPS_S
        if not (debugged or works or overdue.waited_s < max(outside_s, _as_before_s(one, told))):
            return None
        waits_for = "user input in a debugger" if debugged else OUTSIDE[outside] if outside is not None else None
        if waits_for is None:
            waits_for = _by_itself(one)
            outside_s = limit_s
        place = place_of_user(one.stack)
        return Standstill(
            waited_s=overdue.waited_s,
            rank=one.rank,
            step=overdue.step,
            waits_for=waits_for,
            place=None if place is None else str(place),
            waiting=tuple(other.rank for other in evidence if position_of(other).waits_in is not None),
            hangs_after_s=None if debugged or math.isinf(outside_s) else outside_s,
        )

    def _heads(self) -> list[PulseHead]:
        with suppress(OSError):  # the run has not begun
            return list(read_heads(self._directory, _STEPS))
        return []


def _tries_again(one: RankEvidence) -> bool:
    """Return True if a rank sleeps between two polls, or between two tries of something that failed."""
    return one.wait is Wait.SLEEP and polls(one.stack, one.facts.error is not None)


def _by_itself(one: RankEvidence) -> str | None:
    """Return what a rank that sleeps waits for, if it started this itself; ``None`` if it works, saves or evaluates."""
    if _tries_again(one):
        return "its next try, sleeping in a loop"
    if awaits_a_program(one.stack) and one.workers and not (one.computes or one.helpers_compute):
        return "a program that it started"
    return None


class _Waking:
    """Stores the time before which timestamps are ignored, because the machine slept or the clock was set."""

    def __init__(self) -> None:
        self._since_ns = 0
        self._took_long = False
        """whether the last check took so long that the machine may have slept during it"""
        self._seen: tuple[int, int] = (-1, 0)
        """number of the current step, and time at which ddpprof first saw it"""

    def wakes(self, now_ns: int) -> None:
        """Ignore timestamps before `now_ns`."""
        self._since_ns = now_ns
        self._seen = (-1, 0)

    def may_have_slept(self, took_ns: int) -> bool:
        """Return True if the machine may have slept during a check.

        If several consecutive checks take long, the reason is slow storage.
        """
        took_long_before, self._took_long = self._took_long, took_ns > _SLEPT_S * 1e9
        return self._took_long and not took_long_before

    def begin_of_step_ns(self, state: PulseState, now_ns: int) -> int:
        """Return the time at which the current step began, in ns since 1970.

        This is the time in the pulse. If that time is in the future because the clock was set back, it is the time at
        which the step was first seen.
        """
        if self._seen[0] != state.step:
            self._seen = state.step, now_ns
        is_past = state.step_since_ns <= now_ns + _SLEPT_S * 1e9
        return max(state.step_since_ns if is_past else self._seen[1], self._since_ns)


class _IdleTimes:
    """Observed idle times of ranks, including their DataLoader workers."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[tuple[float, int], int]] = {}
        """rank → CPU time and bytes read or written by its processes, and the time of their last change"""

    def of(self, one: RankEvidence, now_ns: int) -> float:
        """Return the idle time of a rank in seconds; 0 if its process is not known."""
        if one.process is None:
            return 0.0
        processes = (one.process, *one.workers)
        done = (
            sum(each.main_thread_cpu_s for each in processes) // _OWN_STEP_S + _of_helpers_s(one, one.process),
            sum(each.moved_bytes for each in processes),
        )
        if self._done.get(one.rank, (None, 0))[0] != done:
            self._done[one.rank] = done, now_ns
        return (now_ns - self._done[one.rank][1]) / 1e9


def _of_helpers_s(one: RankEvidence, process: Process) -> float:
    """Return the CPU seconds of the rank's children and, on CPU, its other threads.

    The result is rounded down, so that the CPU time of ddpprof's own thread does not count.
    """
    computed_s = process.children_cpu_s + (process.threads_cpu_s if one.identity.device == "cpu" else 0.0)
    return computed_s // _HELPERS_STEP_S * _HELPERS_STEP_S


class _Pause:
    """The most recent intended pause in the current step."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.seen_ns = 0
        self.num_moves = 0
        """number of times that the activity of a rank changed within the step, not counting evaluations"""

    def was_just_now(self, overdue: Overdue, now_ns: int) -> bool:
        """Return True if the pause ended so recently that the rest of its step may still be running."""
        return self.step == overdue.step and now_ns - self.seen_ns < _rest_s(overdue.usual_s) * 1e9


def _outside_of(one: RankEvidence) -> Wait | None:
    """Return what a running rank waits for outside the job; ``None`` if it does not wait, or if the rank is in DDP."""
    process = one.process
    is_free = not (one.is_dead or one.has_ended or one.is_silent or one.is_swapping)
    is_held = process is not None and (process.is_stopped or process.is_traced)
    is_outside = one.state.activity in (Activity.OTHER, Activity.FORWARD)
    return outside_wait(one) if is_free and is_outside and not is_held else None


def _as_before_s(one: RankEvidence, told: Verdict | None) -> float:
    """Return the number of seconds that a rank may pause at a line where it paused before and then continued."""
    place = place_of_user(one.stack)
    if told is None or told.resumed_unix_ns is None or told.since_unix_ns is None or place is None:
        return 0.0
    is_same = (told.rank, told.place) == (one.rank, str(place)) and not (one.is_dead or one.has_ended)
    return _LIKE_BEFORE * (told.resumed_unix_ns - told.since_unix_ns) / 1e9 if is_same else 0.0


def _has_gone_on(evidence: Sequence[RankEvidence], overdue: Overdue) -> bool:
    """Return True if a rank has finished the step, or all ranks have ended."""
    training = [one.state.step for one in evidence if not one.has_ended]
    return not training or max(training) > overdue.step


def _lacks_stacks(evidence: Sequence[RankEvidence]) -> bool:
    return any(not (one.stack or one.has_ended or one.is_dead or one.is_silent) for one in evidence)


def _rest_s(usual_s: float | None) -> float:
    """Return the number of seconds that a step may take to finish after a pause."""
    return _REST_OF_FIRST_S if usual_s is None else max(_REST_S, 2 * usual_s)


def _nobody_waits(evidence: Sequence[RankEvidence]) -> bool:
    """Return True if every rank runs the script's own code, and no rank waits for another rank.

    Ranks that have finished are ignored if all ranks have run the same number of backward passes.
    """
    left = [one for one in evidence if one.state.ended != Ended.FINISHED]
    is_after_training = len(left) == len(evidence) or len({one.state.num_passes for one in evidence}) == 1
    return are_all_on_cpu(evidence) and is_after_training and all(map(_is_by_itself, left))


def _is_by_itself(one: RankEvidence) -> bool:
    process, activity = one.process, one.state.activity
    runs = not (process is None or process.is_stopped or one.is_silent or one.has_ended or one.is_swapping)
    is_outside = activity in (Activity.OTHER, Activity.FORWARD) and bool(one.stack)
    return runs and is_outside and collective_of(one.stack) is None


def _that_moved(evidence: Sequence[RankEvidence], within_s: float) -> list[RankEvidence]:
    """Return the ranks whose activity began less than `within_s` seconds ago; empty if the job hangs."""
    return [one for one in evidence if not one.has_ended and one.now_ns - one.state.since_ns < within_s * 1e9]


def _evaluates_alone(one: RankEvidence, evidence: Sequence[RankEvidence]) -> bool:
    """Return True if the rank's evaluation waits in DDP's broadcast of buffers for ranks that do not evaluate.

    If all ranks evaluate with the DDP module, every rank is in this broadcast from time to time.
    """
    if one.state.activity != Activity.EVALUATION or not is_of_ddp(collective_of(one.stack)):
        return False
    took_s = (one.now_ns - one.state.since_ns) / 1e9
    return took_s > _FORWARD_S and any(map(_is_outside_evaluation, evidence))


def _is_outside_evaluation(one: RankEvidence) -> bool:
    """Return True if the rank no longer takes part in an evaluation: it trains, waits elsewhere, or has ended."""
    if one.has_ended or one.is_dead or one.state.activity == Activity.BACKWARD:
        return True
    return one.state.activity != Activity.EVALUATION and collective_of(one.stack) is not None


def _usual_s(head: PulseHead) -> float | None:
    """Return the usual duration of a step; ``None`` during the first steps."""
    usual = usual_ns(head.steps, _FEW_STEPS)
    return None if usual is None else usual / 1e9


def overdue_limit_s(usual_s: float | None, *, on_cpu: bool = True) -> float:
    """Return the number of seconds that a step may take before its job is examined."""
    if usual_s is None:
        return _FIRST_STEP_CPU_S if on_cpu else _FIRST_STEP_S
    return overdue_after_s(usual_s)


def _first_pause_limit_s(one: RankEvidence) -> float:
    """Return the seconds that the current activity of a rank may take in the first steps.

    Before its first backward pass, a rank may work for any time: the script may do something else than training.
    """
    is_held = one.process is None or one.process.is_stopped or one.is_silent
    works = one.computes or one.helpers_compute or one.moves_data
    may_work = works and not (is_held or one.has_ended or one.is_swapping)
    if may_work and one.state.num_passes == 0:
        return math.inf
    return _FIRST_STEPS_S if may_work or pause_limit_s(one) else 0.0


def _has_not_begun(evidence: Sequence[RankEvidence]) -> bool:
    """Return True if no rank has begun a backward pass, and no rank waits for another rank."""
    return all(one.state.num_passes == 0 and position_of(one).waits_in is None for one in evidence)


def _absent(evidence: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Return the ranks that have no pulse yet.

    They have not begun to construct a DDP module, or a thread holds Python's GIL.
    """
    world_size = max((one.identity.world_size for one in evidence), default=0)
    return tuple(missing_ranks(world_size, (one.rank for one in evidence)))


def _awaiting(absent: tuple[int, ...], evidence: Sequence[RankEvidence], overdue: Overdue) -> Standstill:
    """Describe a job in which ranks may wait for ranks without a pulse."""
    waiting = [one for one in evidence if position_of(one).waits_in is not None]
    place = place_of_user(waiting[0].stack) if waiting else None
    return Standstill(
        waited_s=overdue.waited_s,
        step=overdue.step,
        place=None if place is None else str(place),
        waiting=tuple(one.rank for one in waiting),
        absent=absent,
    )


def pause_limit_s(one: RankEvidence) -> float:
    """Return the seconds that the current activity of a live rank may take; 0 if it is not an intended pause."""
    process, activity, flags = one.process, one.state.activity, one.state.flags
    if one.is_dead or one.has_ended or (process is not None and process.is_stopped):
        return 0.0
    if activity == Activity.SAVE:  # saving may hold the GIL
        return _ON_PURPOSE_S
    if one.is_silent:
        return 0.0
    if activity == Activity.EVALUATION:
        return _ON_PURPOSE_S
    if activity == Activity.DATA:
        works = one.computes or one.moves_data or one.helpers_compute
        return _FIRST_BATCH_S if flags & StepFlag.BEGAN_EPOCH else _WORKS_S if works else 0.0
    if is_compiling(one.stack) and collective_of(one.stack) is None:
        return _ON_PURPOSE_S
    if activity not in (Activity.OTHER, Activity.FORWARD) or one.is_swapping:
        return 0.0
    awaits_others = collective_of(one.stack) is not None
    if is_in_checkpoint(one.stack) and not awaits_others:
        return _ON_PURPOSE_S
    evaluates = one.state.evaluates and not awaits_others
    awaits_child = one.wait is Wait.PROCESS and not is_at_a_lock(one.stack)  # as in os.system()
    awaits_program = (awaits_a_program(one.stack) or awaits_child) and bool(one.workers)
    awaits_helpers = one.helpers_compute and bool(one.stack) and not awaits_others
    if one.computes or one.moves_data or awaits_program or awaits_helpers:
        return _ON_PURPOSE_S if flags & StepFlag.EVALUATED or evaluates else _WORKS_S
    if one.facts.saves_in_thread and is_at_a_lock(one.stack) and not awaits_others:
        return _ON_PURPOSE_S
    if _tries_again(one) and not awaits_others:
        return _POLLS_S
    may_wait = not one.stack or is_at_a_lock(one.stack) or one.identity.device not in (None, "cpu")
    may_wait |= outside_wait(one) is not None
    return _ON_PURPOSE_S if evaluates and not may_wait else 0.0


@dataclass(frozen=True, slots=True)
class Examination:
    """Result of `examine`."""

    verdict: Verdict | None = None
    """what is wrong with the job; ``None`` if nothing is wrong"""
    overdue: Overdue | None = None
    """step that no rank has finished in time, if the job is running"""
    standstill: Standstill | None = None
    """if there is an overdue step but no hang: what the job waits for"""
    evidence: tuple[RankEvidence, ...] = ()
    """for each rank, the evidence on which the result is based"""
    is_over: bool = False
    was_interrupted: bool = False
    hung_at_last: bool = False
    """whether the job has ended and the verdict is about the hang that ended it"""


def examine(directory: Path, detector: HangDetector | None = None, missed_s: float = 0.0) -> Examination:
    """Examine a job that is running, or that has ended or should have ended. Raises ``OSError``.

    `detector`: the launcher's detector, which has watched the job from the beginning. If a detector is given, the job
    is assumed to be running. `missed_s`: see `HangDetector.look`.
    """
    evidence: tuple[RankEvidence, ...] = ()
    if detector is None:
        evidence = gather(directory)
        ended = _examine_end(directory, evidence)
        if ended is not None:
            return ended
        detector = HangDetector(directory)
    overdue = detector.look(missed_s)
    if overdue is None:
        lingers = judge_exit(gather(directory, records=False)) if _all_have_ended(directory) else None
        return Examination(lingers, evidence=evidence)
    found = detector.diagnose(overdue)
    if isinstance(found, Verdict):
        return Examination(found, overdue, evidence=evidence)
    return Examination(None, overdue, found, evidence)


def _examine_end(directory: Path, evidence: tuple[RankEvidence, ...]) -> Examination | None:
    """Return the result for a job that has ended; ``None`` if it is running."""
    exits, known = load_exits(directory), {one.rank for one in evidence}
    if not evidence or not known.issuperset(_failed_in(exits)):  # a rank may have failed before it had a pulse
        early = judge_records(_records_in(directory), exits)
        if not evidence or early is not None:
            return Examination(early, evidence=evidence, is_over=True)
    job = last_exit_of_job(exits)
    was_interrupted = job is not None and job.interrupted
    is_over = all(one.has_ended or one.is_dead or (was_interrupted and _is_left(one, job)) for one in evidence)
    some_died = any(one.is_dead for one in evidence)
    hang = hung_at_last(directory) if is_over or some_died else None
    if hang is not None:
        return Examination(hang, evidence=evidence, is_over=is_over, hung_at_last=True)
    if some_died and (not was_interrupted or _failed_before(evidence)):
        return Examination(judge(evidence), evidence=evidence, is_over=is_over)
    lingers = judge_exit(evidence)
    if lingers is None and not is_over:
        return None
    return Examination(lingers, evidence=evidence, is_over=is_over, was_interrupted=was_interrupted)


def _failed_in(exits: Sequence[ProcessExit]) -> set[int]:
    """Return the ranks whose processes are known to have failed."""
    return {one.rank for one in exits if one.rank is not None and one.exit_code}


def _records_in(directory: Path) -> list[Record]:
    records = (record_of(directory, rank) for rank in rundir.ranks_in(directory))
    return [one for one in records if one is not None]


def _failed_before(evidence: Sequence[RankEvidence]) -> bool:
    """Return True if an error of its own ended a rank before the user interrupted the job."""
    interrupted_ns = min((one.state.ended_ns for one in evidence if one.state.ended == Ended.INTERRUPTED), default=None)
    failed = [one for one in evidence if one.record is not None and (one.record.ended or "").startswith("failed")]
    by_itself = [one.state.ended_ns for one in failed if not lost_a_peer(one)]
    return any(interrupted_ns is None or ended_ns < interrupted_ns for ended_ns in by_itself)


def hung_at_last(directory: Path) -> Verdict | None:
    """Return the verdict on the hang that ended the job; ``None`` if the job did not end in a hang."""
    verdict = read_verdict(directory)
    if verdict is None or verdict.has_failed or verdict.resumed_unix_ns is not None:
        return None
    continued = ended_well(load_exits(directory)) and _all_have_ended(directory)
    return None if continued else verdict


def _all_have_ended(directory: Path) -> bool:
    """Return True if every rank with a pulse has finished training."""
    return all(head.state.ended == Ended.FINISHED for head in read_heads(directory, 1))


def _is_left(rank: RankEvidence, job: ProcessExit | None) -> bool:
    """Return True if the launcher on the rank's host has ended and the rank's process no longer exists."""
    return job is not None and job.host in (None, rank.identity.host) and rank.process is None


def interruption(evidence: Sequence[RankEvidence]) -> str:
    """Return a clause that says in which step a job was interrupted and, if the step was overdue, where its ranks were.

    `evidence`: of a job that has ended. If the step was not overdue, only says that training was interrupted.
    """
    waited_s = min(((one.state.last_ns - one.state.step_since_ns) / 1e9 for one in evidence), default=0.0)
    usual = usual_ns(evidence[0].steps, _FEW_STEPS) if evidence else None
    if usual is None or waited_s < overdue_after_s(usual / 1e9):
        return "training was interrupted"
    where = [f"rank {one.rank} at {place}" for one in evidence if (place := _last_place(one)) is not None]
    step = max(one.state.step for one in evidence)
    said = f"training was interrupted in step {step:,}, which had taken {waited_s:.0f} s"
    return f"{said}: {listed(where, _MOST_PLACES)}" if where else said


_MOST_PLACES = 4


def _last_place(one: RankEvidence) -> str | None:
    """Return the line of the user's code in which a rank was interrupted, or was seen last."""
    if one.record is not None and one.record.ended_place is not None:
        return one.record.ended_place
    return position_of(one).place
