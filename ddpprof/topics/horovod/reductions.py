"""How long does a step take until all its gradients are reduced, and how is that time spent?

    reduction = first gradient announced → last one reduced
              = collectives + copies + other work + waiting for ranks + nothing to do      each without those before it
    trailing  = the part of it after rank 0 has announced its last gradient: its backward pass is over by then

Waiting for ranks is negotiation during which Horovod works on no tensor. It ends with a cycle, so even a rank that
waits for no other waits up to `HOROVOD_CYCLE_TIME`. A timeline has no computation, so overlap with it is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.intervals import NO_SPANS, Spans, clip, merge, subtract, union
from ddpprof.model import CollectiveKind
from ddpprof.statistics.medians import median_known
from ddpprof.topics.collectives.table import bus_factor
from ddpprof.topics.horovod.timeline import ActivityKind, HorovodTimeline, TensorOp

_COPIES = (ActivityKind.COPY_IN, ActivityKind.COPY_OUT)


@dataclass(frozen=True, slots=True)
class ReductionParts:
    """Parts of a span, in ns; they add up to its length."""

    collective_ns: int
    copy_ns: int
    """copies into and out of the fusion buffer, and between host and device"""
    other_work_ns: int
    """queueing on the device, setup, allocation and Horovod's own bookkeeping"""
    waiting_ns: int
    """waiting for ranks and for the next cycle"""
    nothing_ns: int
    """time during which no tensor is announced: rank 0 computes"""

    @property
    def total_ns(self) -> int:
        return self.collective_ns + self.copy_ns + self.other_work_ns + self.waiting_ns + self.nothing_ns


@dataclass(frozen=True, slots=True)
class HorovodStep:
    step: int
    duration_ns: int | None
    """time until the next step begins"""
    num_tensors: int
    num_collectives: int
    num_alone: int
    """number of tensors that are reduced by a separate collective"""
    alone_ns: int
    """sum of the times of these collectives"""
    longest_alone_ns: int
    num_bytes: int | None
    """bytes reduced; ``None`` if the timeline lacks the size of a tensor"""
    reduction: ReductionParts
    trailing: ReductionParts


@dataclass(frozen=True, slots=True)
class HorovodTensor:
    """One gradient; times are medians over steps, in ns."""

    tensor: str
    kind: str
    num_bytes: int | None
    num_steps: int
    announced_ns: int | None
    """time since the step's first tensor was announced"""
    negotiation_ns: int | None
    """time from its announcement until all ranks had it; Horovod may have been busy with other tensors during that time
    """
    waiting_ns: int | None
    """part of the negotiation in which Horovod worked on no tensor"""
    queue_ns: int
    """time from the end of the negotiation to its collective, without copies"""
    copy_ns: int
    collective_ns: int
    """duration of its collective, shared with the tensors fused with it"""
    num_fused: int
    """number of tensors in its collective, including itself"""


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Tensors that shared a collective, in at least one step. Times are medians over its steps, ns."""

    tensors: tuple[str, ...]
    num_steps: int
    num_bytes: int | None
    started_ns: int
    """time since the step's first tensor was announced"""
    copy_ns: int
    collective_ns: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class BetweenSteps:
    """Collectives of one kind that belong to no step."""

    kind: str
    num_calls: int
    collective_ns: int
    """total time"""


@dataclass(frozen=True, slots=True)
class HorovodSummary:
    backend: str | None
    cycle_ns: int | None
    """median time from one cycle to the next; ``None`` if cycles are not marked"""
    steps: tuple[HorovodStep, ...]
    tensors: tuple[HorovodTensor, ...]
    """in the order in which they are first announced"""
    groups: tuple[FusedGroup, ...]
    """most frequent first"""
    others: tuple[BetweenSteps, ...]
    num_reductions: int
    """reductions of tensors, in steps"""
    num_with_ranks: int
    """reductions for which the timeline shows when each rank had the tensor"""


def summarise_horovod(timeline: HorovodTimeline) -> HorovodSummary:
    steps = find_horovod_steps(timeline)
    in_steps = {id(op) for step in steps for op in step.ops}
    worked = op_spans(timeline.ops, lambda op: [(op.start_ns, op.end_ns)])
    cycles = np.diff(np.array(timeline.cycles_ns, np.int64))
    return HorovodSummary(
        backend=timeline.backend,
        cycle_ns=round(float(np.median(cycles))) if len(cycles) else None,
        steps=tuple(_measure_step(number, step, worked) for number, step in enumerate(steps)),
        tensors=_tensors(steps, worked),
        groups=_groups(steps, timeline.world_size),
        others=_others([op for op in timeline.ops if id(op) not in in_steps]),
        num_reductions=len(in_steps),
        num_with_ranks=sum(bool(op.ready_ns) for step in steps for op in step.ops),
    )


