"""What does a rank do, as far as other ranks are concerned: does it wait for them, or do they wait for it?"""

from __future__ import annotations

from dataclasses import dataclass

from ddpprof.diagnosis import places
from ddpprof.diagnosis.evidence import RankEvidence
from ddpprof.model.hang import Fault
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.model.stack import collective_of, is_of_ddp, place_of_user

_REDUCER = "the reducer"


@dataclass(frozen=True, slots=True)
class Position:
    """One rank's place in the job."""

    evidence: RankEvidence
    waits_in: str | None
    """collective, or `_REDUCER`, in which it waits for others; ``None`` if others wait for it"""
    fault: Fault
    """what holds the others up if this rank is to blame"""
    detail: str | None = None

    @property
    def rank(self) -> int:
        return self.evidence.rank

    @property
    def waits_in_reducer(self) -> bool:
        return self.waits_in == _REDUCER

    @property
    def place(self) -> str | None:
        """Innermost line of the user's code."""
        frame = place_of_user(self.evidence.stack)
        return None if frame is None else str(frame)

    @property
    def progress(self) -> tuple[int, int]:
        """Number of backward passes, and of buckets of the last one, whose reduction this rank has begun."""
        state = self.evidence.state
        return state.num_passes, state.bucket + 1


def position_of(evidence: RankEvidence) -> Position:
    """Return what a rank does. The first rule that fits decides."""
    process = evidence.process
    if evidence.is_dead:
        return Position(evidence, None, Fault.DIED)
    if evidence.state.ended == Ended.FINISHED:
        return Position(evidence, None, Fault.ENDED_EARLY)
    if process is not None and process.is_stopped:
        return Position(evidence, None, Fault.STOPPED)
    if process is not None and process.is_traced:
        return Position(evidence, None, Fault.TRACED)
    if evidence.is_swapping:
        return Position(evidence, None, Fault.SWAPPING)
    if evidence.is_silent:
        waits_for_disk = evidence.state.activity == Activity.SAVE or (process is not None and process.state == "D")
        return Position(evidence, None, Fault.STORAGE if waits_for_disk else Fault.INTERPRETER_HELD)
    return _of_living(evidence)


def _of_living(evidence: RankEvidence) -> Position:
    """Return the position of a rank whose interpreter runs."""
    stack, activity = evidence.stack, evidence.state.activity
    collective = collective_of(stack)
    if activity == Activity.EVALUATION and is_of_ddp(collective):
        return Position(evidence, collective, Fault.EVALUATES_ALONE)
    if activity == Activity.FORWARD and is_of_ddp(collective):
        return Position(evidence, collective, Fault.FEWER_PASSES)
    if collective is not None:
        fault = Fault.ENDED_EARLY if _has_left_loop(evidence) else Fault.OTHER_COLLECTIVE
        return Position(evidence, collective, fault)
    if activity == Activity.BACKWARD and (not stack or places.is_in_engine(stack)):
        return Position(evidence, _REDUCER, Fault.FEWER_PASSES)
    if activity == Activity.DATA:
        return Position(evidence, None, Fault.LOADER, _workers(evidence))
    if activity == Activity.SAVE or (evidence.process is not None and evidence.process.state == "D"):
        return Position(evidence, None, Fault.STORAGE)
    if _has_left_loop(evidence):
        return Position(evidence, None, Fault.ENDED_EARLY)
    process = evidence.process
    if places.is_at_a_lock(stack) or (process is not None and process.is_at_a_lock and not evidence.computes):
        return Position(evidence, None, Fault.LOCK)
    return Position(evidence, None, Fault.OWN_CODE, "it computes" if evidence.computes else None)


def _has_left_loop(evidence: RankEvidence) -> bool:
    """Return whether the rank's loader had no more batches, and no other pass over one has begun."""
    flags = evidence.state.flags
    return bool(flags & StepFlag.RAN_OUT) and not flags & StepFlag.BEGAN_EPOCH


def _workers(evidence: RankEvidence) -> str | None:
    """Say which of the rank's workers cannot run, or else how many there are."""
    held = [f"process {one.pid} is {_STATES[one.state]}" for one in evidence.workers if one.state in _STATES]
    if held:
        return f"of its workers, {', '.join(held[:4])}"
    if not evidence.workers:
        return "it has no workers: the training process reads by itself"
    listed = ", ".join(str(one.pid) for one in evidence.workers[:4])
    return f"its workers are alive: {listed}{' …' if len(evidence.workers) > 4 else ''}"


_STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting for a disk"}
