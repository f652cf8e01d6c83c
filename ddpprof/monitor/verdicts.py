"""Build the verdict on a job from the rank at fault and the ranks that wait for it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ddpprof.model import UNKNOWN, DdpModule, ProcessExit, Record, UnusualCollective
from ddpprof.model.hang import Fault, Hint, Verdict
from ddpprof.model.overdue import COLLECTIVES_OF_DDP, WORK_WAIT
from ddpprof.model.pulse import Activity, activity_word, usual_ns
from ddpprof.model.record import error_in
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.monitor.position import Position
from ddpprof.topics.error_words import CRASHES
from ddpprof.topics.failure import is_of_a_lost_peer

UNREDUCED = "Expected to have finished reduction"
"""beginning of DDP's error message about parameters that got no gradient"""


def verdict_on(fault: Fault, blamed: Position, waiting: Sequence[Position]) -> Verdict:
    """Return the verdict on a rank that other ranks wait for."""
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
        called_at=blamed.called_at,
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
        hint=_hint(blamed, fault),
    )


def _are_over(positions: Sequence[Position]) -> bool:
    """Return True if all ranks have ended and at least one has failed. Such a job does not hang."""
    ends = [one.evidence.is_dead for one in positions]
    return any(ends) and all(dead or one.evidence.has_ended for dead, one in zip(ends, positions, strict=True))


def _place(blamed: Position, fault: Fault) -> str | None:
    """Return the line of the user's code that the rank runs, or at which an error ended it."""
    record = blamed.evidence.record
    if blamed.place is not None or record is None:
        return blamed.place
    if fault is Fault.DIED and record.ended_place is None and _called_exit(blamed):
        return record.exit_place
    own = unusual_collective_of(blamed) if fault is Fault.OTHER_COLLECTIVE else None
    return record.ended_place if own is None else own.place


def _called_exit(blamed: Position) -> bool:
    """Return True if ``sys.exit()`` ended the rank."""
    record, seen = blamed.evidence.record, blamed.evidence.exit
    return record is not None and record.exit_message is not None and seen is not None and seen.exit_code > 0


def _hint(blamed: Position, fault: Fault) -> Hint | None:
    """Return the fact that the advice depends on."""
    if fault is not Fault.DIED:
        return blamed.hint
    return hint_on_death(blamed.evidence.record, blamed.evidence.exit)


def hint_on_death(record: Record | None, seen: ProcessExit | None) -> Hint | None:
    """Return a hint on how a rank ended; ``None`` if there is nothing to add to its error message."""
    if record is not None and error_in(record.ended) is not None:
        return Hint.STATIC_GRAPH if without_gradient(record) and _has_static_graph(record) else None
    if seen is None:
        return Hint.UNSEEN_END
    if seen.exit_code == -signal.SIGTERM:
        return Hint.TERMINATED
    if -seen.exit_code not in CRASHES:
        return None
    return Hint.CRASHED_AT_EXIT if record is not None and record.ended == "finished" else Hint.CRASHED


def _has_static_graph(record: Record) -> bool:
    return any(module.settings.get("static_graph") for module in record.modules)


def _unreduced(blamed: Position) -> tuple[str, ...]:
    """Return the parameters without a gradient that DDP's error message names, if this error ended the rank."""
    record = blamed.evidence.record
    return () if record is None else without_gradient(record)


def without_gradient(record: Record) -> tuple[str, ...]:
    if record.ended is None or UNREDUCED not in record.ended:
        return ()
    examined = tuple(name for module in record.modules for name in module.unused or ())
    return record.parameters_in_error(record.modules) or examined


def _detail(blamed: Position, fault: Fault, waiting: Sequence[Position]) -> str | None:
    """Return further details about the rank, such as the message of the error with which it failed."""
    record = blamed.evidence.record
    error = None if record is None else error_in(record.ended)
    if blamed.hint in (Hint.OF_PEERS, Hint.OTHER_AMOUNT):
        return blamed.detail
    if fault is Fault.DIED and record is not None and error is None and _called_exit(blamed):
        return f"it called sys.exit() with {record.exit_message!r}"
    if fault is Fault.OTHER_COLLECTIVE and error is None:
        parts = (_what_each_called(blamed, waiting), blamed.detail)
        return "; ".join(part for part in parts if part is not None) or None
    if blamed.fault is not Fault.DIED or fault is Fault.MISSING_COLLECTIVE or record is None or error is None:
        return blamed.detail
    said, one = error.removeprefix("failed: "), record.unusual_collective
    if fault is not Fault.OTHER_COLLECTIVE or one is None:
        return said
    values = "1 value" if one.num_values == 1 else f"{one.num_values:,} values"
    return f"it called {one.name} ({values}) more often than in any earlier step; then {said}"


