"""Find the rank that skipped a collective, or called a different collective than the other ranks.

PyTorch numbers the collectives of each process group. Ranks diverged at the first sequence number at which they called
different collectives. The majority of ranks is assumed to be correct. If there is no majority, earlier steps decide. If
the collective was due according to earlier steps, the rank that skipped it is at fault. If the collective is new, the
rank that called it is at fault.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from msgspec import structs

from ddpprof.model.backends import backend_of
from ddpprof.model.hang import Fault, Hint, Verdict
from ddpprof.model.overdue import WORK_WAIT, Call, KindOfCall
from ddpprof.model.pulse import Activity
from ddpprof.monitor.position import REDUCER, Position, Table, others_of
from ddpprof.monitor.verdicts import lost_a_peer, unusual_collective_of, verdict_on, verdict_on_all
from ddpprof.words import clauses

_NEW, _OUT_OF_TURN, _OF_DDP, _DUE = range(4)
"""how well a collective matches the pattern of earlier steps, from not at all to completely"""
_REGULAR = 3
"""a kind of collective counts as regular if it has been called at least this many times"""


@dataclass(frozen=True, slots=True)
class OddRank:
    """The rank at fault, and the kind of fault.

    `position` is ``None`` if calls differ but no single rank is at fault.
    """

    position: Position | None
    fault: Fault
    detail: str | None = None
    hint: Hint | None = None


@dataclass(frozen=True, slots=True)
class _Side:
    """Ranks that called the same collective."""

    call: Call
    callers: tuple[Position, ...]

    @property
    def is_of_ddp(self) -> bool:
        """Whether the collective was called, or probably called, by DDP itself."""
        waiting = [one for one in self.callers if one.calls[-1] == self.call]
        if waiting:
            return waiting[0].waits_in_ddp
        return any(_may_be_of_ddp(self.call, one) for one in self.callers)

    @property
    def fits(self) -> int:
        known = self.callers[0].evidence.facts.known(self.call.kind)
        if self.is_of_ddp:
            return _OF_DDP
        if known is None:
            return _NEW
        return _DUE if known.is_due(self.call.sequence) else _OUT_OF_TURN


def odd_by_calls(positions: Sequence[Position]) -> OddRank | None:
    """Return the rank that called different collectives; ``None`` if there is none or collectives are unknown."""
    positions = [one for one in positions if one.calls]  # a process that was killed has recorded no calls
    if len(positions) < 2:
        return None
    groups = sorted({call.group for one in positions for call in one.calls})
    parted = (_where_they_part(positions, group) for group in groups)
    sides = next((found for found in parted if found), None)
    return _odd_of(sides) if sides is not None else _in_other_order(positions)


def behind_by_calls(positions: Sequence[Position]) -> OddRank | None:
    """Return the rank that has begun fewer collectives in a process group than every other rank, if any."""
    if any(not one.calls for one in positions):
        return None
    for group in sorted({call.group for one in positions for call in one.calls}):
        numbered = [(one, [call for call in one.calls if call.group == group]) for one in positions]
        last = [(calls[-1].sequence, one) for one, calls in numbered if calls]
        fewest, most = min(number for number, _ in last), max(number for number, _ in last)
        behind = [one for number, one in last if number < most]
        if len(behind) == 1 and len(last) == len(positions):
            ahead = next(calls for one, calls in numbered if calls[-1].sequence == most)
            missing = next((call for call in ahead if call.sequence == fewest + 1), ahead[-1])
            return OddRank(behind[0], Fault.MISSING_COLLECTIVE, f"it skipped {missing.name}", Hint.WITHIN_BACKWARD)
    return None


def _call_left_out(position: Position) -> str | None:
    """Return the collective of the script that a rank should have called when it called a DDP collective, or ``None``.

    This does not need the sequence numbers of other ranks.
    """
    if not position.calls or not position.waits_in_ddp:
        return None
    last, facts = position.calls[-1], position.evidence.facts
    own = facts.known(last.kind)
    if own is not None and own.is_due(last.sequence):
        return None
    regular = [one for one in facts.kinds if one.group == last.group and one.count >= _REGULAR]
    of_script = (one for one in regular if not _may_be_of_ddp(one, position))
    due = (one for one in of_script if one is not own and one.is_due(last.sequence))
    return next((one.name for one in due), None)


def _is_in_due_call(position: Position) -> bool:
    """Return True if a rank is in, or died in, a collective of the script that was due according to earlier steps."""
    if not position.calls or position.waits_in_ddp:
        return False
    return _Side(position.calls[-1], (position,)).fits == _DUE


def _where_they_part(positions: Sequence[Position], group: str) -> list[_Side] | None:
    """Group ranks by the collective that they called at the first sequence number at which the calls differ.

    Returns the groups, largest first, or ``None`` if the calls do not differ.
    """
    numbered = [(one, {call.sequence: call for call in one.calls if call.group == group}) for one in positions]
    members = [(one, calls) for one, calls in numbered if calls]
    common = set.intersection(*(set(calls) for _, calls in members)) if len(members) > 1 else set()
    for number in sorted(common):
        callers: dict[Call, list[Position]] = {}
        for one, calls in members:
            callers.setdefault(calls[number], []).append(one)
        if len(callers) > 1:
            sides = [_Side(call, tuple(of)) for call, of in callers.items()]
            return sorted(sides, key=lambda side: -len(side.callers))
    return None


def _odd_of(sides: Sequence[_Side]) -> OddRank | None:
    usual, *others = sides
    odd = others[-1]
    if len(odd.callers) == len(usual.callers):
        if usual.fits == odd.fits:
            return None
        odd, usual = sorted((usual, odd), key=lambda side: side.fits)
    return _blame(odd, usual)


def _blame(odd: _Side, usual: _Side) -> OddRank:
    """Return the first rank of the group at fault (`odd`), with its fault."""
    blamed = odd.callers[0]
    if odd.call.name == usual.call.name and not (odd.is_of_ddp or usual.is_of_ddp):
        said = (
            f"it called {odd.call.name} with {odd.call.numel:,} values, but the other ranks called it with "
            f"{usual.call.numel:,}"
        )
        return OddRank(blamed, _fault_of(blamed), said, Hint.OTHER_AMOUNT)
    is_explained = blamed.hint is not None or blamed.fault in (Fault.ENDED_EARLY, Fault.EVALUATES_ALONE)
    if is_explained or odd.fits == _NEW:
        return OddRank(blamed, _fault_of(blamed), blamed.detail, blamed.hint)
    if not usual.is_of_ddp:
        hint = Hint.SKIPPED_COLLECTIVE if blamed.evidence.facts.known(usual.call.kind) else None
        return OddRank(blamed, Fault.MISSING_COLLECTIVE, _left_out(usual), hint)
    fewest = min(one.evidence.state.num_passes for one in usual.callers)
    skips = blamed.evidence.state.num_passes < fewest and not odd.is_of_ddp
    return OddRank(blamed, Fault.FEWER_PASSES if skips else _fault_of(blamed), blamed.detail, blamed.hint)


def _fault_of(blamed: Position) -> Fault:
    """Return the fault of a rank that called a different collective and may have died because of it."""
    is_known = blamed.fault in (Fault.ENDED_EARLY, Fault.EVALUATES_ALONE)
    return blamed.fault if is_known else Fault.OTHER_COLLECTIVE


def _left_out(side: _Side) -> str:
    """Return a clause that names the collective that a rank skipped, and the line at which other ranks called it."""
    waiting = next((one for one in side.callers if one.calls[-1] == side.call and one.place is not None), None)
    if waiting is None:
        return f"it skipped {side.call.name}"
    is_named = waiting.waits_in not in (None, WORK_WAIT, REDUCER)
    return f"it skipped {waiting.waits_in if is_named else side.call.name}, at {waiting.place}"


def _may_be_of_ddp(call: Call | KindOfCall, position: Position) -> bool:
    """Return True if DDP may have called the collective: it has the size of a bucket, or is a broadcast of buffers."""
    record = position.evidence.record
    modules = () if record is None else record.modules
    if call.name.startswith("broadcast"):
        return any(module.num_buffers for module in modules)
    sizes = {
        sum(prod(module.parameters[index].shape) for index in bucket) for module in modules for bucket in module.buckets
    }
    return call.name in ("all_reduce", "allreduce") and call.numel in sizes


def _in_other_order(positions: Sequence[Position]) -> OddRank | None:
    """Return a verdict if ranks wait in different groups, each in a collective that another rank has not called."""
    if any(one.waits_in_ddp for one in positions) or len({one.calls[-1].group for one in positions}) < 2:
        return None
    last = [{call.group: call.sequence for call in one.calls} for one in positions]
    for one in positions:
        group = one.calls[-1].group
        if all(of.get(group, 0) >= one.calls[-1].sequence for of in last):
            return None
    said = "; ".join(f"rank {one.rank} is in {one.calls[-1].name}{_short_place(one)}" for one in positions)
    return OddRank(None, Fault.MISMATCH, f"they wait in different process groups: {said}", Hint.OTHER_ORDER)


def _short_place(position: Position) -> str:
    """Return the file name and number of the line in the user's code, without the folder."""
    return "" if position.place is None else f" at {position.place.rpartition('/')[2]}"


