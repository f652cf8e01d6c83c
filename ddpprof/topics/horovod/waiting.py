"""Which rank do the others wait for, according to the ticks of a Horovod timeline?

    waiting of rank r for a tensor = when the last rank had it - when r had it

Rank 0 learns about the other ranks once per cycle, so ranks with ticks in the same cycle count as arriving together,
and none of them is last. If cycles are not marked, ticks closer than `_ONE_CYCLE_NS` count as one cycle. Ticks exist
only for tensors that were not in Horovod's cache.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np

from ddpprof.intervals import union
from ddpprof.topics.horovod.reductions import StepOps
from ddpprof.topics.horovod.timeline import TensorOp
from ddpprof.topics.ranks.arrivals import RankWaiting

_ONE_CYCLE_NS = 500_000
"""half of Horovod's default cycle"""


def summarise_tick_waiting(
    steps: Sequence[StepOps], cycles_ns: Sequence[int], world_size: int | None
) -> tuple[RankWaiting, ...]:
    """Summarise each rank's waiting, over the tensors for which all ranks have ticks; empty if there are none."""
    waits: dict[int, list[tuple[int, int, int]]] = {}
    last: Counter[int] = Counter()
    for number, step in enumerate(steps):
        for op in step.ops:
            if world_size is None or world_size < 2 or len(op.ready_ns) < world_size:
                continue
            came_last = last_rank(op, cycles_ns)
            if came_last is not None:
                last[came_last] += 1
            end = max(op.ready_ns.values())
            for rank, time in op.ready_ns.items():
                waits.setdefault(rank, []).append((number, time, time if came_last is None else end))
    return tuple(_waiting(rank, rows, last[rank]) for rank, rows in sorted(waits.items()))


def last_rank(op: TensorOp, cycles_ns: Sequence[int]) -> int | None:
    """Return the rank that arrived in a later cycle than all others; ``None`` if there is none."""
    *_, before, last = sorted(op.ready_ns.items(), key=lambda one: one[1])
    if cycles_ns:
        return last[0] if bisect(cycles_ns, last[1]) > bisect(cycles_ns, before[1]) else None
    return last[0] if last[1] - before[1] >= _ONE_CYCLE_NS else None


def _waiting(rank: int, rows: Sequence[tuple[int, int, int]], num_last: int) -> RankWaiting:
    steps = {step for step, _, _ in rows}
    per_step = []
    for step in steps:
        spans = np.array([row[1:] for row in rows if row[0] == step], np.int64)
        per_step.append(union(spans[:, 0], spans[:, 1]).total_ns)
    return RankWaiting(
        rank=rank,
        num_collectives=len(rows),
        num_last=num_last,
        median_waiting_ns=round(median(end - start for _, start, end in rows)),
        waiting_per_step_ns=round(median(per_step)),
        total_waiting_ns=sum(end - start for _, start, end in rows),
    )
