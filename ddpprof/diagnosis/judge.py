"""From the evidence to a verdict: which rank holds the others up, and for what do they wait?

A rank that evaluates with the DDP module while most do not is to blame for all that wait with it.
Ranks that wait for others are innocent as long as there is one that does not wait. If all wait, those are to blame that
wait at another place than most: in a collective that the script calls, or in an earlier backward pass. If all wait at
the same place, nothing arrives any more: the link is to blame. So it is if all seem to wait for their accelerators at
the same line, as in ``loss.item()``.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ddpprof.diagnosis import places
from ddpprof.diagnosis.evidence import RankEvidence, are_all_on_cpu
from ddpprof.diagnosis.position import Position, position_of
from ddpprof.measures.ranks.failure import find_failure, is_of_a_lost_peer, rank_end
from ddpprof.measures.ranks.skipped_passes import Passes, find_skipped_pass
from ddpprof.model import UNKNOWN, DdpModule, ProcessExit, Record, UnusualCollective
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Activity, Ended, PulseState, activity_word, usual_ns
from ddpprof.model.record import error_in
from ddpprof.model.stack import is_of_ddp
from ddpprof.words import clauses

UNREDUCED = "Expected to have finished reduction"
"""how DDP's error begins if parameters got no gradient"""
_MISMATCHED = re.compile(r"op\.preamble\.length|op\.nbytes|[Mm]ismatch(?:ed)? .*collective|collective.* mismatch")
"""errors of collectives that met others of another size"""
_WORST_FIRST = (
    Fault.DIED,
    Fault.STOPPED,
    Fault.SWAPPING,
    Fault.TRACED,
    Fault.INTERPRETER_HELD,
    Fault.ENDED_EARLY,
    Fault.LOADER,
    Fault.STORAGE,
    Fault.LOCK,
    Fault.OWN_CODE,
)


def judge(evidence: Sequence[RankEvidence]) -> Verdict:
    """Return the verdict on a job that hangs or has ended badly."""
    positions = [position_of(one) for one in evidence]
    if not positions:
        return Verdict(Fault.UNKNOWN)
    mismatched = _of_another_collective(positions)
    if mismatched is not None:
        return _verdict(Fault.OTHER_COLLECTIVE, mismatched, [one for one in positions if one is not mismatched])
    mismatch = _of_mismatch(positions)
    if mismatch is not None:
        return mismatch
    skipped = _skipped_pass(positions)
    if skipped is not None:
        return skipped
    if _await_devices(positions):
        return _of_link(positions)
    free = [one for one in positions if one.waits_in is None]
    if free:
        blamed = min(free, key=_guilt)
        waiting = [one for one in positions if one.waits_in is not None]
        if not (waiting or _are_by_themselves(positions)):
            waiting = [one for one in positions if one is not blamed]
        return _verdict(blamed.fault, blamed, waiting)
    odd = _odd_one(positions)
    if odd is None:
        return _of_link(positions)
    return _verdict(odd.fault, odd, [one for one in positions if one is not odd])


def _skipped_pass(positions: Sequence[Position]) -> Verdict | None:
    """Return the verdict on a rank that skipped a backward pass and has finished, if the others wait or lost it."""
    found = find_skipped_pass({one.rank: _passes(one.evidence.state) for one in positions})
    if found is None:
        return None
    blamed = next(one for one in positions if one.rank == found.rank)
    others = [one for one in positions if one is not blamed]
    if not all(one.waits_in is not None or _lost_a_peer(one.evidence) for one in others):
        return None
    later = {1: "", 2: ", nor was a later one"}.get(found.num_passes, f", nor were {found.num_passes - 1:,} later ones")
    detail = (
        f"Its forward in step {found.step:,} was not followed by a backward pass{later}. Since then, gradients of "
        "different batches have been averaged"
    )
    return _verdict(Fault.FEWER_PASSES, replace(blamed, detail=detail), others)


def _passes(state: PulseState) -> Passes:
    first_unpaired = state.unpaired_step if state.num_unpaired > 0 else None
    return Passes(state.num_passes, state.ended == Ended.FINISHED, state.num_unpaired, first_unpaired)


_EXIT_S = 8.0
"""seconds that a process may take to exit once its training is over"""


def judge_exit(evidence: Sequence[RankEvidence]) -> Verdict | None:
    """Return the verdict on a job whose training is over while a process does not exit; ``None`` if all is well.

    Only a process that said that it exits, and has since written where it stands, is looked at: after a ``with`` block
    the script goes on. One that computes, reads or writes is still busy.
    """
    if not evidence or any(one.state.ended != Ended.FINISHED for one in evidence):
        return None
    left = [one for one in evidence if one.lingers_s > _EXIT_S and _stands_at_exit(one)]
    if not left:
        return None
    first = left[0]
    place = places.place_at_exit(first.stack)
    return Verdict(
        fault=Fault.DOES_NOT_EXIT,
        rank=first.rank,
        host=first.identity.host,
        pid=first.identity.pid,
        step=first.state.step,
        place=None if place is None else str(place),
        detail=places.why_no_exit(first.stack),
        since_unix_ns=first.state.ended_ns,
        at_unix_ns=first.now_ns,
    )


