"""Combine the recorded backward passes of all ranks into the observations on which predictions are based.

A step with one synchronized backward pass is one observation. A step with several synchronized backward passes is split
into parts; each part ends where the forward pass of the next part starts. A backward pass through several DDP modules
is one part. Times are in ns since the start of the part:

    ready      time at which a gradient is ready on the last rank, because its bucket waits for all ranks
    finished   time at which a bucket has finished on the last rank
    reduced    end of the backward pass, including DDP's work: start of the first optimizer, or end of the step
    measured   duration of the part; mean over the ranks, which are synchronized
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median

import numpy as np
from msgspec import structs

from ddpprof.model import BackwardPass, RecordedStep, StepMode
from ddpprof.model.ddp_module import Buckets
from ddpprof.statistics import first_quartile
from ddpprof.topics.buckets.traced import TracedPass, TracedPasses, usual_passes


@dataclass(frozen=True, slots=True)
class ObservedStep:
    measured_ns: float
    backward_ns: float
    """end of the last forward pass, on the rank that finishes it last"""
    ready_ns: tuple[float | None, ...]
    """time at which each parameter's gradient is ready, module by module; ``None`` if the parameter had no gradient"""
    finished_ns: Mapping[int, float]
    """bucket → time at which its all-reduce finished, for buckets with recorded times. Buckets are numbered across all
    modules
    """
    reduced_ns: float
    backward_end_ns: float | None = None
    """end of the backward pass's computation, if it continues after the last gradient"""
    num_accumulated: int = 1
    """number of backward passes per gradient reduction; the last of them reduces the accumulated gradients"""
    step: int = 0
    """number of the step that contains the backward pass"""
    modules: tuple[int, ...] = (0,)
    """indices of the DDP modules that the backward pass goes through"""

    @property
    def computed_ns(self) -> float:
        return max([*(ns for ns in self.ready_ns if ns is not None), self.backward_end_ns or 0.0])


def observe_steps(
    recorded: Mapping[int, Sequence[RecordedStep]], num_buckets: Sequence[int] = (0,), one_clock: bool = False
) -> tuple[ObservedStep, ...]:
    """Return one observation for each synchronized backward pass that was recorded lightly on all given ranks.

    `num_buckets`: number of buckets of each DDP module. `one_clock`: whether all ranks are on one host. If they are,
    times are measured from the start of the step on the first rank; if not, the times of each rank are measured from
    its own start of the step.
    """
    by_rank = [{step.number: step for step in steps if step.mode is StepMode.LIGHT} for steps in recorded.values()]
    common = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
    observed: list[ObservedStep] = []
    for number in common:
        parts = [one_part_for_each_pass(steps[number]) for steps in by_rank]
        if len({tuple(_modules_of(part) for part in of_rank) for of_rank in parts}) == 1:
            observed += (_observe(ranks, num_buckets, one_clock) for ranks in zip(*parts, strict=True))
    return tuple(observed)


def one_part_for_each_pass(step: RecordedStep) -> tuple[RecordedStep, ...]:
    """Split a step at each forward pass that follows a synchronized backward pass.

    A part has one backward pass of each module, all from one ``backward()`` call. No parts are returned if the step
    cannot be split in this way, or if forward passes or gradient times are missing.
    """
    if not step.passes or any(one.last_ready_ns is None for one in step.passes):
        return ()
    in_time = sorted(step.passes, key=_last_ready_ns)
    begins, groups = [step.start_ns], [[in_time[0]]]
    for before, one in pairwise(in_time):
        between = [f.start_ns for f in step.forwards if _last_ready_ns(before) <= f.start_ns < _last_ready_ns(one)]
        if between:
            begins.append(min(between))
            groups.append([])
        groups[-1].append(one)
    parts = tuple(
        structs.replace(
            step,
            start_ns=start,
            end_ns=end,
            forwards=tuple(forward for forward in step.forwards if start <= forward.start_ns < end),
            optimizers=tuple(span for span in step.optimizers if start <= span[0] < end),
            passes=tuple(sorted(passes, key=lambda one: one.module)),
        )
        for passes, (start, end) in zip(groups, pairwise([*begins, step.end_ns]), strict=True)
    )
    is_whole = all(
        any(forward.synchronizes for forward in part.forwards)
        and len(set(_modules_of(part))) == len(part.passes)
        and len({one.call for one in part.passes}) == 1
        for part in parts
    )
    return parts if is_whole else ()


def _modules_of(part: RecordedStep) -> tuple[int, ...]:
    return tuple(one.module for one in part.passes)


def _last_ready_ns(one: BackwardPass) -> int:
    return one.last_ready_ns or 0