def of_calls_that_failed(table: Table) -> Verdict | None:
    """Diagnose, from sequence numbers of calls, a job in which collectives of different sizes were matched."""
    odd = odd_by_calls(table) if _died_of_another_size(table) else None
    if odd is None or odd.position is None:
        return None
    return verdict_on(odd.fault, replace(odd.position, detail=odd.detail), others_of(table, odd.position))


def of_call_left_out(table: Table) -> Verdict | None:
    """Diagnose a job as `of_calls_that_failed` does, if some ranks were killed before they could record their calls."""
    if not _died_of_another_size(table):
        return None
    found = [(one, "") for one in _those_that_left_out_a_collective(table)]
    found = found or [(one, name) for one in table if (name := _call_left_out(one)) is not None]
    due = [one for one in table if _is_in_due_call(one)]
    if not found and len(due) == 1 and len(table) == 2:
        (other,) = others_of(table, due[0])
        found = [] if died_in_collective_of_script(other) else [(other, due[0].calls[-1].name)]
    if len(found) != 1:
        return None
    ((blamed, name),) = found
    if any(_of_unequal_sizes(one) for one in others_of(table, blamed)):
        return _of_amounts(table, blamed)
    detail = f"it skipped {name}" if name else None
    return verdict_on(Fault.MISSING_COLLECTIVE, replace(blamed, detail=detail), others_of(table, blamed))