def _stands_at_exit(one: RankEvidence) -> bool:
    is_busy = one.computes or one.helpers_compute or one.moves_data
    is_at_exit = places.why_no_exit(one.stack) is not None  # not in the script's own code at exit, such as an upload
    return bool(one.state.exits) and one.state.stack_ns > one.state.ended_ns and is_at_exit and not is_busy


def judge_records(records: Sequence[Record], exits: Sequence[ProcessExit]) -> Verdict | None:
    """Return the verdict on a job that failed before any rank had a pulse; ``None`` if it did not fail."""
    failure = find_failure([rank_end(one) for one in records], exits)
    first = None if failure is None else failure.first or next((one for one in failure.others if one.failed), None)
    if first is None:
        return None
    record = next((one for one in records if one.rank == first.rank), None)
    return Verdict(
        fault=Fault.DIED,
        rank=first.rank,
        host=first.host,
        pid=first.pid,
        step=first.num_steps,
        place=None if record is None else record.ended_place,
        parameters=() if record is None else _without_gradient(record),
        detail=None if first.error is None else first.error.removeprefix("failed: "),
        has_failed=True,
        exit_code=first.exit_code,
        num_oom_kills=first.num_oom_kills,
        at_unix_ns=first.unix_ns,
    )


def _are_by_themselves(positions: Sequence[Position]) -> bool:
    """Return whether all ranks of the job are seen to be in the script's own code."""
    are_free = all(one.fault in (Fault.OWN_CODE, Fault.LOCK) for one in positions)
    return are_free and are_all_on_cpu([one.evidence for one in positions])


def _await_devices(positions: Sequence[Position]) -> bool:
    """Return whether all ranks stand at the same line until their accelerators have finished, as in ``loss.item()``."""
    if len(positions) < 2 or any(one.evidence.identity.device in (None, "cpu") for one in positions):
        return False
    places = {(one.fault, one.place, one.progress) for one in positions}
    if len(places) > 1 or positions[0].fault is not Fault.OWN_CODE or positions[0].place is None:
        return False
    return all(map(_may_await_a_device, positions))


def _may_await_a_device(position: Position) -> bool:
    """Return whether the rank may be waiting for its accelerator, at a line of the user's or within torch.

    A thread that waits so does not sleep: it asks the accelerator again and again.
    """
    innermost = position.evidence.stack[-1]
    return position.evidence.computes and (innermost.is_of_user or "/torch/" in innermost.file)


def _of_another_collective(positions: Sequence[Position]) -> Position | None:
    """Return the rank whose collective met one of DDP of another size, if the job died of that.

    Either rank may notice: with an error, or gloo aborts its process.
    """
    dead = [one for one in positions if one.fault is Fault.DIED]
    is_said = any(map(_says_another_size, dead))
    if not is_said and not any(map(_was_aborted_by_gloo, dead)):
        return None
    in_script = [one for one in dead if _collective_of_script(one)]
    if len(in_script) == len(positions):
        return None  # all of them called one: see `_of_mismatch`
    went_on = [one for one in dead if _lost_a_peer(one.evidence) and _unusual_collective(one) is not None]
    if not in_script and len(went_on) == 1:
        return went_on[0]
    outside = [one for one in dead if one.evidence.state.activity not in (Activity.BACKWARD, Activity.FORWARD)]
    return min(in_script or (outside if is_said else ()), key=lambda one: one.progress, default=None)


def _of_mismatch(positions: Sequence[Position]) -> Verdict | None:
    """Return the verdict on ranks that called different collectives of the script at once, if the job died of that."""
    dead = [one for one in positions if one.fault is Fault.DIED and _collective_of_script(one)]
    noticed = any(_says_another_size(one) or _was_aborted_by_gloo(one) for one in dead)
    if len(dead) < 2 or len(dead) < len(positions) or not noticed:
        return None
    records = [record for one in dead if (record := one.evidence.record) is not None]
    calls = {one.rank: f"{one.ended_in}{f' at {one.ended_place}' if one.ended_place else ''}" for one in records}
    detail = clauses([f"rank {rank} called {call}" for rank, call in calls.items()], _MOST_CALLS)
    if len(set(calls.values())) == 1:
        detail = f"all called {next(iter(calls.values()))}, but with different amounts of data, or not equally often"
    first = min(dead, key=lambda one: one.evidence.state.step)
    return Verdict(
        fault=Fault.MISMATCH,
        step=first.evidence.state.step,
        detail=detail,
        has_failed=True,
        at_unix_ns=first.evidence.now_ns,
    )


