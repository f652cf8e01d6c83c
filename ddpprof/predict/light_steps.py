"""Backward passes as seen by light recording on all ranks together, from which predictions start.

A step with one synchronised backward pass is observed as a whole. A step with several is split into as many parts, each
ending where the next pass's forward, or the optimizer, begins. Times are ns since the part began.
    ready      when the last rank had a gradient, since its bucket waits for all ranks
    finished   when the last rank had a bucket
    reduced    when DDP had finished the backward pass: the first optimizer began, or the step ended
    measured   length of the step, mean of all ranks, which keep pace
Only steps with one synchronised backward pass through one DDP module count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import structs

from ddpprof.measures.statistics.medians import first_quartile
from ddpprof.model import RecordedStep, StepMode


@dataclass(frozen=True, slots=True)
class ObservedStep:
    measured_ns: float
    backward_ns: float
    """end of the last forward, on the last rank"""
    ready_ns: tuple[float | None, ...]
    """time per parameter; ``None`` if it had no gradient"""
    finished_ns: Mapping[int, float]
    """times of the buckets that were timed"""
    reduced_ns: float
    backward_end_ns: float | None = None
    """end of the computation, if it continues after the last gradient of a bucket"""
    num_forwards: int = 1
    """number of forwards, each with its backward pass; only the last pass is reduced"""
    step: int = 0
    """number of its step"""

    @property
    def computed_ns(self) -> float:
        return max([*(ns for ns in self.ready_ns if ns is not None), self.backward_end_ns or 0.0])


def observe_steps(
    recorded: Mapping[int, Sequence[RecordedStep]], module: int = 0, one_clock: bool = False
) -> tuple[ObservedStep, ...]:
    """Return what light recording saw on every rank that was read, one observation per synchronised backward pass.

    `one_clock`: the ranks are on one host, and a step begins when the first of them begins it. Otherwise each rank's
    times count from its own beginning, as if all began together.
    """
    by_rank = [{step.number: step for step in steps if step.mode is StepMode.LIGHT} for steps in recorded.values()]
    common = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
    observed: list[ObservedStep] = []
    for number in common:
        parts = [one_part_for_each_pass(steps[number], module) for steps in by_rank]
        if len({len(of_rank) for of_rank in parts}) == 1:
            observed += (_observe(ranks, one_clock) for ranks in zip(*parts, strict=True))
    return tuple(observed)


def one_part_for_each_pass(step: RecordedStep, module: int = 0) -> tuple[RecordedStep, ...]:
    """Split the step where a forward begins after a synchronised backward pass.

    The result is empty if a pass goes through another module, or if a pass lacks gradients or a forward of its own.
    """
    if not step.passes or any(one.module != module or one.last_ready_ns is None for one in step.passes):
        return ()
    ends = []
    for one in step.passes[:-1]:
        following = [forward.start_ns for forward in step.forwards if forward.start_ns >= (one.last_ready_ns or 0)]
        ends.append(min(following, default=step.end_ns))
    bounds = [step.start_ns, *ends, step.end_ns]
    parts = tuple(
        structs.replace(
            step,
            start_ns=start,
            end_ns=end,
            forwards=tuple(forward for forward in step.forwards if start <= forward.start_ns < end),
            optimizers=tuple(span for span in step.optimizers if start <= span[0] < end),
            passes=(one,),
        )
        for one, start, end in zip(step.passes, bounds, bounds[1:], strict=False)
    )
    whole = all(sum(forward.synchronises for forward in part.forwards) == 1 for part in parts)
    return parts if whole else ()


def backward_alone_ns(recorded: Mapping[int, Sequence[RecordedStep]]) -> float | None:
    """Return the length of a backward pass without communication, on the slowest rank; ``None`` without such steps.

    This is the first quartile of each rank's steps: longer ones were disturbed, and ranks that do not wait for each
    other are disturbed at different times.
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


def _observe(ranks: Sequence[RecordedStep], one_clock: bool) -> ObservedStep:
    first_ns = min(step.start_ns for step in ranks)
    origins = [(step, step.passes[0], first_ns if one_clock else step.start_ns) for step in ranks]
    gradients = zip(*([_since(origin, ns) for ns in one.ready_ns] for _, one, origin in origins), strict=True)
    finished = [{b.index: b.finished_ns - origin for b in one.buckets if b.finished_ns} for _, one, origin in origins]
    timed = sorted({index for times in finished for index in times})  # the end of a step may be too early for a rank
    return ObservedStep(
        measured_ns=fmean(step.end_ns - step.start_ns for step in ranks),
        backward_ns=max(step.forwards[-1].end_ns - origin for step, _, origin in origins),
        ready_ns=tuple(_last(times) for times in gradients),
        finished_ns={index: float(max(times[index] for times in finished if index in times)) for index in timed},
        reduced_ns=max(_optimized_at(step, one.last_ready_ns or 0) - origin for step, one, origin in origins),
        num_forwards=max(sum(forward.has_gradients for forward in step.forwards) for step in ranks),
        step=ranks[0].number,
    )


def _since(origin_ns: int, ns: int | None) -> int | None:
    return None if ns is None else ns - origin_ns


def _last(times: Sequence[int | None]) -> float | None:
    return max((float(ns) for ns in times if ns is not None), default=None)


def _optimized_at(step: RecordedStep, since_ns: int) -> int:
    return min((start for start, _ in step.optimizers if start >= since_ns), default=step.end_ns)
