"""What light recording saw of the steps that predictions start from: all ranks together, ns since each step began.

    ready      when a gradient was there on the rank that had it last: its bucket waits for all ranks
    finished   when a bucket was there on the last rank
    reduced    when DDP was done with the backward pass: the first optimizer began, or the step ended
    measured   length of the step, the mean of all ranks: they go on at one pace

Only steps of one synchronised backward pass through one DDP module count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddpprof.events import RecordedStep
from ddpprof.measures.medians import first_quartile


@dataclass(frozen=True, slots=True)
class ObservedStep:
    measured_ns: float
    backward_ns: float
    """when the last forward ended, on the rank that was last"""
    ready_ns: tuple[float | None, ...]
    """per parameter; ``None``: it had no gradient"""
    finished_ns: Mapping[int, float]
    """of the buckets that were timed"""
    reduced_ns: float
    backward_end_ns: float | None = None
    """where more is computed after the last gradient of a bucket"""
    num_forwards: int = 1
    """each with its backward pass; the last pass is reduced"""

    @property
    def computed_ns(self) -> float:
        return max([*(ns for ns in self.ready_ns if ns is not None), self.backward_end_ns or 0.0])


def observe_steps(
    recorded: Mapping[int, Sequence[RecordedStep]], module: int = 0, one_clock: bool = False
) -> tuple[ObservedStep, ...]:
    """Of light recording, on every rank that was read.

    `one_clock`: the ranks are on one host, and a step begins where the first of them begins it. Else each rank's times
    count from its own beginning, as if all began together.
    """
    by_rank = [{step.number: step for step in steps if step.mode == "light"} for steps in recorded.values()]
    common = sorted(set.intersection(*map(set, by_rank))) if by_rank else []
    steps = ([steps[number] for steps in by_rank] for number in common)
    return tuple(
        _observe(ranks, module, one_clock) for ranks in steps if all(_has_one_backward(step, module) for step in ranks)
    )


def backward_alone_ns(recorded: Mapping[int, Sequence[RecordedStep]]) -> float | None:
    """Of a backward pass without communication, on the rank that takes longest. ``None`` without such steps.

    The first quartile of each rank's steps: what takes longer was disturbed, and ranks that do not wait for each other
    are so at different times.
    """
    of_ranks = [
        first_quartile([_backward_ns(step) for step in alone])
        for steps in recorded.values()
        if (alone := [step for step in steps if step.mode == "alone" and step.forwards])
    ]
    return max(of_ranks, default=None)


def _backward_ns(step: RecordedStep) -> int:
    begin_ns = step.forwards[-1].end_ns
    return _optimized_at(step, begin_ns) - begin_ns


def _has_one_backward(step: RecordedStep, module: int) -> bool:
    synchronised = [forward for forward in step.forwards if forward.synchronises]
    known = any(ns is not None for ns in step.ready_ns.get(module, ()))
    return known and len(step.ready_ns) == 1 and len(synchronised) == 1


def _observe(ranks: Sequence[RecordedStep], module: int, one_clock: bool) -> ObservedStep:
    first_ns = min(step.start_ns for step in ranks)
    origins = [(step, first_ns if one_clock else step.start_ns) for step in ranks]
    gradients = zip(*([_since(origin, ns) for ns in step.ready_ns[module]] for step, origin in origins), strict=True)
    finished = [{b.index: b.finished_ns - origin for b in step.buckets if b.finished_ns} for step, origin in origins]
    timed = sorted({index for times in finished for index in times})  # the end of a step may be too early for a rank
    return ObservedStep(
        measured_ns=fmean(step.end_ns - step.start_ns for step in ranks),
        backward_ns=max(step.forwards[-1].end_ns - origin for step, origin in origins),
        ready_ns=tuple(_last(times) for times in gradients),
        finished_ns={index: float(max(times[index] for times in finished if index in times)) for index in timed},
        reduced_ns=max(_reduced_at(step, module) - origin for step, origin in origins),
        num_forwards=max(len(step.forwards) for step in ranks),
    )


def _since(origin_ns: int, ns: int | None) -> int | None:
    return None if ns is None else ns - origin_ns


def _last(times: Sequence[int | None]) -> float | None:
    return max((float(ns) for ns in times if ns is not None), default=None)


def _reduced_at(step: RecordedStep, module: int) -> int:
    return _optimized_at(step, max(ns for ns in step.ready_ns[module] if ns is not None))


def _optimized_at(step: RecordedStep, since_ns: int) -> int:
    return min((start for start, _ in step.optimizers if start >= since_ns), default=step.end_ns)
