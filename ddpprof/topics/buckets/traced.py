"""Find gradient buckets in a trace without ddpprof's record. There is one gradient all-reduce per bucket.

The layout of a pass is the list of its bucket sizes, in launch order. Only passes with the most common layout over all
steps and ranks are used, because DDP rebuilds its buckets after the first iteration. Unknown sizes match any size.

If a DDP forward pass ends between all-reduces of a step, and the same sizes follow each forward pass, the step has
several backward passes. In all other cases, the all-reduces of a step count as one pass. All buckets are assigned to
module 0, because a trace does not show modules.

Times are relative to the end of the last DDP forward pass before the first bucket of the backward pass, or, if the
script reduces gradients without DDP, to the start of the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import UNKNOWN, DdpModule, Int64Column, Mark, Rank, Trace
from ddpprof.topics.buckets.steps import (
    BucketRow,
    BucketStep,
    bucket_steps,
    gradient_all_reduces,
    reduces_without_ddp,
    summarize_times,
)
from ddpprof.topics.steps.breakdown import is_whole_step, step_window
from ddpprof.topics.steps.overlap import BackwardCompute, backward_passes

_Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TracedBuckets:
    buckets: tuple[BucketRow, ...]
    notes: tuple[str, ...]
    """notes for the report, for example about excluded steps"""
    ranks: Mapping[int, tuple[BucketStep, ...]] = field(default_factory=dict)
    """rank → its buckets in all steps that were not excluded"""


NO_BUCKETS = TracedBuckets((), ())


@dataclass(frozen=True, slots=True)
class TracedPass:
    """The gradient all-reduces of one backward pass of one rank, in the order of launch."""

    step: int
    """index into the steps of the rank's trace"""
    number: int
    """number of the step"""
    index: int
    """index of the backward pass in the step"""
    sizes: _Sizes
    """size of each all-reduce in bytes, or `UNKNOWN`"""
    origin_ns: int
    times_ns: tuple[tuple[int | None, int, int], ...]
    """launch time (``None`` if unknown), start and end of each all-reduce, relative to `origin_ns`"""
    spans_forwards: bool
    """True if a DDP forward pass ended between the first and the last launch of the backward pass"""
    step_start_ns: int
    """start of the part of the step that belongs to this pass: the end of the previous pass, or the start of the step;
    relative to `origin_ns`
    """
    step_end_ns: int
    """end of the part of the step that belongs to this pass, relative to `origin_ns`"""
    backward_end_ns: int | None
    """end of the last computation in the pass, relative to `origin_ns`"""
    backward_start_ns: int = 0
    """start of the pass or, on an accelerator, of the first computation in it, relative to `origin_ns`"""
    is_whole: bool = True
    """False if the trace starts or ends in the middle of the step"""


@dataclass(frozen=True, slots=True)
class TracedPasses:
    """All backward passes found in the trace of one rank."""

    epoch_ns: int | None
    passes: tuple[TracedPass, ...]


def trace_buckets(ranks: Mapping[int, TracedPasses], one_clock: bool) -> TracedBuckets:
    """Derive the buckets from the passes of each rank. `one_clock`: whether all ranks run on one host."""
    passes = [one for of_rank in ranks.values() for one in of_rank.passes]
    if not passes:
        return NO_BUCKETS
    chosen = usual_passes(ranks)
    fitting = [one for of_rank in chosen.values() for one in of_rank]
    known = usual_sizes(chosen)
    steps = {
        rank: tuple(row for one in of_rank for row in _steps(one, ranks[rank].epoch_ns))
        for rank, of_rank in chosen.items()
    }
    one_clock = one_clock and len({of_rank.epoch_ns is None for of_rank in ranks.values()}) == 1
    buckets = tuple(
        BucketRow(
            **summarize_times((0, index), steps, one_clock),
            num_bytes=num_bytes,
            num_parameters=None,
            first_parameter=None,
            last_parameter=None,
        )
        for index, num_bytes in enumerate(known)
    )
    return TracedBuckets(buckets, tuple(_notes(ranks, fitting)), steps)


