"""Steps as seen in traces, from which predictions start: their buckets and, with the same steps' records, gradients.

A bucket is there when its kernel starts, unless the previous one has just ended, so that it may have waited for that.
It was then there as long after its launch by the host as the buckets around it, since the host is ahead by that time.
Gradients between buckets are interpolated from the host's times in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from ddpprof.model import RecordedStep
from ddpprof.model.bucket_assignment import Buckets
from ddpprof.predict.light_steps import ObservedStep, one_part_for_each_pass
from ddpprof.topics.buckets.traced import TracedPass, TracedPasses, usual_passes

_QUEUED_NS = 20_000
"""ns after another kernel's end within which a kernel was waiting for it"""


HostTimes = Mapping[int, Mapping[int, RecordedStep]]
"""profiled steps of each rank, by number"""


def observe_gradients(
    ranks: Mapping[int, TracedPasses], recorded: HostTimes, buckets: Buckets
) -> tuple[ObservedStep, ...]:
    """Return steps that traces and records have; none if the traces show other buckets than `buckets`."""
    steps = []
    for (number, index), passes in _common_passes(ranks).items():
        hosts = [_part_of_pass(recorded.get(rank, {}).get(number), index) for rank in passes]
        known = [host for host in hosts if host is not None]
        if len(known) < len(hosts) or any(len(one.times_ns) != len(buckets) for one in passes.values()):
            continue
        on_device = [_gradients(one, host, buckets) for one, host in zip(passes.values(), known, strict=True)]
        ready = tuple(
            max((ns for ns in times if ns is not None), default=None) for times in zip(*on_device, strict=True)
        )
        steps.append(replace(_observe(list(passes.values())), ready_ns=ready))
    return tuple(steps)


def _part_of_pass(step: RecordedStep | None, index: int) -> RecordedStep | None:
    parts = one_part_for_each_pass(step) if step is not None else ()
    return parts[index] if index < len(parts) else None


def _gradients(one: TracedPass, host: RecordedStep, buckets: Buckets) -> list[float | None]:
    """Interpolate linearly from the end of the forward to the first bucket, and on to the next ones."""
    recorded = host.passes[0]
    launched = [None if ns is None else float(ns - recorded.origin_ns) for ns in recorded.ready_ns]
    of_host, of_device = [0.0], [float(one.backward_start_ns - one.step_start_ns)]
    for bucket, there_ns in zip(buckets, _computed(one), strict=True):
        last = max((ns for index in bucket if (ns := launched[index]) is not None), default=of_host[-1])
        if last > of_host[-1]:
            of_host.append(last)
            of_device.append(max(of_device[-1], there_ns))
    return [None if ns is None else float(np.interp(ns, of_host, of_device)) for ns in launched]


def observe_passes(ranks: Mapping[int, TracedPasses]) -> tuple[ObservedStep, ...]:
    """Return the passes that every rank has with the usual buckets, and whose end of computation is known."""
    return tuple(_observe(list(passes.values())) for passes in _common_passes(ranks).values())


def _common_passes(ranks: Mapping[int, TracedPasses]) -> dict[tuple[int, int], dict[int, TracedPass]]:
    """Return number of the step and position of the pass in it → rank → its pass."""
    if not any(of_rank.passes for of_rank in ranks.values()):
        return {}
    by_rank = {
        rank: {
            (one.number, one.index): one for one in passes if one.backward_end_ns is not None and not one.spans_forwards
        }
        for rank, passes in usual_passes(ranks).items()
    }
    common = sorted(set.intersection(*map(set, by_rank.values())))
    common = [key for key in common if all(passes[key].is_whole for passes in by_rank.values())] or common
    return {key: {rank: passes[key] for rank, passes in by_rank.items()} for key in common}


def _observe(ranks: Sequence[TracedPass]) -> ObservedStep:
    computed = zip(*map(_computed, ranks), strict=True)
    ends = zip(*([end - one.step_start_ns for _, _, end in one.times_ns] for one in ranks), strict=True)
    reduced = [max(one.backward_end_ns or 0, *(end for _, _, end in one.times_ns)) for one in ranks]
    return ObservedStep(
        measured_ns=fmean(one.step_end_ns - one.step_start_ns for one in ranks),
        backward_ns=max(one.backward_start_ns - one.step_start_ns for one in ranks),
        ready_ns=tuple(float(max(times)) for times in computed),
        finished_ns={index: float(min(times)) for index, times in enumerate(ends)},
        reduced_ns=max(ns - one.step_start_ns for ns, one in zip(reduced, ranks, strict=True)),
        backward_end_ns=max((one.backward_end_ns or 0) - one.step_start_ns for one in ranks),
        step=ranks[0].number,
    )


def _computed(one: TracedPass) -> list[int]:
    """Return when each bucket was there, since the step began; at the latest when its all-reduce started."""
    free = [times for index, times in enumerate(one.times_ns) if not _was_queued(one, index)]
    delays = [started - launched for launched, started, _ in free if launched is not None]
    behind = median(delays) if delays else 0
    times = []
    for index, (launched, started, _) in enumerate(one.times_ns):
        there = started
        if launched is not None and _was_queued(one, index):
            there = min(started, round(launched + behind))
        times.append(there - one.step_start_ns)
    return times


def _was_queued(one: TracedPass, index: int) -> bool:
    return index > 0 and one.times_ns[index][1] - one.times_ns[index - 1][2] < _QUEUED_NS