def _of_unequal_sizes(position: Position) -> bool:
    """Return True if a rank died in a collective to which ranks may contribute different amounts of data."""
    record = position.evidence.record
    return record is not None and (record.ended_in or "").startswith("all_to_all")


def _of_amounts(table: Table, ahead: Position) -> Verdict:
    """Diagnose a job in which a rank died in a collective to which ranks may contribute different amounts of data.

    `ahead`: a rank that was not in the collective because it had skipped or completed it.
    """
    died_in = next(record for one in table if _of_unequal_sizes(one) and (record := one.evidence.record) is not None)
    at = f" at {died_in.ended_place}" if died_in.ended_place else ""
    detail = (
        f"rank {died_in.rank} was in {died_in.ended_in}{at}, and rank {ahead.rank} was not: rank {ahead.rank} skipped "
        "that call, or the ranks disagree on how much data each rank sends to every other rank"
    )
    return structs.replace(verdict_on_all(Fault.MISMATCH, table, detail), has_failed=True, place=died_in.ended_place)


def of_collective_that_failed(table: Table) -> Verdict | None:
    """Diagnose a job as `of_calls_that_failed` does, but only from the ranks' lines of code and errors."""
    blamed = _of_another_collective(table)
    return None if blamed is None else verdict_on(Fault.OTHER_COLLECTIVE, blamed, others_of(table, blamed))


def of_collectives_that_met(table: Table) -> Verdict | None:
    """Diagnose a job in which the backend aborted a rank in a collective and the rank at fault is unknown."""
    records = [one.evidence.record for one in table]
    by_library = any(record is not None and record.was_aborted_by_library for record in records)
    if not (by_library and _died_of_another_size(table)):
        return None
    detail = "the backend aborted a rank because its collective was matched with a collective of a different size"
    places_of = {one.place for one in table if one.place is not None}
    place = next(iter(places_of)) if len(places_of) == 1 else None
    return structs.replace(verdict_on_all(Fault.MISMATCH, table, detail), has_failed=True, place=place)


_MISMATCHED = re.compile(r"op\.preamble\.length|op\.nbytes|[Mm]ismatch(?:ed)? .*collective|collective.* mismatch")
"""pattern for errors that are raised if a collective is matched with a collective of a different size"""


def _died_of_another_size(positions: Sequence[Position]) -> bool:
    """Return True if all ranks died, at least one of them because matched collectives differed in size."""
    dead = [one for one in positions if one.fault is Fault.DIED]
    return len(dead) == len(positions) and any(_says_another_size(one) or _was_aborted_by_gloo(one) for one in dead)