def backward_alone_ns(recorded: Mapping[int, Sequence[RecordedStep]]) -> float | None:
    """Return the duration of a backward pass without communication on the slowest rank, in ns, or ``None`` if unknown.

    For each rank, this is the first quartile over the steps without communication. Longer steps were disturbed by other
    work, at different times on different ranks.
    """
    of_ranks = [
        first_quartile([_backward_ns(step) for step in alone])
        for steps in recorded.values()
        if (alone := [step for step in steps if step.mode is StepMode.ALONE and step.forwards])
    ]
    return max(of_ranks, default=None)


def _backward_ns(step: RecordedStep) -> int:
    begin_ns = step.forwards[-1].end_ns
    return _optimized_at(step, begin_ns) - begin_ns


def _observe(ranks: Sequence[RecordedStep], num_buckets: Sequence[int], one_clock: bool) -> ObservedStep:
    first_ns, modules = min(step.start_ns for step in ranks), _modules_of(ranks[0])
    origins = [(step, first_ns if one_clock else step.start_ns) for step in ranks]
    gradients = zip(*(_ready_ns(step, origin) for step, origin in origins), strict=True)
    first_buckets = list(accumulate((num_buckets[module] for module in modules[:-1]), initial=0))
    finished = [_finished_ns(step, origin, first_buckets) for step, origin in origins]
    timed = sorted({index for times in finished for index in times})  # some ranks may not have timed all buckets
    return ObservedStep(
        measured_ns=fmean(step.end_ns - step.start_ns for step in ranks),
        backward_ns=max(step.forwards[-1].end_ns - origin for step, origin in origins),
        ready_ns=tuple(_last(times) for times in gradients),
        finished_ns={index: float(max(times[index] for times in finished if index in times)) for index in timed},
        reduced_ns=max(_optimized_at(step, max(map(_last_ready_ns, step.passes))) - origin for step, origin in origins),
        num_accumulated=max(_num_accumulated(step, module) for step in ranks for module in modules),
        step=ranks[0].number,
        modules=modules,
    )


def _num_accumulated(part: RecordedStep, module: int) -> int:
    """Return the number of the module's backward passes in `part`. Several forward passes may share a backward pass."""
    forwards = [one for one in part.forwards if one.module == module and one.has_gradients]
    num_per_pass = sum(one.synchronizes for one in forwards)
    return len(forwards) // num_per_pass if num_per_pass else 1


def _ready_ns(part: RecordedStep, origin_ns: int) -> list[int | None]:
    return [None if ns is None else ns - origin_ns for one in part.passes for ns in one.ready_ns]


def _finished_ns(part: RecordedStep, origin_ns: int, first_buckets: Sequence[int]) -> dict[int, int]:
    return {
        first + bucket.index: bucket.finished_ns - origin_ns
        for one, first in zip(part.passes, first_buckets, strict=True)
        for bucket in one.buckets
        if bucket.finished_ns
    }


def _last(times: Sequence[int | None]) -> float | None:
    return max((float(ns) for ns in times if ns is not None), default=None)


def _optimized_at(step: RecordedStep, since_ns: int) -> int:
    return min((start for start, _ in step.optimizers if start >= since_ns), default=step.end_ns)


_QUEUED_NS = 20_000
"""a kernel counts as having waited for another kernel if it starts at most this many ns after the other kernel's end"""


HostTimes = Mapping[int, Mapping[int, RecordedStep]]
"""rank → step number → profiled step"""


def observe_gradients(
    ranks: Mapping[int, TracedPasses], recorded: HostTimes, buckets: Buckets
) -> tuple[ObservedStep, ...]:
    """Return the steps that are in the traces and in the records, except steps with buckets other than `buckets`."""
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
        steps.append(replace(_observe_passes(list(passes.values())), ready_ns=ready))
    return tuple(steps)


def _part_of_pass(step: RecordedStep | None, index: int) -> RecordedStep | None:
    parts = one_part_for_each_pass(step) if step is not None else ()
    return parts[index] if index < len(parts) else None


def _gradients(one: TracedPass, host: RecordedStep, buckets: Buckets) -> list[float | None]:
    """Return the times of gradients on the device, interpolated between the end of the forward pass and the buckets."""
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
    """Return the backward passes that every rank has, with the usual buckets and a known end of computation."""
    return tuple(_observe_passes(list(passes.values())) for passes in _common_passes(ranks).values())


def _common_passes(ranks: Mapping[int, TracedPasses]) -> dict[tuple[int, int], dict[int, TracedPass]]:
    """Return the passes of all ranks by step number and index of the pass in the step."""
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


def _observe_passes(ranks: Sequence[TracedPass]) -> ObservedStep:
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
    """Return the time at which each bucket was ready, in ns since the start of the step.

    This is no later than the start of its all-reduce.
    """
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