def _own_announcement_ns(op: TensorOp) -> int:
    """Return when rank 0 had the tensor, ns."""
    return op.ready_ns.get(0, announced_ns(op))


def _measure_step(number: int, step: StepOps, worked: Spans) -> HorovodStep:
    ops = step.ops
    groups = list(by_group(ops).values())
    alone = [comm_spans(group).total_ns for group in groups if len(group) == 1]
    end = max(op.end_ns for op in ops)
    last = max(map(_own_announcement_ns, ops))
    return HorovodStep(
        step=number,
        duration_ns=None if step.end_ns is None else step.end_ns - step.start_ns,
        num_tensors=len(ops),
        num_collectives=len(groups),
        num_alone=len(alone),
        alone_ns=sum(alone),
        longest_alone_ns=max(alone, default=0),
        num_bytes=_total_bytes(ops),
        reduction=_parts(ops, worked, step.start_ns, end),
        trailing=_parts(ops, worked, min(last, end), end),
    )


def _parts(ops: Sequence[TensorOp], worked: Spans, start: int, end: int) -> ReductionParts:
    """Divide the span from `start` to `end` into parts; each part excludes the time of the parts before it."""
    taken = NO_SPANS
    lengths: list[int] = []
    for kind in (
        comm_spans(ops),
        op_spans(ops, lambda op: activities_of(op, *_COPIES)),
        worked,
        op_spans(ops, negotiation_of),
    ):
        part = subtract(clip(kind, start, end), taken)
        lengths.append(part.total_ns)
        taken = merge(taken, part)
    collective, copies, other, waiting = lengths
    return ReductionParts(collective, copies, other, waiting, end - start - sum(lengths))


def _tensors(steps: Sequence[StepOps], worked: Spans) -> tuple[HorovodTensor, ...]:
    found: dict[str, list[tuple[StepOps, TensorOp, int]]] = {}
    for step in steps:
        members = Counter(op.group for op in step.ops)
        for op in step.ops:
            found.setdefault(op.tensor, []).append((step, op, members[op.group]))
    return tuple(_tensor(name, rows, worked) for name, rows in found.items())


def _tensor(name: str, rows: Sequence[tuple[StepOps, TensorOp, int]], worked: Spans) -> HorovodTensor:
    ops = [op for _, op, _ in rows]
    negotiations = [span for op in ops for span in negotiation_of(op)]
    return HorovodTensor(
        tensor=name,
        kind=ops[0].kind.name.lower(),
        num_bytes=next((op.num_bytes for op in ops if op.num_bytes is not None), None),
        num_steps=len(rows),
        announced_ns=median_known([announced_ns(op) - step.start_ns for step, op, _ in rows if negotiation_of(op)]),
        negotiation_ns=median_known([end - start for start, end in negotiations]),
        waiting_ns=median_known([_length([span]) - clip(worked, *span).total_ns for span in negotiations]),
        queue_ns=median_known([_queue_ns(op) for op in ops]) or 0,
        copy_ns=median_known([_length(activities_of(op, *_COPIES)) for op in ops]) or 0,
        collective_ns=median_known([_length(activities_of(op, ActivityKind.COLLECTIVE)) for op in ops]) or 0,
        num_fused=median_known([members for _, _, members in rows]) or 1,
    )


def _queue_ns(op: TensorOp) -> int:
    begins = [start for start, _ in activities_of(op, ActivityKind.COLLECTIVE)]
    ready = op.start_ns if op.negotiated_ns is None else op.negotiated_ns
    if not begins:
        return 0
    copies = [(start, end) for start, end in activities_of(op, *_COPIES) if end <= min(begins)]
    return max(0, min(begins) - ready - _length(copies))


def _groups(steps: Sequence[StepOps], world_size: int | None) -> tuple[FusedGroup, ...]:
    found: dict[tuple[str, ...], list[tuple[int, list[TensorOp]]]] = {}
    for step in steps:
        for ops in by_group(step.ops).values():
            found.setdefault(tuple(op.tensor for op in ops), []).append((step.start_ns, ops))
    groups = [_group(tensors, rows, world_size) for tensors, rows in found.items()]
    return tuple(sorted(groups, key=lambda group: (-group.num_steps, group.started_ns)))


