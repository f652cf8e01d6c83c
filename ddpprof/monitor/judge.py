"""Find the rank at fault in a job that hangs or has failed, from the evidence about all ranks.

Each rank is one row of a table (`Position`). The row says where the rank is, whether it waits for other ranks, what it
waits for outside the job, and which collectives it has called. The rules are tried in order, and the first rule that
applies gives the verdict. A rank that waits for other ranks is not at fault if there is a rank that does not wait.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from ddpprof.engine.finding import Finding
from ddpprof.model import UNKNOWN, ProcessExit, Record
from ddpprof.model.hang import Fault, Hint, Verdict
from ddpprof.model.json_files import ended_well
from ddpprof.model.overdue import collective_of
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.monitor import ras
from ddpprof.monitor.calls import (
    OddRank,
    behind_by_calls,
    died_in_collective_of_script,
    odd_by_calls,
    of_call_left_out,
    of_calls_that_failed,
    of_collective_that_failed,
    of_collectives_that_met,
    of_mismatch,
)
from ddpprof.monitor.evidence import RankEvidence, are_all_on_cpu
from ddpprof.monitor.position import (
    Position,
    Table,
    is_in_a_loop,
    loop_left,
    others_of,
    place_at_exit,
    position_of,
    ran_out,
    why_ended,
    why_no_exit,
)
from ddpprof.monitor.verdicts import (
    hint_on_death,
    how_likely_a_consequence,
    lost_a_peer,
    verdict_on,
    verdict_on_all,
    without_gradient,
)
from ddpprof.topics.failure import find_failure, rank_end
from ddpprof.topics.hangs import Passes, find_skipped_pass, unequal_passes
from ddpprof.words import ranks_in_words

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
_HOLDS_A_MACHINE = (Fault.STOPPED, Fault.TRACED, Fault.SWAPPING)
"""faults that the machine or the job can cause on all ranks at the same time"""


def judge(evidence: Sequence[RankEvidence]) -> Verdict:
    """Return the verdict on a job that hangs or has failed."""
    table = _with_early_ends([position_of(one) for one in evidence])
    if not table:
        return Verdict(Fault.UNKNOWN)
    found = (rule(table) for rule in RULES)
    verdict = next((verdict for verdict in found if verdict is not None), None) or verdict_on_all(Fault.LINK, table)
    return structs.replace(verdict, nccl=ras.in_words(_communicator(table)))


def _communicator(table: Table) -> ras.Communicator:
    """Return the report of NCCL's RAS subsystem on the ranks; empty if it was not queried or did not answer."""
    return {one.rank: one.evidence.nccl for one in table if one.evidence.nccl is not None}


_MAY_BE_EARLY = (Fault.OWN_CODE, Fault.LOCK, Fault.OTHER_COLLECTIVE)


def _with_early_ends(table: Table) -> Table:
    """Mark the ranks that have left the training loop before other ranks.

    If all ranks have left the loop, no rank is marked.
    """
    trains = any(is_in_a_loop(one.evidence.stack) for one in table)
    is_between_epochs = all(one.evidence.state.flags & StepFlag.RAN_OUT for one in table)
    over = [
        one
        for one in table
        if one.evidence.has_ended
        or (ran_out(one.evidence) and not is_between_epochs)
        or (trains and _is_behind_loop(one))
    ]
    if len(over) == len(table):
        return table
    return [_as_early(one) if one in over and one.fault in _MAY_BE_EARLY and one.hint is None else one for one in table]


def _as_early(position: Position) -> Position:
    hint = why_ended(position.evidence)
    detail = loop_left(position.evidence.stack) if hint is Hint.LEFT_LOOP else None
    return replace(position, fault=Fault.ENDED_EARLY, detail=detail, hint=hint)


def _is_behind_loop(position: Position) -> bool:
    """Return True if a rank is in a collective that the script calls outside any loop, after the training loop."""
    is_in_collective = position.waits_in is not None and not position.waits_in_ddp
    has_trained = position.evidence.state.num_passes > 0
    return is_in_collective and has_trained and is_in_a_loop(position.evidence.stack) is False