_MOST_CALLS = 8


def _says_another_size(position: Position) -> bool:
    """Return whether the rank's error says that its collective met one of another size."""
    record = position.evidence.record
    return record is not None and record.ended is not None and _MISMATCHED.search(record.ended) is not None


def _was_aborted_by_gloo(position: Position) -> bool:
    """Return whether SIGABRT ended the rank in a collective of gloo: one that is known, or DDP's in a backward pass."""
    record, seen = position.evidence.record, position.evidence.exit
    if record is None or record.ended is not None or record.backend != "gloo":
        return False
    communicates = record.ended_in is not None or position.evidence.state.activity == Activity.BACKWARD
    return communicates and seen is not None and seen.exit_code == -signal.SIGABRT


def _collective_of_script(position: Position) -> bool:
    record = position.evidence.record
    return record is not None and record.ended_in not in (None, "_sync_buffers")


def _unusual_collective(position: Position) -> UnusualCollective | None:
    """Return the collective of its last step that other steps did not have, and for which it did not wait."""
    record = position.evidence.record
    return None if record is None else record.unusual_collective


def _guilt(position: Position) -> tuple[bool, int, tuple[int, int], int]:
    """Return a key that is smaller the more likely the rank is to blame."""
    is_consequence = position.fault is Fault.DIED and _lost_a_peer(position.evidence)
    return is_consequence, _WORST_FIRST.index(position.fault), position.progress, _ended_at(position.evidence)


def _lost_a_peer(evidence: RankEvidence) -> bool:
    ended = evidence.record.ended if evidence.record is not None else None
    if ended is None:
        return evidence.exit is not None and evidence.exit.exit_code == -15  # launchers send SIGTERM to the others
    return is_of_a_lost_peer(ended)


def _ended_at(evidence: RankEvidence) -> int:
    """Return when a rank ended, or last did something."""
    return evidence.state.ended_ns if evidence.state.ended_ns != UNKNOWN else evidence.state.since_ns


def _odd_one(positions: Sequence[Position]) -> Position | None:
    """Among ranks that all wait, return the one to blame; ``None`` if all wait at the same place."""
    evaluating = [one for one in positions if one.fault is Fault.EVALUATES_ALONE]
    if 0 < len(evaluating) <= len(positions) / 2:
        return evaluating[0]
    by_script = [one for one in positions if not one.waits_in_reducer and one.waits_in != "_sync_buffers"]
    if by_script and len(by_script) < len(positions):
        return min(by_script, key=lambda one: one.progress)
    if by_script:
        usual = Counter(one.place for one in positions).most_common()
        return None if len(usual) == 1 else next(one for one in positions if one.place == usual[-1][0])
    passes = [one.evidence.state.num_passes for one in positions]
    if min(passes) < max(passes):
        return min(positions, key=lambda one: one.progress)
    return None


def _verdict(fault: Fault, blamed: Position, waiting: Sequence[Position]) -> Verdict:
    state, identity = blamed.evidence.state, blamed.evidence.identity
    first = min(waiting, key=_waits_since, default=None)
    module, bucket = _missing_bucket(blamed, first)
    exit_seen = blamed.evidence.exit
    parameters = _unreduced(blamed) or (() if module is None or bucket is None else _names(module, bucket))
    return Verdict(
        fault=fault,
        rank=blamed.rank,
        host=identity.host,
        pid=identity.pid,
        step=state.step,
        activity=activity_word(state.activity),
        place=_place(blamed, fault),
        module=None if module is None else module.name,
        bucket=bucket,
        parameters=parameters,
        waiting=tuple(one.rank for one in waiting),
        waiting_at=None if first is None else first.place,
        since_unix_ns=None if first is None else _waits_since(first),
        detail=_detail(blamed, fault, waiting),
        usual_ns=usual_ns(blamed.evidence.steps),
        has_failed=blamed.fault is Fault.DIED or _are_over([blamed, *waiting]),
        exit_code=None if exit_seen is None else exit_seen.exit_code,
        num_oom_kills=blamed.evidence.num_oom_kills,
        at_unix_ns=blamed.evidence.now_ns,
    )


def _are_over(positions: Sequence[Position]) -> bool:
    """Return whether all ranks have ended, and some of them badly: what is over does not hang."""
    ends = [one.evidence.is_dead for one in positions]
    return any(ends) and all(dead or one.evidence.has_ended for dead, one in zip(ends, positions, strict=True))


