"""Where the steps of a trace begin and end, and which step and phase a time on the host belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans, union
from ddpprof.model import (
    NO_STEP,
    UNKNOWN,
    Collectives,
    HostSpans,
    Int32Column,
    Int64Column,
    Mark,
    Phase,
    Step,
    Trace,
    Work,
)
from ddpprof.model.tables import moved


class StepFinder:
    """Finds the step that a time belongs to, on any thread."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._starts = np.array([step.start_ns for step in steps], np.int64)
        self._ends = np.array([step.end_ns for step in steps], np.int64)

    def at(self, times_ns: Int64Column) -> Int32Column:
        """Return the index of the step that contains each time, or `NO_STEP`."""
        if not len(self._starts):
            return np.full(len(times_ns), NO_STEP, np.int32)
        step = np.searchsorted(self._starts, times_ns, side="right") - 1
        inside = (step >= 0) & (times_ns < self._ends[step])
        return np.where(inside, step, NO_STEP).astype(np.int32)


class PhaseFinder:
    """Finds the phase that a time on a thread belongs to, by the host's marks on that thread."""

    # For nested marks the earlier line wins: the reducer copies gradients inside autograd's functions, too.
    _MARKS = (
        (Phase.FORWARD, (Mark.FORWARD, Mark.DATA_PARALLEL)),
        (Phase.BACKWARD, (Mark.BACKWARD,)),
        (Phase.OPTIMIZER, (Mark.OPTIMIZER,)),
        (Phase.FINALIZE, (Mark.BUCKET_COPY_IN, Mark.BUCKET_COPY_OUT, Mark.UNUSED_SEARCH)),
    )

    def __init__(self, start_ns: Int64Column, end_ns: Int64Column, mark: NDArray[np.int8], thread: Int64Column) -> None:
        self._spans: list[tuple[int, Phase, Spans]] = []
        for number in np.unique(thread).tolist():
            for phase, marks in self._MARKS:
                rows = (thread == number) & np.isin(mark, marks)
                if rows.any():
                    self._spans.append((number, phase, union(start_ns[rows], end_ns[rows])))
        self._marked_threads = np.unique(thread)
        of_replicas = mark == Mark.DATA_PARALLEL
        self._replicas = union(start_ns[of_replicas], end_ns[of_replicas])

    def at(self, times_ns: Int64Column, threads: Int64Column) -> NDArray[np.int8]:
        """Return the `Phase` of each time on its thread."""
        phases = np.full(len(times_ns), Phase.OTHER, np.int8)
        for thread, phase, spans in self._spans:
            rows = np.flatnonzero((threads == thread) & (phases == Phase.OTHER))
            phases[rows[spans.contains(times_ns[rows])]] = phase
        if len(self._replicas):
            # DataParallel runs each replica in a thread of its own, which the profiler does not follow.
            rows = np.flatnonzero(~np.isin(threads, self._marked_threads))
            phases[rows[self._replicas.contains(times_ns[rows])]] = Phase.FORWARD
        return phases


def steps_from_forwards(forward_starts_ns: Int64Column, optimizer_starts_ns: Int64Column, last_ns: int) -> list[Step]:
    """Return the steps of a trace without ``ProfilerStep#``, from one DDP forward to the next that begins a step.

    If the trace has the optimizer, a forward begins a step only if an optimizer step has begun since the forward before
    it, because several forwards may belong to one update. The last step ends with the trace.
    """
    starts = np.sort(forward_starts_ns)
    if len(optimizer_starts_ns):
        updates_before = np.searchsorted(np.sort(optimizer_starts_ns), starts)
        begins = np.concatenate(([True], updates_before[1:] > updates_before[:-1]))
        starts = starts[begins]
    ends = [*starts[1:].tolist(), last_ns]
    return [Step(number, start, end) for number, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True))]


_TableT = TypeVar("_TableT", Work, Collectives, HostSpans)


def join_cycles(traces: Sequence[Trace]) -> tuple[Trace, tuple[str | None, ...]]:
    """Join the traces on the clock of the earliest one.

    Also return, for each, why it is left out (``None`` if it is not).

    Cycles follow each other in time and continue the step numbers. A trace that overlaps another one or repeats a step
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
    """Return the offset to add to each trace's times. Old traces have no epoch: their times are absolute."""
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
        return "is from another job"
    if _begin(trace) < _end(before):
        return "overlaps with it in time"
    repeated = {step.number for step in before.steps} & {step.number for step in trace.steps}
    return f"also has step {min(repeated)}" if repeated else None


def _counted_on(before: Trace, trace: Trace) -> Trace:
    """Continue the step numbers if the traces have none themselves: each file then counts from 0."""
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
    """Return the names of both without duplicates, and the index of each name of `after` among them."""
    index = {name: number for number, name in enumerate(before)}
    where = [index.setdefault(name, len(index)) for name in after]
    return tuple(index), np.array(where, np.int32)


def _appended(before: _TableT, after: _TableT, index: dict[str, np.ndarray]) -> _TableT:
    """Append a table. `index` maps the values of its columns that are indices."""
    columns = {}
    for column in fields(before):
        first, second = getattr(before, column.name), getattr(after, column.name)
        if column.name in index:
            second = np.append(index[column.name], np.int32(UNKNOWN))[second]
        columns[column.name] = np.concatenate((first, second.astype(first.dtype)))
    return type(before)(**columns)
