"""Jobs that died because collectives met that do not belong together: which rank called the wrong one?"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from ddpprof.diagnosis.position import Position
from ddpprof.diagnosis.verdicts import lost_a_peer, unusual_collective_of
from ddpprof.model.backends import backend_of
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Activity
from ddpprof.words import clauses

_MISMATCHED = re.compile(r"op\.preamble\.length|op\.nbytes|[Mm]ismatch(?:ed)? .*collective|collective.* mismatch")
"""errors of collectives that met others of another size"""


def died_of_another_size(positions: Sequence[Position]) -> bool:
    """Return whether all ranks died, and one of them because its collective met one of another size."""
    dead = [one for one in positions if one.fault is Fault.DIED]
    return len(dead) == len(positions) and any(_says_another_size(one) or _was_aborted_by_gloo(one) for one in dead)


def those_that_left_out_a_collective(positions: Sequence[Position]) -> list[Position]:
    """Return the ranks that died in DDP's own collectives while most died in one of the script."""
    if not died_of_another_size(positions):
        return []
    in_script = [one for one in positions if _collective_of_script(one)]
    return [one for one in positions if one not in in_script] if len(in_script) > len(positions) / 2 else []


def of_another_collective(positions: Sequence[Position]) -> Position | None:
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
    went_on = [one for one in dead if lost_a_peer(one.evidence) and unusual_collective_of(one) is not None]
    if not in_script and len(went_on) == 1:
        return went_on[0]
    outside = [one for one in dead if one.evidence.state.activity not in (Activity.BACKWARD, Activity.FORWARD)]
    return min(in_script or (outside if is_said else ()), key=lambda one: one.progress, default=None)


def of_mismatch(positions: Sequence[Position]) -> Verdict | None:
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
    if record is None or record.ended is not None or not backend_of(record.backend).aborts:
        return False
    communicates = record.ended_in is not None or position.evidence.state.activity == Activity.BACKWARD
    return communicates and seen is not None and seen.exit_code == -signal.SIGABRT


def _collective_of_script(position: Position) -> bool:
    record = position.evidence.record
    return record is not None and record.ended_in not in (None, "_sync_buffers")