def _place(blamed: Position, fault: Fault) -> str | None:
    """Return the line of the user's code that is to blame: where the rank stands, or where an error ended it."""
    record = blamed.evidence.record
    if blamed.place is not None or record is None:
        return blamed.place
    own = _unusual_collective(blamed) if fault is Fault.OTHER_COLLECTIVE else None
    return record.ended_place if own is None else own.place


def _unreduced(blamed: Position) -> tuple[str, ...]:
    """Return the parameters without gradient of which DDP complained when the rank ended, if it did."""
    record = blamed.evidence.record
    return () if record is None else _without_gradient(record)


def _without_gradient(record: Record) -> tuple[str, ...]:
    if record.ended is None or UNREDUCED not in record.ended:
        return ()
    return tuple(name for module in record.modules for name in module.unused or ())


def _detail(blamed: Position, fault: Fault, waiting: Sequence[Position]) -> str | None:
    """Return what else is known; of a dead rank, its own words, unless these say that all was well."""
    record = blamed.evidence.record
    error = None if record is None else error_in(record.ended)
    if fault is Fault.OTHER_COLLECTIVE and error is None:
        return _what_each_called(blamed, waiting)
    if blamed.fault is not Fault.DIED or record is None or error is None:
        return blamed.detail
    said, one = error.removeprefix("failed: "), record.unusual_collective
    if fault is not Fault.OTHER_COLLECTIVE or one is None:
        return said
    values = "1 value" if one.num_values == 1 else f"{one.num_values:,} values"
    return f"it called {one.name} ({values}) more often than in any of the steps before; then {said}"


def _what_each_called(blamed: Position, others: Sequence[Position]) -> str | None:
    """Return in which collective the rank is, and in which a rank is that waits for it, or was in at the end."""
    own, theirs = _call(blamed), next(((one.rank, call) for one in others if (call := _call(one)) is not None), None)
    if own is None:
        return blamed.detail
    return f"it called {own}" + ("" if theirs is None else f", and rank {theirs[0]} called {theirs[1]}")


def _call(position: Position) -> str | None:
    record = position.evidence.record
    if position.waits_in_reducer or position.evidence.state.activity == Activity.BACKWARD:
        return "the all-reduce of DDP's gradients"
    if is_of_ddp(position.waits_in):
        return "the broadcast of DDP's buffers"
    return position.waits_in or (None if record is None else record.ended_in)


def _of_link(positions: Sequence[Position]) -> Verdict:
    """Return the verdict on ranks that all wait for each other at the same place."""
    first = min(positions, key=_waits_since)
    state = first.evidence.state
    knows_bucket = first.waits_in_reducer and state.bucket != UNKNOWN
    module = _module(first, state.module) if knows_bucket else None
    return Verdict(
        fault=Fault.LINK,
        step=state.step,
        activity=activity_word(state.activity),
        module=None if module is None else module.name,
        bucket=None if module is None else state.bucket,
        parameters=() if module is None else _names(module, state.bucket),
        waiting=tuple(one.rank for one in positions),
        waiting_at=first.place,
        since_unix_ns=_waits_since(first),
        usual_ns=usual_ns(first.evidence.steps),
        at_unix_ns=first.evidence.now_ns,
    )


def _waits_since(position: Position) -> int:
    """Return when a rank began to wait: when it launched its last bucket, or began what it does."""
    state = position.evidence.state
    return max(state.since_ns, state.bucket_ns) if position.waits_in_reducer else state.since_ns


def _missing_bucket(blamed: Position, waiting: Position | None) -> tuple[DdpModule | None, int | None]:
    """Return the first bucket that `waiting` has launched in its backward pass, and `blamed` has not."""
    if waiting is None or not waiting.waits_in_reducer:
        return None, None
    launched, behind = waiting.evidence.state, blamed.evidence.state
    is_same_pass = behind.num_passes == launched.num_passes
    if is_same_pass and behind.activity != Activity.BACKWARD:
        return None, None  # it has launched all of this pass
    bucket = behind.bucket + 1 if is_same_pass and behind.module == launched.module else 0
    module = _module(waiting, launched.module)
    if module is None or launched.bucket == UNKNOWN or bucket > launched.bucket:
        return None, None
    return module, bucket


def _module(position: Position, index: int) -> DdpModule | None:
    record = position.evidence.record
    if record is None or not 0 <= index < len(record.modules):
        return None
    return record.modules[index]


def _names(module: DdpModule, bucket: int) -> tuple[str, ...]:
    if not 0 <= bucket < len(module.buckets):
        return ()
    indices = (index for index in module.buckets[bucket] if 0 <= index < len(module.parameters))
    return tuple(module.parameters[index].name for index in indices)
