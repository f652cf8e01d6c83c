"""The steps of a Horovod timeline: one reduction of every gradient each.

The n-th reduction of each of the tensors that are reduced most often belongs to step n; other all-reduces belong to
the step in which they begin. A step lasts from its first announcement to the next step's, so the last one has no
length; it is left out where the timeline ends in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpprof.intervals import Spans, union
from ddpprof.model import CollectiveKind
from ddpprof.topics.horovod.timeline import ActivityKind, HorovodTimeline, TensorOp


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
    """Return whether the timeline ends in the last step, which then lacks a tensor that all others have."""
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