def _those_that_left_out_a_collective(positions: Sequence[Position]) -> list[Position]:
    """Return the ranks that died in DDP's own collectives while most ranks died in a collective of the script."""
    if not _died_of_another_size(positions):
        return []
    in_script = [one for one in positions if died_in_collective_of_script(one)]
    return [one for one in positions if one not in in_script] if len(in_script) > len(positions) / 2 else []


def _of_another_collective(positions: Sequence[Position]) -> Position | None:
    """Return the rank that called a collective when other ranks called a DDP collective of a different size.

    Returns ``None`` if the mismatch did not end the job. Either rank may notice the mismatch: it raises an error, or
    gloo aborts its process.
    """
    dead = [one for one in positions if one.fault is Fault.DIED]
    is_said = any(map(_says_another_size, dead))
    if not is_said and not any(map(_was_aborted_by_gloo, dead)):
        return None
    in_script = [one for one in dead if died_in_collective_of_script(one)]
    if len(in_script) == len(positions):
        return None  # all ranks called one: see `of_mismatch`
    in_ddp = [one for one in positions if one not in in_script and _is_surely_in_ddp(one)]
    if in_script and len(in_ddp) < len(positions) - len(in_script) and len(in_ddp) <= len(positions) / 2:
        return None  # ranks about which nothing is known may also have called it
    went_on = [one for one in dead if lost_a_peer(one.evidence) and unusual_collective_of(one) is not None]
    if not in_script and len(went_on) == 1:
        return went_on[0]
    outside = [one for one in dead if one.evidence.state.activity not in (Activity.BACKWARD, Activity.FORWARD)]
    return min(in_script or (outside if is_said else ()), key=lambda one: one.progress, default=None)


def _is_surely_in_ddp(position: Position) -> bool:
    record = position.evidence.record
    ended_in = None if record is None else record.ended_in
    return ended_in == "_sync_buffers" or (ended_in is None and position.evidence.state.activity == Activity.BACKWARD)


def of_mismatch(positions: Sequence[Position]) -> Verdict | None:
    """Diagnose ranks that called different collectives of the script at the same time, if this ended the job."""
    dead = [one for one in positions if one.fault is Fault.DIED and died_in_collective_of_script(one)]
    noticed = any(_says_another_size(one) or _was_aborted_by_gloo(one) for one in dead)
    if len(dead) < 2 or len(dead) < len(positions) or not noticed:
        return None
    records = [record for one in dead if (record := one.evidence.record) is not None]
    calls = {one.rank: f"{one.ended_in}{f' at {one.ended_place}' if one.ended_place else ''}" for one in records}
    detail = clauses([f"rank {rank} called {call}" for rank, call in calls.items()], _MOST_CALLS)
    if len(set(calls.values())) == 1:
        detail = (
            f"all ranks called {next(iter(calls.values()))}, but with different amounts of data, or some ranks called "
            "it more often"
        )
    first = min(dead, key=lambda one: one.evidence.state.step)
    return Verdict(
        fault=Fault.MISMATCH,
        step=first.evidence.state.step,
        detail=detail,
        hint=Hint.OTHER_LINES if len({one.ended_place for one in records}) > 1 else None,
        has_failed=True,
        at_unix_ns=first.evidence.now_ns,
    )


_MOST_CALLS = 8


def _says_another_size(position: Position) -> bool:
    """Return True if the rank's error says that its collective was matched with a collective of a different size."""
    record = position.evidence.record
    return record is not None and record.ended is not None and _MISMATCHED.search(record.ended) is not None


def _was_aborted_by_gloo(position: Position) -> bool:
    """Return True if SIGABRT ended the rank in a gloo collective, or in a backward pass and thus probably in gloo."""
    record, seen = position.evidence.record, position.evidence.exit
    if record is None or record.ended is not None or not backend_of(record.backend).aborts:
        return False
    communicates = record.ended_in is not None or position.evidence.state.activity == Activity.BACKWARD
    return communicates and seen is not None and seen.exit_code == -signal.SIGABRT


def died_in_collective_of_script(position: Position) -> bool:
    """Return True if a rank ended in a collective that the script calls."""
    record = position.evidence.record
    return record is not None and record.ended_in not in (None, "_sync_buffers")
