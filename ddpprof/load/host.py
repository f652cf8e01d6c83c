"""Derive compute, collective calls, steps and phases from the spans of host threads, and join profiler cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import Spans, by_thread, outermost, union
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


def cut_out(
    start_ns: Int64Column, end_ns: Int64Column, holes: Spans
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Cut holes out of spans. Spans may overlap. Return the start, end and span index of each remaining piece."""
    first = np.searchsorted(holes.end_ns, start_ns, side="right")
    num_holes = np.searchsorted(holes.start_ns, end_ns, side="left") - first
    whole, cut = np.flatnonzero((num_holes <= 0) & (end_ns > start_ns)), np.flatnonzero(num_holes > 0)
    if not len(cut):
        return start_ns[whole], end_ns[whole], whole
    start, end, owner = _pieces(start_ns[cut], end_ns[cut], first[cut], num_holes[cut], holes)
    of_all = np.concatenate((whole, cut[owner]))
    order = np.argsort(of_all, kind="stable")
    return (np.concatenate((start_ns[whole], start))[order], np.concatenate((end_ns[whole], end))[order], of_all[order])


def _pieces(
    start_ns: Int64Column, end_ns: Int64Column, first: NDArray[np.int64], num_holes: NDArray[np.int64], holes: Spans
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Return the pieces of spans with holes. `first`: index of each span's first hole. `num_holes`: number of holes."""
    num_pieces = num_holes + 1
    owner = np.repeat(np.arange(len(start_ns)), num_pieces)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    # Piece i lies between hole i-1 and hole i of its span; the first starts and the last ends with the span.
    after_hole = holes.end_ns[np.maximum(first[owner] + piece - 1, 0)]
    before_hole = holes.start_ns[np.minimum(first[owner] + piece, len(holes) - 1)]
    start = np.where(piece == 0, start_ns[owner], after_hole)
    end = np.where(piece == num_holes[owner], end_ns[owner], before_hole)
    filled = end > start
    return start[filled], end[filled], owner[filled]


def compute_pieces(
    start_ns: Int64Column,
    end_ns: Int64Column,
    thread: Int64Column,
    is_call: NDArray[np.bool_],
    awaited_ns: Int64Column,
) -> tuple[Int64Column, Int64Column, NDArray[np.int64]]:
    """Return compute on host threads: the outermost ops, without ``c10d::`` calls and the time spent waiting for them.

    `awaited_ns`: for each call, the end of the wait. Returns the start and end of each piece, and the row of its op.
    The pieces of a thread do not overlap.
    """
    starts, ends, rows = [], [], []
    for ops in by_thread(outermost(start_ns, end_ns, thread), thread):
        calls = is_call & (thread == thread[ops[0]])
        # Ops of one thread are nested or disjoint. If two overlap, the later one counts from the earlier one's end.
        begun = np.concatenate((start_ns[ops][:1], np.maximum(start_ns[ops][1:], end_ns[ops][:-1])))
        start, end, owner = cut_out(begun, end_ns[ops], union(start_ns[calls], awaited_ns[calls]))
        starts.append(start)
        ends.append(end)
        rows.append(ops[owner])
    empty = np.empty(0, np.int64)
    return np.concatenate([empty, *starts]), np.concatenate([empty, *ends]), np.concatenate([empty, *rows])


def awaited_until(
    end_ns: Int64Column, start_ns: Int64Column, thread: Int64Column, is_call: NDArray[np.bool_], over_ns: Int64Column
) -> Int64Column:
    """Return, for each op, the time until which its thread waits for it.

    For a ``c10d::`` call, this is the earlier of two times: the end of its collective (`over_ns`), and the start of the
    thread's next op. It is never before the end of the call. For any other op, it is the end of the op.
    """
    awaited = end_ns.copy()
    for number in np.unique(thread[is_call]).tolist():
        begins = np.append(np.sort(start_ns[thread == number]), np.iinfo(np.int64).max)
        calls = np.flatnonzero(is_call & (thread == number))
        following = begins[np.searchsorted(begins, end_ns[calls])]
        awaited[calls] = np.maximum(end_ns[calls], np.minimum(following, over_ns[calls]))
    return awaited


def positions(op: NDArray[np.int64], name: Int32Column, step: Int32Column) -> Int32Column:
    """Return, for each piece of an op (in time order), the number of earlier ops with the same name in its step."""
    order = np.lexsort((step, name)).astype(np.int32)  # stable, so that the time order is kept
    name, step, op = name[order], step[order], op[order]
    begins = np.ones(len(op), np.bool_)
    begins[1:] = (name[1:] != name[:-1]) | (step[1:] != step[:-1])
    is_new = begins.copy()
    is_new[1:] |= op[1:] != op[:-1]
    count = np.cumsum(is_new, dtype=np.int32)
    place = np.empty(len(op), np.int32)
    place[order] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return place


def match_calls(
    call_start_ns: Int64Column, call_kind: NDArray[np.int8], span_start_ns: Int64Column, span_kind: NDArray[np.int8]
) -> NDArray[np.int64]:
    """Return, for each collective run by host threads, the index of the call that started it, or `UNKNOWN`.

    Collectives are matched to calls of the same kind in order of their start. Several threads run collectives, so the
    order is not always exact. If a collective begins before the next unmatched call, it was started before profiling
    began.
    """
    matched = np.full(len(span_start_ns), UNKNOWN, np.int64)
    for kind in np.unique(span_kind):
        calls = np.flatnonzero(call_kind == kind)
        calls = calls[np.argsort(call_start_ns[calls], kind="stable")].tolist()
        spans = np.flatnonzero(span_kind == kind)
        next_call = 0
        for span in spans[np.argsort(span_start_ns[spans], kind="stable")].tolist():
            if next_call < len(calls) and call_start_ns[calls[next_call]] <= span_start_ns[span]:
                matched[span] = calls[next_call]
                next_call += 1
    return matched


Index = NDArray[np.int64]


def launch_of(correlation: Int64Column, launch_correlation: Int64Column, launch_start_ns: Int64Column) -> Index:
    """Return, for each kernel, the index of the first launch with the same correlation ID, or `UNKNOWN`.

    Several kernels may share one launch, for example the launch of a CUDA graph.
    """
    if not len(launch_correlation):
        return np.full(len(correlation), UNKNOWN, np.int64)
    order = np.lexsort((launch_start_ns, launch_correlation))
    position = np.searchsorted(launch_correlation[order], correlation)
    launch = order[np.minimum(position, len(order) - 1)]
    return np.where((launch_correlation[launch] == correlation) & (correlation != 0), launch, UNKNOWN)


def holder_of(
    time_ns: Int64Column, thread: Int64Column, start_ns: Int64Column, end_ns: Int64Column, span_thread: Int64Column
) -> Index:
    """Return, per time on a thread, the index of the last span begun before it, or `UNKNOWN` if that span has ended."""
    found = np.full(len(time_ns), UNKNOWN, np.int64)
    for number in np.unique(thread).tolist():
        rows, spans = np.flatnonzero(thread == number), np.flatnonzero(span_thread == number)
        spans = spans[np.argsort(start_ns[spans], kind="stable")]
        last = np.searchsorted(start_ns[spans], time_ns[rows], side="right") - 1
        rows, last = rows[last >= 0], last[last >= 0]
        holds = time_ns[rows] < end_ns[spans[last]]
        found[rows[holds]] = spans[last[holds]]
    return found


def last_begun(time_ns: Int64Column, start_ns: Int64Column) -> Index:
    """Return, for each time, the index of the last span that began before that time, or `UNKNOWN`."""
    order = np.argsort(start_ns, kind="stable")
    before = np.searchsorted(start_ns[order], time_ns)
    return np.where(before > 0, np.append(order, UNKNOWN)[before - 1], UNKNOWN)


class StepFinder:
    """Finds the step to which a time on any thread belongs."""

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
    """Finds the phase that a time on a thread belongs to, from the host marks on that thread."""

    # For nested marks, the earlier entry takes precedence.
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
            # DataParallel runs each replica in its own thread, and these threads have no marks.
            rows = np.flatnonzero(~np.isin(threads, self._marked_threads))
            phases[rows[self._replicas.contains(times_ns[rows])]] = Phase.FORWARD
        return phases


def steps_from_forwards(forward_starts_ns: Int64Column, optimizer_starts_ns: Int64Column, last_ns: int) -> list[Step]:
    """Return the steps of a trace without ``ProfilerStep#`` marks. A step begins with a DDP forward pass.

    Several forward passes may belong to one update of the parameters. If the trace has optimizer steps, a forward pass
    therefore begins a step only if an optimizer step has begun since the previous forward pass. The last step ends with
    the trace.
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
    """Join the traces of a profiler's cycles, using the clock of the earliest trace.

    Also return, for each trace, the reason why it is left out, or ``None``. Cycles follow each other in time and
    continue the step numbers. A trace that overlaps another trace or repeats a step number is from another run.
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
    """Return the offset in ns to add to each trace's times. Old traces have no epoch, and their times are absolute."""
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
    """Continue the step numbers of `before` if neither trace contains numbers, so that both count steps from 0."""
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
    """Return the union of two lists of names, and the index of each name of `after` in the union."""
    index = {name: number for number, name in enumerate(before)}
    where = [index.setdefault(name, len(index)) for name in after]
    return tuple(index), np.array(where, np.int32)


def _appended(before: _TableT, after: _TableT, index: dict[str, np.ndarray]) -> _TableT:
    """Append the table `after` to `before`. `index` maps old to new values of columns that hold indices."""
    columns = {}
    for column in fields(before):
        first, second = getattr(before, column.name), getattr(after, column.name)
        if column.name in index:
            second = np.append(index[column.name], np.int32(UNKNOWN))[second]
        columns[column.name] = np.concatenate((first, second.astype(first.dtype)))
    return type(before)(**columns)
