"""One row of the table of evidence: does a rank wait for others, or do they wait for it? For what, and where?

The first rule that fits a rank makes its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.model.hang import Fault, Hint
from ddpprof.model.overdue import Call, Wait
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.model.stack import collective_of, is_of_ddp, is_of_peers, place_of_user
from ddpprof.watch import places
from ddpprof.watch.evidence import RankEvidence

REDUCER = "the reducer"
OUTSIDE = {
    Wait.INPUT: "input from the terminal",
    Wait.NETWORK: "the network",
    Wait.PIPE: "a pipe to another program",
    Wait.FILE: "a file",
}
"""what a rank waits for outside the job"""


@dataclass(frozen=True, slots=True)
class Position:
    """One rank's place in the job."""

    evidence: RankEvidence
    waits_in: str | None
    """collective, or `REDUCER`, in which it waits for others; ``None`` if others wait for it"""
    fault: Fault
    """what holds the others up if this rank is to blame"""
    detail: str | None = None
    hint: Hint | None = None

    @property
    def rank(self) -> int:
        return self.evidence.rank

    @property
    def waits_in_reducer(self) -> bool:
        return self.waits_in == REDUCER

    @property
    def waits_in_ddp(self) -> bool:
        """Whether it waits in a collective of DDP's, and not of the script's, or died in one."""
        if self.fault is Fault.DIED:
            in_pass = self.evidence.state.activity in (Activity.BACKWARD, Activity.FORWARD)
            record = self.evidence.record
            return in_pass and (record is None or record.ended_in is None or is_of_ddp(record.ended_in))
        return self.waits_in_reducer or is_of_ddp(self.waits_in)

    @property
    def place(self) -> str | None:
        """Innermost line of the user's code, where the rank stands or died."""
        frame, record = place_of_user(self.evidence.stack), self.evidence.record
        if frame is None and self.fault is Fault.DIED and record is not None:
            return record.ended_place
        return None if frame is None else str(frame)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Collectives that it has called, the last one last, as far as torch knows them."""
        return self.evidence.facts.calls

    @property
    def progress(self) -> tuple[int, int]:
        """Number of backward passes, and of buckets of the last one, whose reduction this rank has begun."""
        state = self.evidence.state
        return state.num_passes, state.bucket + 1


Table = Sequence[Position]
"""a row for each rank"""


def others_of(table: Table, blamed: Position) -> list[Position]:
    return [one for one in table if one is not blamed]


def position_of(evidence: RankEvidence) -> Position:
    """Return what a rank does. The first rule that fits decides."""
    return next(found for rule in _RULES if (found := rule(evidence)) is not None)


def _is_over(one: RankEvidence) -> Position | None:
    if one.is_dead:
        return Position(one, None, Fault.DIED)
    if one.state.ended == Ended.FINISHED:
        return Position(one, None, Fault.ENDED_EARLY, hint=why_ended(one))
    return None


def _is_held(one: RankEvidence) -> Position | None:
    """Return the position of a process that cannot run, or hardly."""
    process = one.process
    if process is not None and process.is_frozen:
        return Position(one, None, Fault.STOPPED, "its control group is frozen", Hint.FROZEN)
    if process is not None and process.is_stopped:
        return Position(one, None, Fault.STOPPED)
    if process is not None and process.is_traced:
        return Position(one, None, Fault.TRACED)
    if one.is_swapping:
        return Position(one, None, Fault.SWAPPING)
    return None


def _is_silent(one: RankEvidence) -> Position | None:
    if not one.is_silent:
        return None
    waits_for_disk = one.state.activity == Activity.SAVE or (one.process is not None and one.process.state == "D")
    return Position(one, None, Fault.STORAGE if waits_for_disk else Fault.INTERPRETER_HELD)


def _waits_for_others(one: RankEvidence) -> Position | None:
    collective, activity = collective_of(one.stack), one.state.activity
    if activity == Activity.EVALUATION and is_of_ddp(collective):
        return Position(one, collective, Fault.EVALUATES_ALONE)
    if activity == Activity.FORWARD and is_of_ddp(collective):
        return Position(one, collective, Fault.FEWER_PASSES)
    if collective is not None:
        return _in_collective(one, collective)
    if activity == Activity.BACKWARD and (not one.stack or places.is_in_engine(one.stack)):
        return Position(one, REDUCER, Fault.FEWER_PASSES)
    return None


def _in_collective(one: RankEvidence, collective: str) -> Position:
    """Return the position of a rank in a collective that the script calls."""
    if one.facts.error is not None:
        return Position(one, collective, Fault.OTHER_COLLECTIVE, _error_in_flight(one), Hint.ERROR_IN_FLIGHT)
    if is_of_peers(collective):
        peer = "" if one.facts.peer is None else f"; its peer is rank {one.facts.peer}"
        return Position(one, collective, Fault.OTHER_COLLECTIVE, f"it waits in {collective}(){peer}", Hint.OF_PEERS)
    if collective == "destroy_process_group":
        return Position(one, collective, Fault.ENDED_EARLY, hint=why_ended(one))
    return Position(one, collective, Fault.OTHER_COLLECTIVE)


def _error_in_flight(one: RankEvidence) -> str | None:
    if one.facts.error is None:
        return None
    raised = "" if one.facts.error_place is None else f", raised at {one.facts.error_place}"
    return f"it is handling {one.facts.error}{raised}"


def _loads(one: RankEvidence) -> Position | None:
    return Position(one, None, Fault.LOADER, _workers(one)) if one.state.activity == Activity.DATA else None


def _waits_for_disk(one: RankEvidence) -> Position | None:
    if one.state.activity == Activity.SAVE or (one.process is not None and one.process.state == "D"):
        return Position(one, None, Fault.STORAGE)
    return None


def _is_at_a_lock(one: RankEvidence) -> Position | None:
    if outside_wait(one) is None and (places.is_at_a_lock(one.stack) or (one.wait is Wait.LOCK and not one.computes)):
        return Position(one, None, Fault.LOCK)
    return None


def _is_in_own_code(one: RankEvidence) -> Position:
    wait = outside_wait(one)
    if one.computes or wait is None:
        return Position(one, None, Fault.OWN_CODE, _error_in_flight(one) or ("it computes" if one.computes else None))
    hint = Hint.WAITS_FOR_INPUT if wait is Wait.INPUT else Hint.WAITS_OUTSIDE
    return Position(one, None, Fault.OWN_CODE, f"it waits for {OUTSIDE[wait]}", hint)


_RULES = (
    _is_over,
    _is_held,
    _is_silent,
    _waits_for_others,
    _loads,
    _waits_for_disk,
    _is_at_a_lock,
    _is_in_own_code,
)


def outside_wait(one: RankEvidence) -> Wait | None:
    """Return for what a rank waits in the script's own code, if that is outside the job."""
    if not one.stack or collective_of(one.stack) is not None:
        return None
    if one.wait is Wait.EVENTS:
        return Wait.NETWORK if places.is_at_a_socket(one.stack) else None
    return one.wait if one.wait in OUTSIDE else None


def ran_out(evidence: RankEvidence) -> bool:
    """Return whether the rank's loader had no more batches, and no other pass over one has begun."""
    flags = evidence.state.flags
    return bool(flags & StepFlag.RAN_OUT) and not flags & StepFlag.BEGAN_EPOCH


def why_ended(one: RankEvidence) -> Hint | None:
    """Return that a rank left its training loop though no `DataLoader` had run out."""
    return None if one.state.flags & StepFlag.RAN_OUT else Hint.LEFT_LOOP


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