def _of_skipped_pass(table: Table) -> Verdict | None:
    """Diagnose a rank that left the loop, or died in a collective of the script, after too few backward passes.

    The other ranks wait in a backward pass, or fail because of the rank's end.
    """
    found = find_skipped_pass({one.rank: _passes(one) for one in table})
    if found is None:
        return None
    blamed = next(one for one in table if one.rank == found.rank)
    others = others_of(table, blamed)
    if not all(one.waits_in is not None or one.waits_in_ddp or lost_a_peer(one.evidence) for one in others):
        return None
    more = found.num_passes - 1
    later = {0: "", 1: ", nor was a later forward pass"}.get(more, f", nor were {more:,} later forward passes")
    detail = (
        f"Its forward pass in step {found.step:,} was not followed by a backward pass{later}. Since then, DDP has "
        "averaged gradients from different iterations"
    )
    return verdict_on(Fault.FEWER_PASSES, replace(blamed, detail=detail, hint=None), others)


def _passes(position: Position) -> Passes:
    state = position.evidence.state
    first_unpaired = state.unpaired_step if state.num_unpaired > 0 else None
    is_past = state.ended == Ended.FINISHED or died_in_collective_of_script(position)
    return Passes(state.num_passes, is_past, state.num_unpaired, first_unpaired)


def _of_extra_pass(table: Table) -> Verdict | None:
    """Diagnose a rank that ran more backward passes than others: in fewer steps, or after others left the loop."""
    early = [one for one in table if one.fault is Fault.ENDED_EARLY]
    trains_on = [one for one in table if one not in early]
    if len(trains_on) == 1 < len(early) and trains_on[0].waits_in_ddp:
        found = [(trains_on[0], other) for other in early]
        pair = found[0] if all(one.progress[0] > other.progress[0] for one, other in found) else None
    else:
        pair = next(((one, other) for one in table for other in table if _has_more_passes(one, other)), None)
    if pair is None:
        return None
    blamed, other = pair
    passes, others_passes = blamed.evidence.state.num_passes, other.evidence.state.num_passes
    detail = f"It has begun {passes:,} backward passes, and rank {other.rank} has begun {others_passes:,}"
    told = replace(blamed, detail=detail, hint=Hint.EXTRA_PASS)
    return verdict_on(Fault.FEWER_PASSES, told, others_of(table, blamed))


def _has_more_passes(one: Position, other: Position) -> bool:
    return one.progress[0] > other.progress[0] and one.evidence.state.step < other.evidence.state.step


def _of_barrier_in_vain(table: Table) -> Verdict | None:
    """Diagnose the error of a ``monitored_barrier()``, which names the ranks that did not arrive."""
    errors = [one.evidence.record.ended or "" for one in table if one.evidence.record is not None]
    named = next((found for error in errors if (found := _DID_NOT_COME.search(error)) is not None), None)
    if named is None:
        return None
    numbers = {int(word) for word in re.findall(r"\d+", named[1])}
    late = [one for one in table if one.rank in numbers]
    if not late:
        return None
    blamed = replace(late[0], detail=None, hint=Hint.LATE_FOR_BARRIER)
    return verdict_on(Fault.OWN_CODE, blamed, [one for one in table if one not in late])


_DID_NOT_COME = re.compile(r"Ranks?:? ([\d, ]+) failed to (?:pass|reach) monitoredBarrier", re.IGNORECASE)


def _of_timeout(table: Table) -> Verdict | None:
    """Diagnose collectives that timed out on all ranks except one, which did not call them and was ended by the
    launcher.
    """
    late = [one for one in table if how_likely_a_consequence(one.evidence) == 1 and _stood_outside(one)]
    others = [one for one in table if one not in late]
    if len(late) != 1 or not others or not all(map(_timed_out, others)):
        return None
    return verdict_on(Fault.OWN_CODE, replace(late[0], hint=Hint.TIMED_OUT), others)


def _stood_outside(one: Position) -> bool:
    """Return True if a rank is not known to have been in a collective when it ended."""
    is_outside = one.evidence.state.activity == Activity.OTHER and collective_of(one.evidence.stack) is None
    return one.fault is Fault.DIED and is_outside


def _timed_out(one: Position) -> bool:
    record = one.evidence.record
    return one.fault is Fault.DIED and record is not None and rank_end(record).waited_for_a_peer