def usual_passes(ranks: Mapping[int, TracedPasses]) -> Mapping[int, tuple[TracedPass, ...]]:
    """Return the passes with the most common layout. There is at least one such pass."""
    layout = _layout([one for of_rank in ranks.values() for one in of_rank.passes])
    return {rank: tuple(one for one in of.passes if _fits(one.sizes, layout)) for rank, of in ranks.items()}


def usual_sizes(passes: Mapping[int, Sequence[TracedPass]]) -> list[int | None]:
    """Return the size of each bucket, in bytes, in passes of one layout; ``None`` if unknown in all passes."""
    of_buckets = zip(*(one.sizes for of_rank in passes.values() for one in of_rank), strict=True)
    return [next((size for size in sizes if size != UNKNOWN), None) for sizes in of_buckets]


@dataclass(frozen=True, slots=True)
class RankBuckets:
    """The buckets of one rank."""

    steps: tuple[BucketStep, ...]
    """buckets in each recorded step, according to ddpprof's record"""
    passes: TracedPasses | None
    """gradient all-reduces in the rank's trace; ``None`` without a trace"""


def buckets_of_rank(rank: Rank, _steps: Sequence[int], modules: Sequence[DdpModule]) -> RankBuckets:
    return RankBuckets(tuple(bucket_steps(rank, modules)), find_passes(rank.trace) if rank.trace is not None else None)


def find_passes(trace: Trace) -> TracedPasses:
    """Return the passes of all steps that reduced gradients after a DDP forward pass, or without DDP."""
    comm, origins = trace.collectives, _origins(trace)
    gradients = gradient_all_reduces(trace)
    found: list[TracedPass] = []
    for step in range(len(trace.steps)):
        rows = gradients[comm.step[gradients] == step]
        ended = np.searchsorted(origins, comm.asked_ns[rows], side="right")
        if len(rows) and ended[0]:
            found += _passes_of_step(trace, step, rows, ended, origins)
    return TracedPasses(trace.epoch_ns, tuple(found))


def _passes_of_step(
    trace: Trace, step: int, rows: NDArray[np.int64], ended: NDArray[np.int64], origins: Int64Column
) -> list[TracedPass]:
    """Split a step into its passes.

    `rows`: all-reduces in launch order. `ended`: for each all-reduce, the number of forward passes that ended earlier.
    """
    comm, whole = trace.collectives, trace.steps[step]
    firsts = _first_of_passes(comm.num_bytes[rows], ended)
    computed = backward_passes(trace, step)
    found: list[TracedPass] = []
    window = step_window(trace, step)
    is_whole = is_whole_step(trace, step, window)
    part_start, step_end = (window.start_ns[0], window.end_ns[0]) if window else (whole.start_ns, whole.end_ns)
    for first, behind in zip(firsts, [*firsts[1:], len(rows)], strict=True):
        mine, origin = rows[first:behind], int(origins[ended[first] - 1])
        backward = _backward(computed, None if behind == len(rows) else int(comm.start_ns[mine[0]]))
        backward_start = origin if backward is None or trace.device == "cpu" else backward.start_ns
        backward_end = None if backward is None else backward.end_ns
        last_end = max(int(comm.end_ns[mine].max()), backward_end or 0)
        part_end = int(step_end) if behind == len(rows) else last_end
        times = np.stack((comm.launched_ns[mine], comm.start_ns[mine], comm.end_ns[mine]), axis=1) - origin
        launches_are_known = comm.launched_ns[mine] != UNKNOWN
        found.append(
            TracedPass(
                step=step,
                number=whole.number,
                index=len(found),
                sizes=tuple(comm.num_bytes[mine].tolist()),
                origin_ns=origin,
                times_ns=tuple(
                    (launch if is_known else None, start, end)
                    for is_known, (launch, start, end) in zip(launches_are_known.tolist(), times.tolist(), strict=True)
                ),
                spans_forwards=bool(ended[behind - 1] > ended[first]),
                step_start_ns=int(part_start) - origin,
                is_whole=is_whole,
                backward_start_ns=backward_start - origin,
                step_end_ns=part_end - origin,
                backward_end_ns=None if backward_end is None else backward_end - origin,
            )
        )
        part_start = part_end
    return found