def _what_each_called(blamed: Position, others: Sequence[Position]) -> str | None:
    """Return a clause that names the last collectives of the rank and of a rank that waits for it."""
    own, theirs = _call(blamed), next(((one.rank, call) for one in others if (call := _call(one)) is not None), None)
    if own is None:
        return None
    return f"it called {own}" + ("" if theirs is None else f", and rank {theirs[0]} called {theirs[1]}")


def _call(position: Position) -> str | None:
    record = position.evidence.record
    if position.waits_in_reducer or (
        position.waits_in is None and position.evidence.state.activity == Activity.BACKWARD
    ):
        return "DDP's gradient all-reduce"
    name = position.waits_in or (None if record is None else record.ended_in)
    if position.waits_in in COLLECTIVES_OF_DDP:
        return COLLECTIVES_OF_DDP[position.waits_in]
    if name == WORK_WAIT:
        return position.calls[-1].name if position.calls else "an asynchronous collective"
    return name


def verdict_on_all(
    fault: Fault, positions: Sequence[Position], detail: str | None = None, hint: Hint | None = None
) -> Verdict:
    """Return a verdict without a rank at fault: all ranks wait for each other, or all have the same problem."""
    first = min(positions, key=_waits_since)
    state = first.evidence.state
    waiting = [one for one in positions if one.waits_in is not None or fault is Fault.LINK]
    knows_bucket = fault is Fault.LINK and first.waits_in_reducer and state.bucket != UNKNOWN
    module = _module(first, state.module) if knows_bucket else None
    return Verdict(
        fault=fault,
        step=state.step,
        activity=activity_word(state.activity),
        module=None if module is None else module.name,
        bucket=None if module is None else state.bucket,
        parameters=() if module is None else _names(module, state.bucket),
        waiting=tuple(one.rank for one in waiting),
        waiting_at=first.place if waiting else None,
        since_unix_ns=_waits_since(first),
        detail=detail,
        usual_ns=usual_ns(first.evidence.steps),
        at_unix_ns=first.evidence.now_ns,
        hint=hint,
    )


def _waits_since(position: Position) -> int:
    """Return the time at which a rank began to wait, in ns since 1970.

    This is the time of its last bucket launch or change of activity.
    """
    state = position.evidence.state
    return max(state.since_ns, state.bucket_ns) if position.waits_in_reducer else state.since_ns


def _missing_bucket(blamed: Position, waiting: Position | None) -> tuple[DdpModule | None, int | None]:
    """Return the first bucket that `waiting` has launched in its backward pass and `blamed` has not."""
    if waiting is None or not waiting.waits_in_reducer:
        return None, None
    launched, behind = waiting.evidence.state, blamed.evidence.state
    is_same_pass = behind.num_passes == launched.num_passes
    if is_same_pass and behind.activity != Activity.BACKWARD:
        return None, None  # it has launched all buckets of this pass
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


def unusual_collective_of(position: Position) -> UnusualCollective | None:
    """Return a collective that the rank called only in its last step and that did not wait for other ranks."""
    record = position.evidence.record
    return None if record is None else record.unusual_collective


def lost_a_peer(evidence: RankEvidence) -> bool:
    """Return True if a rank may have ended because another rank ended."""
    return how_likely_a_consequence(evidence) > 0


def how_likely_a_consequence(evidence: RankEvidence) -> int:
    """Return a score for the likelihood that a rank ended because another rank ended.

    The result is 2 if the rank's error says that the connection to another rank was lost, 1 if SIGTERM (from a
    launcher) ended the rank, and otherwise 0.
    """
    ended = evidence.record.ended if evidence.record is not None else None
    if ended is None:
        return int(evidence.exit is not None and evidence.exit.exit_code == -signal.SIGTERM)
    return 2 * is_of_a_lost_peer(ended)