def _of_rank_behind_its_training(table: Table) -> Verdict | None:
    """Diagnose a rank that is stuck after its training loop and ran as many backward passes as the finished ranks."""
    over = [one for one in table if one.evidence.state.ended == Ended.FINISHED]
    left = [one for one in table if one not in over]
    passes = {one.evidence.state.num_passes for one in table}
    if not over or not left or len(passes) > 1:
        return None
    if all(one.fault is Fault.INTERPRETER_HELD and one.evidence.state.activity == Activity.OTHER for one in left):
        held = replace(left[0], detail="it runs code that holds Python's global interpreter lock")
        return verdict_on(Fault.DOES_NOT_EXIT, replace(held, hint=Hint.HELD_AFTER_TRAINING), ())
    return None if any(map(_is_in_training, left)) else verdict_on(Fault.DOES_NOT_EXIT, left[0], ())


def _is_in_training(one: Position) -> bool:
    is_elsewhere = one.fault in (Fault.OWN_CODE, Fault.LOCK) and one.waits_in is None
    return not is_elsewhere or is_in_a_loop(one.evidence.stack) is not False


def _of_fewer_launches(table: Table) -> Verdict | None:
    """Diagnose ranks on accelerators if NCCL has launched fewer collectives on one rank than on all other ranks.

    The host runs ahead of its accelerator, so ranks that wait for other ranks may be at any line. If the rank is at a
    different line than all other ranks, the other ranks wait for the code at that line. If the rank is at the same line
    as the other ranks, it has skipped a collective.
    """
    rank = ras.behind(_communicator(table))
    blamed = next((one for one in table if one.rank == rank), None)
    if blamed is None or blamed.evidence.identity.device in (None, "cpu") or blamed.fault is Fault.DIED:
        return None
    others = others_of(table, blamed)
    is_elsewhere = blamed.waits_in is None and all(one.place != blamed.place for one in others)
    return verdict_on(blamed.fault if is_elsewhere else Fault.MISSING_COLLECTIVE, blamed, others)