def _first_of_passes(sizes: Int64Column, ended: NDArray[np.int64]) -> list[int]:
    """Return the indices of the all-reduces at which backward passes begin.

    If equal known sizes follow each forward pass, a backward pass begins after each of them. Otherwise, a single pass
    begins at index 0.
    """
    firsts = [0, *(np.flatnonzero(np.diff(ended)) + 1).tolist()]
    layouts = {tuple(part.tolist()) for part in np.split(sizes, firsts[1:])}
    return firsts if len(layouts) == 1 and UNKNOWN not in sizes else [0]


def _backward(passes: Sequence[BackwardCompute], at_ns: int | None) -> BackwardCompute | None:
    """Return the last backward pass that began before `at_ns`; without `at_ns`, the last pass of the step."""
    begun = [one for one in passes if at_ns is None or one.start_ns <= at_ns]
    return begun[-1] if begun else None


def _origins(trace: Trace) -> Int64Column:
    """Return the times that may serve as time 0 of a backward pass, in ascending order."""
    marks = trace.host_spans
    if not reduces_without_ddp(trace):
        return np.sort(marks.end_ns[marks.mark == Mark.FORWARD])
    rows = np.flatnonzero((marks.mark == Mark.BACKWARD) & (marks.step >= 0))
    _, first = np.unique(marks.step[rows], return_index=True)  # rows are sorted by start
    return np.sort(marks.start_ns[rows[first]])


def _layout(passes: Sequence[TracedPass]) -> _Sizes:
    """Return the most common layout; of equally frequent layouts, the latest, because DDP rebuilds its buckets."""
    counts = Counter(one.sizes for one in passes)
    votes = {sizes: sum(n for other, n in counts.items() if _fits(other, sizes)) for sizes in counts}
    last = {one.sizes: one.step for one in sorted(passes, key=lambda one: one.step)}
    return max(counts, key=lambda sizes: (votes[sizes], last[sizes], sizes))


def _fits(sizes: _Sizes, layout: _Sizes) -> bool:
    return len(sizes) == len(layout) and all(
        UNKNOWN in (a, b) or a == b for a, b in zip(sizes, layout, strict=True)
    )  # fmt: skip


def _steps(one: TracedPass, epoch_ns: int | None) -> list[BucketStep]:
    return [
        BucketStep(
            step=one.number,
            module=0,
            index=index,
            origin_ns=one.origin_ns + (epoch_ns or 0),
            launched_ns=launched,
            started_ns=started,
            finished_ns=finished,
            pass_index=one.index,
        )
        for index, (launched, started, finished) in enumerate(one.times_ns)
    ]


def _notes(ranks: Mapping[int, TracedPasses], chosen: Collection[TracedPass]) -> list[str]:
    notes = []
    left_out: dict[int, list[int]] = {}
    fitting = set(map(id, chosen))
    for rank, of_rank in ranks.items():
        for one in of_rank.passes:
            if id(one) not in fitting:
                left_out.setdefault(one.number, []).append(rank)
    for number, odd in sorted(left_out.items()):
        where = "" if len(odd) == len(ranks) else f" of rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))}"
        is_first = number == min(one.number for of_rank in ranks.values() for one in of_rank.passes)
        notes.append(
            f"the bucket table leaves out step {number}{where}: its gradient all-reduces differ in number or size "
            "from the all-reduces of most steps"
            + (" (DDP rebuilds its buckets after the first iteration)" if is_first else "")
        )
    if any(one.spans_forwards for one in chosen):
        notes.append(
            "the bucket table shows the buckets of all backward passes of a step as if they belonged to one module"
        )
    return notes