def _group(tensors: tuple[str, ...], rows: Sequence[tuple[int, list[TensorOp]]], world_size: int | None) -> FusedGroup:
    spans = [comm_spans(ops) for _, ops in rows]
    num_bytes = _total_bytes(rows[0][1])
    collective_ns = median_known([one.total_ns for one in spans]) or 0
    algbw = num_bytes / collective_ns * 1e9 if num_bytes is not None and collective_ns else None
    factor = bus_factor(rows[0][1][0].kind, world_size)
    return FusedGroup(
        tensors=tensors,
        num_steps=len(rows),
        num_bytes=num_bytes,
        started_ns=median_known([min(op.start_ns for op in ops) - start for start, ops in rows]) or 0,
        copy_ns=median_known([op_spans(ops, lambda op: activities_of(op, *_COPIES)).total_ns for _, ops in rows]) or 0,
        collective_ns=collective_ns,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw is not None and factor is not None else None,
    )


def _others(ops: Sequence[TensorOp]) -> tuple[BetweenSteps, ...]:
    found: dict[CollectiveKind, list[TensorOp]] = {}
    for op in ops:
        found.setdefault(op.kind, []).append(op)
    return tuple(
        BetweenSteps(kind.name.lower(), len(by_group(of)), comm_spans(of).total_ns)
        for kind, of in sorted(found.items())
    )


def _total_bytes(ops: Sequence[TensorOp]) -> int | None:
    known = [op.num_bytes for op in ops if op.num_bytes is not None]
    return sum(known) if len(known) == len(ops) else None


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


@dataclass(frozen=True, slots=True)
class StepOps:
    """The tensors that one step reduces."""

    ops: tuple[TensorOp, ...]
    start_ns: int
    end_ns: int | None


def find_horovod_steps(timeline: HorovodTimeline) -> list[StepOps]:
    """Return the steps; none if no tensor is reduced twice."""
    reductions = [op for op in timeline.ops if op.kind is CollectiveKind.ALL_REDUCE]
    counts = Counter(op.tensor for op in reductions)
    most = max(counts.values(), default=0)
    if most < 2:
        return []
    recurring = {tensor for tensor, number in counts.items() if number == most}
    steps: list[list[TensorOp]] = [[] for _ in range(most)]
    seen: Counter[str] = Counter()
    for op in reductions:
        if op.tensor in recurring:
            steps[seen[op.tensor]].append(op)
            seen[op.tensor] += 1
    starts = [min(map(announced_ns, ops)) for ops in steps]
    for op in reductions:
        if op.tensor not in recurring:
            step = int(np.searchsorted(starts, announced_ns(op), side="right")) - 1
            if step >= 0:
                steps[step].append(op)
    ends: list[int | None] = [*starts[1:], None]
    found = [
        StepOps(tuple(sorted(ops, key=announced_ns)), start, end)
        for ops, start, end in zip(steps, starts, ends, strict=True)
    ]
    return found[:-1] if _is_cut_short(steps) else found


def _is_cut_short(steps: Sequence[Sequence[TensorOp]]) -> bool:
    """Return whether the timeline ends in the last step, so that a tensor is missing that all other steps have."""
    tensors = [{op.tensor for op in ops} for ops in steps]
    return bool(set.intersection(*tensors[:-1]) - tensors[-1])


def announced_ns(op: TensorOp) -> int:
    """Return when the first rank is known to have the tensor."""
    return op.start_ns if op.negotiated_from_ns is None else op.negotiated_from_ns


def op_spans(ops: Iterable[TensorOp], spans: Callable[[TensorOp], Iterable[tuple[int, int]]]) -> Spans:
    rows = np.array([span for op in ops for span in spans(op)], np.int64).reshape(-1, 2)
    return union(rows[:, 0], rows[:, 1])


def activities_of(op: TensorOp, *kinds: ActivityKind) -> list[tuple[int, int]]:
    return [(one.start_ns, one.end_ns) for one in op.activities if one.kind in kinds]


def comm_spans(ops: Iterable[TensorOp]) -> Spans:
    """Return the spans in which a collective of one of the ops runs."""
    return op_spans(ops, lambda op: activities_of(op, ActivityKind.COLLECTIVE))


def negotiation_of(op: TensorOp) -> list[tuple[int, int]]:
    if op.negotiated_from_ns is None or op.negotiated_ns is None:
        return []
    return [(op.negotiated_from_ns, op.negotiated_ns)]


def by_group(ops: Iterable[TensorOp]) -> dict[int, list[TensorOp]]:
    groups: dict[int, list[TensorOp]] = {}
    for op in ops:
        groups.setdefault(op.group, []).append(op)
    return groups
