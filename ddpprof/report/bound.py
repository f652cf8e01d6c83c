"""What bounds a step whose communication is not hidden, and what would help?

    waiting    more than half of the communication is waiting for late ranks
    latency    a backward pass is known to send few bytes, so the number of messages matters, not their size
    bandwidth  otherwise

The rules of topics say what to change in DDP. This module says what bounds the step if no such change helps much.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from ddpprof.engine.findings import may_be_chance
from ddpprof.engine.predictions import Predicted, within
from ddpprof.engine.topic import View
from ddpprof.report.tree import Bound, BoundBy, Report, WhatHelps, WouldHelp
from ddpprof.topics.accumulation import ACCUMULATION

_MUCH = 0.1
"""exposed communication at or above this fraction of the step bounds the step"""
_MOSTLY = 0.5
_LITTLE_BYTES = 1 << 20
_OF_BYTES = (WhatHelps.COMPRESSION, WhatHelps.DOUBLE_LINK)
"""changes that do not reduce latency; in a replay, small buckets do not show how much of their time is latency"""


def find_bound(report: Report, view: View) -> Bound | None:
    """Return the bound; ``None`` if little of the step is exposed communication, or without profiled steps."""
    steps = [step for rank in report.ranks for step in report.averaged(rank)]
    if not steps or not any(step.num_comm_kernels for step in steps):
        return None
    step_ns, exposed_ns, comm_ns = (
        round(fmean(values))
        for values in (
            [step.duration_ns for step in steps],
            [step.exposed_ns for step in steps],
            [step.comm_ns for step in steps],
        )
    )
    exposed_ns = min(exposed_ns, step_ns)  # what the last step launched may end after it
    if exposed_ns < _MUCH * step_ns:
        return None
    num_collectives = round(median(step.num_comm_kernels for step in steps))
    num_bytes, waiting_ns = _gradient_bytes(report, num_collectives), _waiting_ns(report)
    if waiting_ns is not None and waiting_ns > comm_ns:
        waiting_ns = None  # it counts all steps, and those left out of the means had longer waits
    by = _bound_by(comm_ns, waiting_ns, num_bytes)
    return Bound(
        by=by,
        step_ns=step_ns,
        exposed_ns=exposed_ns,
        comm_ns=comm_ns,
        waiting_ns=waiting_ns,
        gradient_bytes=num_bytes,
        num_collectives=num_collectives,
        would_help=tuple(_would_help(view, by, exposed_ns)),
    )


def _bound_by(comm_ns: int, waiting_ns: int | None, num_bytes: int | None) -> BoundBy:
    if waiting_ns is not None and waiting_ns > _MOSTLY * comm_ns:
        return BoundBy.WAITING
    return BoundBy.LATENCY if num_bytes is not None and num_bytes < _LITTLE_BYTES else BoundBy.BANDWIDTH


def _gradient_bytes(report: Report, num_collectives: int) -> int | None:
    """Return the bytes that a step's buckets send; ``None`` if no buckets are known, or the size of one is not.

    It is also unknown if a step has fewer collectives than there are buckets: steps then train different modules.
    """
    if num_collectives < len(report.buckets):
        return None
    known = [bucket.num_passes * bucket.num_bytes for bucket in report.buckets if bucket.num_bytes is not None]
    return sum(known) if known and len(known) == len(report.buckets) else None


def _waiting_ns(report: Report) -> int | None:
    """Return how long a rank waits in a step, as in the table of waiting ranks; ``None`` if none were matched."""
    across = report.across
    per_rank = [one.waiting_per_step_ns for one in across.waiting] if across is not None else []
    known = [waiting_ns for waiting_ns in per_rank if waiting_ns is not None]
    return round(fmean(known)) if known else None


def _would_help(view: View, by: BoundBy, exposed_ns: int) -> Sequence[WouldHelp]:
    """Return the replay's result for each change; a change removes at most the exposed communication.

    A step may have several backward passes that all need their own gradients, for example if an optimizer evaluates its
    closure repeatedly. Only if gradients accumulate can all passes but the last skip the reduction.
    """
    predictions = view.predictions
    best = predictions.best_buckets
    found: list[tuple[WhatHelps, Predicted | None]] = [
        (WhatHelps.DOUBLE_BATCH, predictions.double_batch),
        (WhatHelps.ACCUMULATION, predictions.accumulation),
        (WhatHelps.NO_SYNC, predictions.no_sync if view[ACCUMULATION] else None),
        (WhatHelps.COMPRESSION, predictions.compression),
        (WhatHelps.DOUBLE_LINK, predictions.double_link),
        (WhatHelps.BUCKETS, best.predicted if best is not None else None),
    ]
    known = [(what, within(predicted, exposed_ns)) for what, predicted in found if predicted is not None]
    return [
        WouldHelp(what, predicted, may_be_chance(predicted, view.step_noise_ns))
        for what, predicted in known
        if not (by is BoundBy.LATENCY and what in _OF_BYTES)
    ]