def _of_devices(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait for their accelerators at the same line, for example in ``loss.item()``."""
    if len(table) < 2 or any(one.evidence.identity.device in (None, "cpu") for one in table):
        return None
    where = {(one.fault, one.place, one.progress) for one in table}
    if len(where) > 1 or table[0].fault is not Fault.OWN_CODE or table[0].place is None:
        return None
    return verdict_on_all(Fault.LINK, table) if all(map(_may_await_a_device, table)) else None


def _may_await_a_device(position: Position) -> bool:
    """Return True if the rank may be waiting for its accelerator, at a line of the user's code or of PyTorch.

    A thread that waits for an accelerator does not sleep: it polls the accelerator.
    """
    innermost = position.evidence.stack[-1]
    return position.evidence.computes and (innermost.is_of_user or "/torch/" in innermost.file)


def _of_all_held(table: Table) -> Verdict | None:
    """Diagnose ranks that all have the same problem; no single rank is then at fault."""
    first = table[0]
    if len(table) < 2 or first.fault not in _HOLDS_A_MACHINE or {one.fault for one in table} != {first.fault}:
        return None
    return verdict_on_all(first.fault, table, first.detail, first.hint)


def _of_free_rank(table: Table) -> Verdict | None:
    """Diagnose a rank that does not wait for other ranks, although the other ranks wait for it."""
    free = [one for one in table if one.waits_in is None]
    if not free:
        return None
    blamed = min(free, key=_guilt)
    waiting = [one for one in table if one.waits_in is not None]
    if not (waiting or _are_by_themselves(table)):
        waiting = others_of(table, blamed)
    verdict = verdict_on(blamed.fault, blamed, waiting)
    if verdict.hint is Hint.UNSEEN_END and _were_others_seen_to_fail(table, blamed):
        return structs.replace(verdict, hint=Hint.ENDED_SILENTLY)
    return verdict


def _were_others_seen_to_fail(table: Table, blamed: Position) -> bool:
    """Return True if the launcher recorded a failure of all other ranks on the host."""
    beside = [one for one in others_of(table, blamed) if one.evidence.identity.host == blamed.evidence.identity.host]
    return bool(beside) and all(one.evidence.exit is not None for one in beside)


def _guilt(position: Position) -> tuple[int, int, int, tuple[int, int], int]:
    """Return a sort key that is smallest for the rank that is most likely to be at fault."""
    is_dead, seen = position.fault is Fault.DIED, position.evidence.exit
    ended_ns = (seen.unix_ns or 0) if is_dead and seen is not None else 0
    consequence = how_likely_a_consequence(position.evidence) if is_dead else 0
    order = _WORST_FIRST.index(position.fault)
    return consequence, order, ended_ns if consequence else 0, position.progress, _ended_at(position.evidence)


def _ended_at(evidence: RankEvidence) -> int:
    """Return the time at which a rank ended or was last active."""
    return evidence.state.ended_ns if evidence.state.ended_ns != UNKNOWN else evidence.state.since_ns


def _are_by_themselves(table: Table) -> bool:
    """Return True if all ranks of the job are known to be in the script's own code, or to wait for their batches."""
    are_free = all(one.fault in (Fault.OWN_CODE, Fault.LOCK) for one in table)
    are_free |= all(one.fault is Fault.LOADER for one in table)
    return are_free and are_all_on_cpu([one.evidence for one in table])


def _of_lone_evaluation(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait, if up to half of the ranks are evaluating the DDP module."""
    evaluating = [one for one in table if one.fault is Fault.EVALUATES_ALONE]
    if not 0 < len(evaluating) <= len(table) / 2:
        return None
    return verdict_on(Fault.EVALUATES_ALONE, evaluating[0], others_of(table, evaluating[0]))


def _of_odd_calls(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait, if sequence numbers show which rank skipped or added a collective."""
    return _on_odd_rank(odd_by_calls(table), table)


def _on_odd_rank(odd: OddRank | None, table: Table) -> Verdict | None:
    if odd is None or odd.position is None:
        return None if odd is None else verdict_on_all(odd.fault, table, odd.detail, odd.hint)
    blamed = replace(odd.position, detail=odd.detail, hint=odd.hint)
    return verdict_on(odd.fault, blamed, others_of(table, odd.position))


def _of_odd_place(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait, if one rank waits at a different place than most ranks.

    If there is no majority, a rank that waits in a collective of the script is at fault.
    """
    places_of = Counter(map(_waits_at, table)).most_common()
    if len(places_of) == 1:
        return None
    (_, most), (_, next_most), *_ = places_of
    if most > next_most:
        others = [one for one in table if _waits_at(one) != places_of[0][0]]
    else:
        others = [one for one in table if not one.waits_in_ddp] or list(table)
    blamed = min(others, key=lambda one: one.progress)
    usual = next(one for one in table if _waits_at(one) == places_of[0][0])
    if most > next_most and blamed.waits_in_ddp and not usual.waits_in_ddp:
        detail = f"it skipped {usual.waits_in}{f', at {usual.place}' if usual.place else ''}"
        return verdict_on(Fault.MISSING_COLLECTIVE, replace(blamed, detail=detail), others_of(table, blamed))
    return verdict_on(blamed.fault, blamed, others_of(table, blamed))


def _of_different_roots(table: Table) -> Verdict | None:
    """Diagnose ranks that wait in a collective with a root, if sequence numbers show that another rank completed it."""
    waiting = [one for one in table if one.calls and one.waits_in in _ROOTED]
    if not waiting:
        return None
    last = waiting[0].calls[-1]
    through = [one for one in table if one.calls and one not in waiting and one.calls[-1].sequence > last.sequence]
    if len(through) + len(waiting) < len(table) or not all(last in one.calls for one in table):
        return None
    wait = f"{ranks_in_words([one.rank for one in waiting])} wait{'s' if len(waiting) == 1 else ''}"
    came = f", and {ranks_in_words([one.rank for one in through])} completed it" if through else ""
    said = f"{wait} in {waiting[0].waits_in}, at {waiting[0].place}{came}"
    return verdict_on_all(Fault.MISMATCH, waiting, said, Hint.DIFFERENT_ROOTS)


_ROOTED = (
    *("gather", "gather_object", "scatter", "scatter_object_list", "reduce"),
    *("broadcast", "broadcast_object_list"),
)
"""collectives with a root: one rank sends data to all other ranks, or receives data from them"""


def _waits_at(position: Position) -> tuple[str | None, str | None]:
    return (None, None) if position.waits_in_ddp else (position.waits_in, position.place)


def _of_fewer_passes(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait in DDP's own collectives, if one rank has run fewer backward passes than others."""
    passes = [one.evidence.state.num_passes for one in table]
    if min(passes) == max(passes):
        return None
    blamed = min(table, key=lambda one: one.progress)
    return verdict_on(blamed.fault, blamed, others_of(table, blamed))


def _of_fewer_calls(table: Table) -> Verdict | None:
    """Diagnose ranks that all wait in one backward pass, if one rank has begun fewer all-reduces than the others."""
    return _on_odd_rank(behind_by_calls(table), table) if all(one.waits_in_reducer for one in table) else None


RULES: tuple[Callable[[Table], Verdict | None], ...] = (
    _of_skipped_pass,
    of_calls_that_failed,
    of_call_left_out,
    of_collective_that_failed,
    of_mismatch,
    _of_extra_pass,
    of_collectives_that_met,
    _of_barrier_in_vain,
    _of_timeout,
    _of_fewer_launches,
    _of_devices,
    _of_all_held,
    _of_rank_behind_its_training,
    _of_free_rank,
    _of_lone_evaluation,
    _of_odd_calls,
    _of_different_roots,
    _of_odd_place,
    _of_fewer_passes,
    _of_fewer_calls,
)
"""rules in the order in which they are tried; if none applies, all ranks wait at the same place, so the network is at
fault
"""


def judge_end(evidence: Sequence[RankEvidence], exits: Sequence[ProcessExit]) -> Finding | None:
    """Return a finding if the job ended without an error, but its ranks ran different numbers of backward passes."""
    if not ended_well(exits):
        return None
    records = [one.record for one in evidence if one.record is not None]
    if any(one.joins or one.group_ranks is not None for one in records):
        return None
    return unequal_passes(
        {one.rank: Passes(one.state.num_passes, one.state.ended == Ended.FINISHED) for one in evidence}
    )


_EXIT_S = 8.0
"""seconds that a process may take to exit after its training has ended; after that, ddpprof reports that it does not
exit
"""


def judge_exit(evidence: Sequence[RankEvidence]) -> Verdict | None:
    """Return the verdict on a job if training has ended but a process does not exit; otherwise ``None``.

    A script may continue after training, so a process is considered only if it has reported that it is exiting and has
    written its stacks afterwards. A process that computes, reads or writes is still busy.
    """
    if not evidence or any(one.state.ended != Ended.FINISHED for one in evidence):
        return None
    left = [one for one in evidence if one.lingers_s > _EXIT_S and _stands_at_exit(one)]
    if not left:
        return None
    first = left[0]
    place = place_at_exit(first.stack)
    return Verdict(
        fault=Fault.DOES_NOT_EXIT,
        rank=first.rank,
        host=first.identity.host,
        pid=first.identity.pid,
        step=first.state.step,
        place=None if place is None else str(place),
        detail=why_no_exit(first.stack),
        since_unix_ns=first.state.ended_ns,
        at_unix_ns=first.now_ns,
    )


def _stands_at_exit(one: RankEvidence) -> bool:
    is_busy = one.computes or one.helpers_compute or one.moves_data
    is_at_exit = why_no_exit(one.stack) is not None  # not in the script's own code at exit, such as an upload
    return bool(one.state.exits) and one.state.stack_ns > one.state.ended_ns and is_at_exit and not is_busy


def judge_records(records: Sequence[Record], exits: Sequence[ProcessExit]) -> Verdict | None:
    """Return the verdict on a job that failed before any rank had a pulse file; ``None`` if it did not fail."""
    failure = find_failure([rank_end(one) for one in records], exits)
    first = None if failure is None else failure.first or next((one for one in failure.others if one.failed), None)
    if first is None:
        return None
    record = next((one for one in records if one.rank == first.rank), None)
    seen = None if first.exit_code is None else ProcessExit(first.exit_code)
    return Verdict(
        fault=Fault.DIED,
        rank=first.rank,
        host=first.host,
        pid=first.pid,
        step=first.num_steps,
        place=first.place,
        parameters=() if record is None else without_gradient(record),
        detail=None if first.error is None else first.error.removeprefix("failed: "),
        has_failed=True,
        exit_code=first.exit_code,
        num_oom_kills=first.num_oom_kills,
        at_unix_ns=first.unix_ns,
        hint=hint_on_death(record, seen) if first.error is None or record is not None else None,
    )
