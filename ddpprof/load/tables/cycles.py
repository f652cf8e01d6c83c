"""Several consecutive traces of one rank → one trace: torch.profiler's schedule writes a file for each cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from ddpprof.model import UNKNOWN, Collectives, HostSpans, Trace, Work
from ddpprof.model.tables import moved

_TableT = TypeVar("_TableT", Work, Collectives, HostSpans)


def join_cycles(traces: Sequence[Trace]) -> tuple[Trace, tuple[str | None, ...]]:
    """Join the traces, on the clock of the earliest; also return for each why it is left out (``None`` if it is not).

    Cycles follow each other in time and continue the count of steps. A trace that overlaps another or repeats a step's
    number is from another run.
    """
    shifts = _shifts(traces)
    in_order = sorted(range(len(traces)), key=lambda index: _begin(traces[index]) + shifts[index])
    joined: Trace | None = None
    why: list[str | None] = [None] * len(traces)
    for index in in_order:
        trace = _shifted(traces[index], shifts[index])
        if joined is None:
            joined = trace
            continue
        trace = _counted_on(joined, trace)
        why[index] = _objection(joined, trace)
        if why[index] is None:
            joined = _joined(joined, trace)
    assert joined is not None, "no traces to join"
    return joined, tuple(why)


def _shifts(traces: Sequence[Trace]) -> list[int]:
    """Return what to add to each trace's times. Old traces have no epoch: their times are absolute."""
    epochs = [trace.epoch_ns for trace in traces]
    known = [epoch for epoch in epochs if epoch is not None]
    if len(known) < len(epochs):
        return [0] * len(traces)
    return [epoch - min(known) for epoch in known]


def _tables(trace: Trace) -> tuple[Work | Collectives | HostSpans, ...]:
    return (trace.compute, trace.copies, trace.collectives, trace.host_spans)


def _begin(trace: Trace) -> int:
    starts = [int(table.start_ns[0]) for table in _tables(trace) if len(table)]
    return min([*starts, *(step.start_ns for step in trace.steps)], default=0)


def _end(trace: Trace) -> int:
    ends = [int(table.end_ns.max()) for table in _tables(trace) if len(table)]
    return max([*ends, *(step.end_ns for step in trace.steps)], default=0)


def _objection(before: Trace, trace: Trace) -> str | None:
    if before.device != trace.device or before.world_size != trace.world_size:
        return "is of another job"
    if _begin(trace) < _end(before):
        return "overlaps it in time"
    repeated = {step.number for step in before.steps} & {step.number for step in trace.steps}
    return f"also has step {min(repeated)}" if repeated else None


def _counted_on(before: Trace, trace: Trace) -> Trace:
    """Continue the count of steps if the traces do not number them: each file counts from 0."""
    if not (before.steps and before.steps_are_counted and trace.steps_are_counted):
        return trace
    first = before.steps[-1].number + 1
    return replace(trace, steps=tuple(replace(step, number=step.number + first) for step in trace.steps))


def _shifted(trace: Trace, shift_ns: int) -> Trace:
    if not shift_ns:
        return trace
    assert trace.epoch_ns is not None
    steps = tuple(replace(s, start_ns=s.start_ns + shift_ns, end_ns=s.end_ns + shift_ns) for s in trace.steps)
    return replace(
        trace,
        epoch_ns=trace.epoch_ns - shift_ns,
        steps=steps,
        compute=moved(trace.compute, shift_ns),
        copies=moved(trace.copies, shift_ns),
        collectives=moved(trace.collectives, shift_ns),
        host_spans=moved(trace.host_spans, shift_ns),
    )


def _joined(before: Trace, after: Trace) -> Trace:
    names, name = _merged(before.names, after.names)
    kernels, kernel = _merged(before.kernels, after.kernels)
    groups, group = _merged(before.groups, after.groups)
    step = np.arange(len(after.steps), dtype=np.int32) + len(before.steps)
    index = {"name": name, "kernel": kernel, "group": group, "step": step}
    cycle = before.steps[-1].cycle + 1 if before.steps else 0
    return replace(
        before,
        names=names,
        kernels=kernels,
        groups=groups,
        steps=(*before.steps, *(replace(s, cycle=cycle) for s in after.steps)),
        compute=_appended(before.compute, after.compute, index),
        copies=_appended(before.copies, after.copies, index),
        collectives=_appended(before.collectives, after.collectives, index),
        host_spans=_appended(before.host_spans, after.host_spans, index),
        files=(*before.files, *after.files),
        notes=tuple(dict.fromkeys((*before.notes, *after.notes))),
    )


_NameT = TypeVar("_NameT")


def _merged(before: Iterable[_NameT], after: Iterable[_NameT]) -> tuple[tuple[_NameT, ...], np.ndarray]:
    """Return the names of both without repetition, and the index of each name of the latter in it."""
    index = {name: number for number, name in enumerate(before)}
    where = [index.setdefault(name, len(index)) for name in after]
    return tuple(index), np.array(where, np.int32)


def _appended(before: _TableT, after: _TableT, index: dict[str, np.ndarray]) -> _TableT:
    """Append a table; `index` maps the values of its columns that are indices."""
    columns = {}
    for column in fields(before):
        first, second = getattr(before, column.name), getattr(after, column.name)
        if column.name in index:
            second = np.append(index[column.name], np.int32(UNKNOWN))[second]
        columns[column.name] = np.concatenate((first, second.astype(first.dtype)))
    return type(before)(**columns)
