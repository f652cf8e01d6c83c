"""Selection of some steps of a rank, as if it had no other steps."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TypeVar

import numpy as np
from msgspec import structs

from ddpprof.model import NO_STEP, Collectives, HostSpans, Rank, Trace, Work
from ddpprof.model.tables import rows_of

_Table = TypeVar("_Table", Work, Collectives, HostSpans)


def only_steps(rank: Rank, steps: Container[int]) -> Rank:
    """Keep the steps with these numbers, in the trace and in the record. Work outside of all steps is also dropped."""
    record = rank.record
    if record is not None:
        record = structs.replace(record, steps=tuple(step for step in record.steps if step.number in steps))
    return replace(rank, trace=_only(rank.trace, steps) if rank.trace is not None else None, record=record)


def _only(trace: Trace, steps: Container[int]) -> Trace:
    kept = [index for index, step in enumerate(trace.steps) if step.number in steps]
    becomes = np.full(len(trace.steps) + 1, NO_STEP, np.int32)  # NO_STEP as an index finds the last entry
    becomes[kept] = np.arange(len(kept))

    def chosen(table: _Table) -> _Table:
        step = becomes[table.step]
        kept = step != NO_STEP
        return replace(rows_of(table, kept), step=step[kept])

    return replace(
        trace,
        steps=tuple(trace.steps[index] for index in kept),
        compute=chosen(trace.compute),
        copies=chosen(trace.copies),
        collectives=chosen(trace.collectives),
        host_spans=chosen(trace.host_spans),
    )
